"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, log2
from typing import Any

from tunefarm.devices.gpu import Arch
from tunefarm.search.spaces import gpu_costs as costs
from tunefarm.search.spaces.family import Way
from tunefarm.search.spaces.tensor_tile.tiling import (
    MOST_BLOCKS,
    Matrices,
    Tiling,
    launched_s,
    sensible,
    too_much,
)

TOGETHER = 4
"""Elements of sixteen bytes: what a thread reads at once."""
_ELEMENT = 4
_WARP = 32
_LANES = ((4, 8), (8, 4), (2, 16), (16, 2), (1, 32), (32, 1))
"""Of a warp, down and across."""
_MOST_HELD, _MOST_THREADS = 128, 512
_OTHER_REGISTERS = 32
_READ_BYTES = 256
"""That a warp's read of sixteen bytes a thread costs of shared memory: neighbours read the same,
which is read once, but not all at a time."""
_BEGUN = 4
"""Instructions of a multiprocessor's warps in a cycle."""


@dataclass(frozen=True)
class PlainLayout:
    """One operand's tile in shared memory, row by row: `tensor_tile.layout.Laid` without changing
    places, so that a thread reads all of its elements at fixed distances from one address. Lines
    that are deep are sixteen bytes apart, and so begin in other banks.

    Attributes:
        lines, depth, deep: see `tensor_tile.layout.TileLayout`.
    """

    lines: int
    depth: int
    deep: bool

    @property
    def across(self) -> int:
        """Rows."""
        return self.lines if self.deep else self.depth

    @property
    def row_bytes(self) -> int:
        """From a row to the next."""
        if self.deep:
            return (self.depth + TOGETHER) * _ELEMENT
        return self.lines * _ELEMENT

    @property
    def bytes(self) -> int:
        return self.across * self.row_bytes

    def offset(self, line: Any, term: Any) -> Any:
        """Bytes from the tile's beginning to an element; of numbers, or of TensorIR's terms."""
        row, beside = (line, term) if self.deep else (term, line)
        return row * self.row_bytes + beside * _ELEMENT


@dataclass(frozen=True)
class PlainTile(Way):
    """One point.

    Attributes:
        rows, columns, depth, stages, split, band: see `tensor_tile.tile.TensorTile`.
        own_rows, own_columns: that each thread sums up.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    own_rows: int
    own_columns: int
    split: int = 1
    band: int = 1

    def coordinates(self) -> tuple[float, ...]:
        sizes = (self.rows, self.columns, self.depth, self.own_rows, self.own_columns, self.split)
        return (*(log2(one) for one in sizes), float(self.stages), log2(self.band) / 2)

    @property
    def threads(self) -> int:
        return self.rows // self.own_rows * (self.columns // self.own_columns)

    @property
    def multiplying(self) -> int:
        """All of them."""
        return self.threads

    @property
    def cluster(self) -> int:
        return 1


@dataclass(frozen=True)
class Lanes:
    """What the threads of a block multiply in one step.

    Attributes:
        left, right: tiles in shared memory.
        own_rows, own_columns: of a thread.
        down, across: threads of a warp by rows and columns.
        warps_down: of the block, which are numbered down first.
    """

    left: PlainLayout
    right: PlainLayout
    own_rows: int
    own_columns: int
    down: int
    across: int
    warps_down: int


@dataclass(frozen=True)
class PlainPlan(Tiling[PlainTile]):
    """For plain cores."""

    @property
    def sides(self) -> tuple[PlainLayout, PlainLayout]:
        one, tile = self.matrices, self.tile
        return (
            PlainLayout(tile.rows, tile.depth, one.left_deep),
            PlainLayout(tile.columns, tile.depth, one.right_deep),
        )

    @property
    def held(self) -> int:
        return self.tile.own_rows * self.tile.own_columns

    @property
    def lanes(self) -> Lanes | None:
        """Those that read least of what they multiply; None where warps cannot have parts of the
        tile that are alike."""
        tile = self.tile
        down, across = tile.rows // tile.own_rows, tile.columns // tile.own_columns
        fitting = [one for one in _LANES if down % one[0] == 0 and across % one[1] == 0]
        if not fitting:
            return None
        best = min(fitting, key=lambda one: one[0] * tile.own_rows + one[1] * tile.own_columns)
        return Lanes(*self.sides, tile.own_rows, tile.own_columns, *best, down // best[0])

    @property
    def ahead(self) -> int:
        return self.tile.stages - 1

    @property
    def registers(self) -> int:
        own = zip((self.tile.own_rows, self.tile.own_columns), self.sides, strict=True)
        # What is deep is read four terms at a time, the other a term ahead.
        read = sum(count * (TOGETHER if side.deep else 2) for count, side in own)
        return self.held + read + _OTHER_REGISTERS + sum(self.copies)

    def fits(self, arch: Arch) -> bool:
        tile, one = self.tile, self.matrices
        numbers = (tile.rows, tile.columns, tile.depth, tile.own_rows, tile.own_columns)
        if min(*numbers, tile.stages - 1, tile.split, tile.band) < 1:
            return False
        if not (arch.copies_aside and one.dtype == "float32"):
            return False
        if any(size % TOGETHER for size in (tile.rows, tile.columns, tile.depth)):
            return False
        if tile.rows % tile.own_rows or tile.columns % tile.own_columns or self.held > _MOST_HELD:
            return False
        if self.lanes is None or self.steps < 1 or one.batches * tile.split > MOST_BLOCKS:
            return False
        return (
            arch.warp <= tile.threads <= arch.threads
            and self.registers <= arch.registers_each(tile.threads)
            and self.shared_bytes <= arch.shared
        )


def vector_of(own: int) -> int:
    """Elements that lie side by side, of a thread's `own`, where an operand is not deep."""
    return gcd(TOGETHER, own)


