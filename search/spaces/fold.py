"""Pooling along rows by folded rows (`search/kernels/folding.py`), with channels first."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.kernels.folding import FOLD, Pooling, fits, fold, pooling_of
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Reduction, reduction_of
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware

MOST = 256
"""Elements of windows that are picked or folded for a row of the result: all are written out."""


@dataclass(frozen=True)
class Fold(Way):
    """One point.

    Attributes:
        lanes: of a vector.
        rows: of the result that are written out one after another; they share what they read.
    """

    lanes: int
    rows: int

    def coordinates(self) -> tuple[float, ...]:
        return (log2(self.lanes), log2(self.rows))


def fold_space(workload: Any, target: Target) -> FewWays[Fold] | None:
    """The space of `workload`, None where it is no pooling by the maximum along its last
    dimension, or one with rows shorter than a vector, or with too much to write out."""
    if target.kind != "llvm":
        return None
    form, machine = reduction_of(workload), hardware(target)
    pooling = pooling_of(form) if form is not None else None
    if form is None or pooling is None:
        return None
    columns, down = form.extent(form.column), form.extent(form.spatial[-2])
    ways = [
        Fold(lanes, rows)
        for lanes in machine.widths()
        for rows in (1, 2)
        if fits(form, pooling, lanes)
        and ceil(columns / lanes) * prod(pooling.windows) * rows <= MOST
        and down % rows == 0
    ]
    if not ways:
        return None
    return FewWays(
        "fold",
        workload,
        ways,
        lambda one: _estimate(form, pooling, one, machine),
        lambda schedule, one: schedule_rows(schedule, one),
        (log2(form.points_written), log2(form.depth), *machine.figures()),
        lambda one: fold(workload, one.lanes),
        lambda one: f"fold {one.lanes}",
    )


def _estimate(form: Reduction, pooling: Pooling, one: Fold, machine: Hardware) -> float:
    """Seconds at 3 GHz: a cycle for each vector that is read, and for each permutation."""
    columns = form.extent(form.column)
    rows = form.points_written / columns / machine.cores
    down, across = pooling.windows
    read = ceil(int(pooling.source.shape[-1]) / one.lanes) * down
    written = ceil(columns / one.lanes) * across * 2
    moved = 4.0 * (prod(map(int, pooling.source.shape)) + form.points_written) / machine.cores
    cycles = max(rows * (read + written), moved / machine.bytes_per_cycle)
    return (cycles + LAUNCH) / 3e9


def schedule_rows(schedule: Any, one: Fold) -> None:
    """Apply `one` to the rewritten, unscheduled kernel in `schedule`."""
    *planes, row = schedule.get_loops(schedule.get_sblock(FOLD))
    schedule.parallel(schedule.fuse(*planes))
    if one.rows > 1:
        _, several = schedule.split(row, [None, one.rows])
        schedule.unroll(several)
