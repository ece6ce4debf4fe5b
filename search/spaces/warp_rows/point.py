"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2

from tunefarm.devices.gpu import Arch
from tunefarm.search.spaces import gpu_costs as costs
from tunefarm.search.spaces.family import Way

WARP = 32
LONGEST = 16
"""Bytes that a thread reads or writes at once."""
MOST_HELD = 64
"""Elements of a row that a thread has."""
_THREADS = 512
"""Of a block; more only where a row takes them."""
_OTHER_REGISTERS = 32
_MEMORY_BYTES = 12.0
"""That a multiprocessor reads from memory in a cycle, or writes to it: an A100's 1.6 TB/s for 108
of them, at 1.4 GHz."""
_FOLD, _MET = 150.0, 60.0
"""Cycles until a warp has folded its lanes, in five steps; until several have seen each other's."""
_OPERATIONS = 8.0
"""Instructions for an element, roughly, all stages together."""


@dataclass(frozen=True)
class RowFigures:
    """A kernel in figures; see `rows.RowKernel`. `held`: values of an element that a thread has at
    a time, in registers."""

    count: int
    columns: int
    folds: int
    stages: int
    row_bytes: int
    widest: int
    held: int


@dataclass(frozen=True)
class WarpRows(Way):
    """One point.

    Attributes:
        warps: that share a row.
        lanes: neighbours that a thread reads at once.
        rows: of a block.
    """

    warps: int
    lanes: int
    rows: int

    def coordinates(self) -> tuple[float, ...]:
        return tuple(map(log2, (self.warps, self.lanes, self.rows)))

    @property
    def threads_of_row(self) -> int:
        return WARP * self.warps

    @property
    def threads(self) -> int:
        return self.threads_of_row * self.rows

    def turns(self, columns: int) -> int:
        """Times that a row's threads read, until they have all of it."""
        return ceil(columns / (self.threads_of_row * self.lanes))


def fits(one: WarpRows, of: RowFigures, arch: Arch) -> bool:
    held = one.turns(of.columns) * one.lanes
    return (
        of.columns % one.lanes == 0
        and one.lanes * of.widest <= LONGEST
        and held <= MOST_HELD
        and one.rows <= of.count
        and one.threads <= arch.threads
        and one.threads * registers(one, of) <= arch.registers
    )


def registers(one: WarpRows, of: RowFigures) -> int:
    return min(255, one.turns(of.columns) * one.lanes * of.held + _OTHER_REGISTERS)


def possible(of: RowFigures, arch: Arch) -> Iterator[WarpRows]:
    for warps, lanes, rows in itertools.product(
        (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (1, 2, 4, 8, 16)
    ):
        one = WarpRows(warps, lanes, rows)
        if one.threads > max(_THREADS, one.threads_of_row):
            continue
        if warps > 1 and one.threads_of_row * lanes >= 2 * of.columns:
            continue  # half of the threads would have nothing
        if fits(one, of, arch):
            yield one


def expected_s(one: WarpRows, of: RowFigures, arch: Arch) -> float:
    """Seconds, to order points by: what is read and written, while enough of it is on its way; and
    the steps of folding, which nothing hides but other blocks. Nothing has been fitted to a GPU."""
    blocks = ceil(of.count / one.rows)
    block = costs.Block(one.threads, of.folds * one.rows * one.warps * 4, registers(one, of))
    resident = block.resident(arch, blocks)
    bytes_ = one.rows * of.row_bytes
    elements = one.turns(of.columns) * one.lanes * one.threads
    computing = elements * _OPERATIONS / arch.lanes / block.awake(arch, resident)
    longest = one.lanes * of.widest
    asking = bytes_ / (WARP * longest) * costs.COPY
    waiting = costs.LATENCY + of.folds * (_FOLD + (_MET if one.warps > 1 else 0.0))
    busy = costs.overlapped((bytes_ / _MEMORY_BYTES, computing, asking), 0.3)
    waves = ceil(blocks / (resident * arch.multiprocessors))
    return waves * (waiting + resident * busy) / costs.HERTZ


def figures_of(of: RowFigures) -> tuple[float, ...]:
    """As a cost model has them."""
    sizes = (of.count, of.columns, of.row_bytes)
    return (*map(log2, sizes), float(of.folds), float(of.stages), float(of.widest))