def possible(matrices: Matrices, arch: Arch) -> Iterator[PlainTile]:
    """Every tile that fits both, and wastes little."""
    own = [(8, 8), (8, 4), (4, 8), (4, 4), (16, 8), (8, 16), (2, 8), (2, 4), (4, 2), (1, 8), (1, 4)]
    sizes = (4, 8, 16, 32, 64, 128, 256)
    for rows, columns, (own_rows, own_columns) in itertools.product(sizes, sizes, own):
        if too_much(matrices.rows, rows, 4) or too_much(matrices.columns, columns, 4):
            continue
        for depth, stages in itertools.product((8, 16, 32, 64), (2, 3, 4)):
            first = PlainTile(rows, columns, depth, stages, own_rows, own_columns)
            if not _MOST_THREADS >= first.threads >= _WARP:
                continue
            if not PlainPlan(matrices, first).fits(arch):
                continue
            for split, band in itertools.product((1, 2, 4, 8, 16, 32), (1, 4, 8)):
                plan = PlainPlan(matrices, replace(first, split=split, band=band))
                if sensible(plan, arch):
                    yield plan.tile


def expected_s(plan: PlainPlan, arch: Arch) -> float:
    """See `tiling.launched_s`."""
    tile = plan.tile
    block = costs.Block(tile.threads, plan.shared_bytes, plan.registers)
    resident = block.resident(arch, plan.blocks)
    warps = tile.threads / arch.warp
    products = warps * plan.held * tile.depth
    reads, read_bytes = 0.0, 0.0
    for own, side in zip((tile.own_rows, tile.own_columns), plan.sides, strict=True):
        together = TOGETHER if side.deep else vector_of(own)
        count = warps * own * tile.depth / together
        reads += count
        read_bytes += count * max(costs.SHARED_BYTES, _READ_BYTES * together / TOGETHER)
    # Whatever else warps begin, they do not multiply meanwhile.
    multiplying = max(products * arch.warp / arch.lanes, (products + reads) / _BEGUN)
    parts = (
        multiplying / block.begun(arch, resident),
        (read_bytes + plan.stage_bytes) / costs.SHARED_BYTES,
        plan.stage_bytes / costs.FETCHED_BYTES,
        sum(plan.copies) * warps * costs.COPY,
    )
    return launched_s(plan, arch, resident, parts, plan.ahead)
