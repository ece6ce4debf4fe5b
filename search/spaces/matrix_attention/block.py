"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, log2

from tunefarm.devices.matrices import REGISTERS, ROWS
from tunefarm.search.kernels.paired import LANES, TERMS
from tunefarm.search.spaces.family import Way
from tunefarm.search.spaces.hardware import LAUNCH, Hardware
from tunefarm.search.spaces.tile import divisors


@dataclass(frozen=True)
class Block(Way):
    """One point.

    Attributes:
        tasks: that the queries of one head are divided between.
        down: registers of queries that are taken at a time.
        across: registers of keys.
    """

    tasks: int
    down: int
    across: int

    @property
    def rows(self) -> int:
        """Queries that are taken at a time."""
        return ROWS * self.down

    def coordinates(self) -> tuple[float, ...]:
        return tuple(map(log2, (self.tasks, self.down, self.across)))


@dataclass(frozen=True)
class HeadSizes:
    """Of one head, filled up to whole registers; see `Attention.sizes`."""

    rows: int
    keys: int
    depth: int
    wide: int

    @property
    def all_keys(self) -> int:
        return ceil(self.keys / TERMS) * TERMS

    @property
    def line(self) -> int:
        """Elements from a query's products to the next's, and of weights: rows of a power of two
        would all be in the same few sets of a cache."""
        return self.all_keys + TERMS

    @property
    def all_depth(self) -> int:
        return ceil(self.depth / TERMS) * TERMS

    @property
    def all_wide(self) -> int:
        return ceil(self.wide / LANES) * LANES

    def blocks(self, way: Block) -> int:
        return ceil(self.rows / way.rows)


def registers(down: int, across: int) -> int:
    """For sums, and the operands of a step."""
    return down * across + min(down, across) + 1


def beside(columns: int, down: int) -> int:
    """Registers that are taken beside each other of so many, at most."""
    return max(one for one in divisors(columns) if registers(down, one) <= REGISTERS)


def ways(sizes: HeadSizes) -> Iterator[Block]:
    columns = sizes.all_keys // LANES
    for down, across in product((1, 2, 3), (1, 2, 4)):
        if registers(down, across) > REGISTERS or columns % across:
            continue
        for tasks in divisors(sizes.blocks(Block(1, down, across))):
            yield Block(tasks, down, across)


# ----------------------------------------------------------------------------- what is expected

_LINE = 11.0
"""Cycles of a vector of weights, from their products to the bits that are stored."""
_MULTIPLIED, _STORED = 16.0, 16.0
"""Of an instruction for matrices; and of a register that is stored."""
_TURNED, _WOVEN = 90.0, 5.0
"""Of sixteen rows by 32 terms; and of two rows by sixteen columns."""
_MOVED = 3.0
"""Of a number that is moved by itself."""
_ROW, _FINISHED = 30.0, 6.0
"""Of a query's sums, and of a vector of its result."""
_TASK = 800.0


def expected_s(batches: int, sizes: HeadSizes, way: Block, machine: Hardware, apart: int) -> float:
    """Seconds of one call at 3 GHz: to order points by.

    Args:
        apart: numbers of a head's keys and values that are moved one by one.
    """
    tasks = batches * way.tasks
    down, keys = way.down, sizes.all_keys
    columns, panels = keys // LANES, sizes.all_wide // LANES
    deep, steps = sizes.all_depth // TERMS, keys // TERMS
    mixed = beside(panels, down)

    def multiplied(wide: int, many: int, count: int) -> float:
        loads = 8.0 * (down + wide) if wide * down > 1 else 24.0
        step = max(_MULTIPLIED * down * wide, loads) + 0.3 * loads
        return many / wide * (count * step + _STORED * down * wide)

    block = multiplied(way.across, columns, deep) + multiplied(mixed, panels, steps)
    block += way.rows * (ceil(sizes.keys / LANES) * _LINE + _ROW + _FINISHED * panels)
    kept = way.rows * keys * 6
    far = 1.0 + 0.15 * (kept > 32 << 10) + max(0.0, kept / machine.l2 - 0.5)
    packed = columns * deep * _TURNED + steps * LANES * panels * _WOVEN + _MOVED * apart
    blocks = ceil(sizes.blocks(way) / way.tasks)
    cycles = ceil(tasks / machine.cores) * (packed + blocks * block * far + _TASK)
    return (cycles + LAUNCH) / 3e9
