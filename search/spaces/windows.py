"""Pooling along a tensor's last dimension, as with channels first.

Neighbouring results read every other element, or overlapping ones. Vectors of those, asked for in
a schedule, are put together element by element; the loop vectoriser of the compiler itself reads
whole vectors and picks from them. So a schedule leaves it the loop over a row, with a body that is
written out: the padded window, or the row that it slides over, and its maximum or sum.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from math import log2
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Reduction, reduction_of
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware

UNROLL = (16, 64, 512)
"""Steps of a body that is written out."""


class Padded(enum.StrEnum):
    """Where the padding is computed."""

    PLANE = "plane"
    ROW = "row"
    WINDOW = "window"
    INLINE = "inline"


COST = {Padded.PLANE: 1.2, Padded.ROW: 1.1, Padded.WINDOW: 1.0, Padded.INLINE: 1.3}


@dataclass(frozen=True)
class Slide(Way):
    """One point.

    Attributes:
        padded: see `Padded`.
        unroll: see `UNROLL`.
        local: the result is gathered apart from where it is stored.
    """

    padded: Padded
    unroll: int
    local: bool

    def coordinates(self) -> tuple[float, ...]:
        places = (2.0 * (self.padded is place) for place in Padded)
        return (*places, log2(self.unroll) / 2, 2.0 * self.local)


def windows_space(workload: Any, target: Target) -> FewWays[Slide] | None:
    """The space of `workload`, None where nothing slides along its last dimension."""
    if target.kind != "llvm":
        return None
    form, machine = reduction_of(workload), hardware(target)
    if form is None or not _slides(form):
        return None
    places = tuple(Padded) if form.before else (Padded.INLINE,)
    locals_ = (True,) if form.after else (False, True)  # what follows reads a result of its own
    ways = [Slide(*one) for one in itertools.product(places, UNROLL, locals_)]
    return FewWays(
        "windows",
        workload,
        ways,
        lambda one: _estimate(form, one, machine),
        lambda schedule, one: schedule_slide(schedule, form, one),
        (log2(form.points_written), log2(form.depth), float(len(form.after)), *machine.figures()),
    )


def _slides(form: Reduction) -> bool:
    along = (form.vector.strides[axis] == 1 for axis in form.reductions)
    return (
        not form.product
        and len(form.before) <= 1
        and len(form.spatial) >= 3
        and form.vector.strides[form.column] in (1, 2, 3, 4)
        and any(along)
    )


def _estimate(form: Reduction, one: Slide, machine: Hardware) -> float:
    """Seconds at 3 GHz: a few vectors an element of the window, of a quarter of the lanes."""
    vectors = form.points_written * form.depth / (machine.lanes / 4)
    cycles = vectors * COST[one.padded] * (1.0 + 4.0 / one.unroll) / machine.cores
    return (cycles + LAUNCH) / 3e9


def schedule_slide(schedule: Any, form: Reduction, one: Slide) -> None:
    """Apply `one` to the unscheduled kernel in `schedule`."""
    inlined = form.before if one.padded is Padded.INLINE else ()
    for stage in (*form.copies, *inlined, *form.after[:-1]):
        schedule.compute_inline(schedule.get_sblock(stage.name))
    block = schedule.get_sblock(form.block.name)
    store = block
    if one.local:
        if form.after:
            store = schedule.get_sblock(form.after[-1].name)
            schedule.set_scope(block, 0, "local")
        else:
            store = schedule.cache_write(block, 0, "local")
        schedule.compute_at(block, schedule.get_loops(store)[-1], preserve_unit_loops=True)
    *planes, row, column = schedule.get_loops(store)[: len(form.spatial)]
    plane = schedule.fuse(*planes)
    if form.before and one.padded is not Padded.INLINE:
        place = {Padded.PLANE: plane, Padded.ROW: row, Padded.WINDOW: column}[one.padded]
        padding = schedule.get_sblock(form.before[0].name)
        schedule.compute_at(padding, place, preserve_unit_loops=True)
    schedule.parallel(plane)
    schedule.annotate(plane, "pragma_auto_unroll_max_step", one.unroll)
    schedule.annotate(plane, "pragma_unroll_explicit", 1)
    first = schedule.get_loops(block)[-len(form.reductions)]
    schedule.decompose_reduction(block, first)
