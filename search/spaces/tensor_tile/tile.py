"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log2

from tunefarm.devices.gpu import Arch
from tunefarm.search.spaces import gpu_costs as costs
from tunefarm.search.spaces.family import Way
from tunefarm.search.spaces.tensor_tile.box import MOST_BOX
from tunefarm.search.spaces.tensor_tile.device_text import (
    GROUP,
    GROUP_ROWS,
    MMA_COLUMNS,
    MMA_ROWS,
    STEP_BYTES,
    Shape,
)
from tunefarm.search.spaces.tensor_tile.engine_text import PAIR
from tunefarm.search.spaces.tensor_tile.layout import ALIGNED, WIDTHS, TileLayout

PAD = 8
"""Sums between the rows that are laid down, so that neighbouring rows begin in other banks."""
VECTOR = 4
"""Columns of the result that a thread finishes at once."""
_OTHER_REGISTERS = 40
"""Of a thread, besides its sums and the fragments that it multiplies."""
_MOST_BLOCKS = 65535
"""Blocks along any but a launch's first dimension."""


_MOST_OF_A_CLUSTER = 8
"""Blocks, on any GPU that has clusters."""

SINGLE_BYTES = 2
"""Of elements that threads read one by one, where no asynchronous copy is so short."""
_WARP = 32


class Cores(enum.StrEnum):
    """Whose instructions multiply: a warp's (from sm_80 on), or Hopper's for groups of four."""

    WARPS = "warps"
    GROUPS = "groups"


class Feed(enum.StrEnum):
    """Who copies operands to shared memory: the threads that multiply, or Hopper's copy engine,
    which one thread beside them asks."""

    THREADS = "threads"
    ENGINE = "engine"


@dataclass(frozen=True)
class Matrices:
    """A product in figures; see `product.Product`. `pieces`: bytes that threads copy at once, or
    `SINGLE_BYTES` of an element alone;
    `boxes`: whether both operands lie as the copy engine wants it."""

    batches: int
    rows: int
    columns: int
    length: int
    dtype: str
    sums: str
    element_bytes: int
    left_deep: bool
    right_deep: bool
    pieces: tuple[int, int]
    boxes: bool = False

    @property
    def readable(self) -> bool:
        """Whether tensor cores' operands can be made of elements that lie so: nothing turns what
        is not in 16 bits on its way to the registers, though of words each thread can read its own
        of the right operand."""
        if self.element_bytes == 2:
            return True
        return self.left_deep and (self.right_deep or self.element_bytes == 4)


@dataclass(frozen=True)
class TensorTile(Way):
    """One point.

    Attributes:
        rows, columns, depth: of a block's tile; the depth is of a step, in elements.
        stages: steps whose operands are in shared memory at a time.
        down, across: warps of a block by rows and columns.
        split: blocks that share one tile's depth.
        band: tiles by rows that come one after another, so that blocks which run at a time have
            operands in common.
        feed: the engine goes with `Cores.GROUPS` alone.
        cluster: blocks, neighbours down, for which the engine fetches the right operand once.
    """

    cores: Cores
    rows: int
    columns: int
    depth: int
    stages: int
    down: int
    across: int
    split: int = 1
    band: int = 1
    feed: Feed = Feed.THREADS
    cluster: int = 1

    def coordinates(self) -> tuple[float, ...]:
        sizes = (self.rows, self.columns, self.depth, self.down * self.across, self.split)
        how = 2.0 * (self.cores is Cores.GROUPS) + (self.feed is Feed.ENGINE) + self.cluster - 1
        return (*(log2(one) for one in sizes), float(self.stages), log2(self.band) / 2, how)

    @property
    def multiplying(self) -> int:
        """Threads of a block that multiply: the first ones."""
        return _WARP * self.down * self.across

    @property
    def threads(self) -> int:
        return self.multiplying + (_WARP if self.feed is Feed.ENGINE else 0)


@dataclass(frozen=True)
class Plan:
    """A tile of these matrices: everything that follows from it."""

    matrices: Matrices
    tile: TensorTile

    @cached_property
    def shape(self) -> Shape:
        one, tile = self.matrices, self.tile
        return Shape(
            TileLayout(tile.rows, tile.depth, one.element_bytes, one.left_deep),
            TileLayout(tile.columns, tile.depth, one.element_bytes, one.right_deep),
            tile.down,
            tile.across,
            one.dtype,
            one.sums,
            tile.cores is Cores.GROUPS,
        )

    @property
    def stage_bytes(self) -> int:
        return self.shape.left.bytes + self.shape.right.bytes

    @property
    def laid_row(self) -> int:
        """Bytes from one row of the sums to the next, where they are laid down."""
        return (self.tile.columns + PAD) * costs.SUM_BYTES

    @property
    def _tile_bytes(self) -> int:
        """The operands of all stages, and in the end the sums in their place."""
        operands = self.tile.stages * self.stage_bytes
        return max(operands, self.tile.rows * self.laid_row)

    @property
    def barriers_at(self) -> int:
        """Bytes from where tiles begin to the barriers, which are of eight bytes each."""
        return -(-self._tile_bytes // PAIR) * PAIR

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        pairs = self.tile.stages * PAIR if self.tile.feed is Feed.ENGINE else 0
        return self.barriers_at + pairs + ALIGNED

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles by rows and by columns."""
        one, tile = self.matrices, self.tile
        return ceil(one.rows / tile.rows), ceil(one.columns / tile.columns)

    @property
    def steps(self) -> int:
        """Of each block."""
        return ceil(self.matrices.length / self.tile.depth / self.tile.split)

    @property
    def ahead(self) -> int:
        """Steps whose copies are on their way. Where groups copy for themselves, a stage less: the
        step before is still being multiplied while the next copies begin. The engine has its place
        as soon as that step is done."""
        if self.tile.feed is Feed.ENGINE:
            return self.tile.stages - 1
        return self.tile.stages - (2 if self.tile.cores is Cores.GROUPS else 1)

    @property
    def copies(self) -> tuple[int, int]:
        """That a thread does in a step, of each operand."""
        if self.tile.feed is Feed.ENGINE:
            return 0, 0
        left, right = self.matrices.pieces
        threads = self.tile.threads
        return (
            ceil(self.shape.left.bytes / left / threads),
            ceil(self.shape.right.bytes / right / threads),
        )

    @property
    def registers(self) -> int:
        """Of a thread, as far as they can be counted."""
        down, across = self.shape.fragments
        fragments = 2 * (4 * down + 2 * across) if self.tile.cores is Cores.WARPS else 0
        return self.shape.held + fragments + _OTHER_REGISTERS + sum(self.copies)

    def fits(self, arch: Arch) -> bool:
        tile = self.tile
        numbers = (tile.rows, tile.columns, tile.depth, tile.stages, tile.down, tile.across)
        if min(*numbers, tile.split, tile.band, tile.cluster) < 1:
            return False
        shape = self.shape
        if not (arch.copies_aside and self.matrices.readable):
            return False
        down, across = shape.fragments
        if not (shape.left.fits and shape.right.fits and self.ahead >= 1):
            return False
        if tile.rows % (tile.down * MMA_ROWS) or tile.columns % (tile.across * 2 * MMA_COLUMNS):
            return False
        if tile.depth * self.matrices.element_bytes % STEP_BYTES:
            return False
        if tile.cores is Cores.GROUPS and not self._groups_fit(arch):
            return False
        if tile.cores is Cores.WARPS and down * across > 64:
            return False
        if tile.feed is Feed.ENGINE and not self._engine_fits:
            return False
        if tile.cluster > 1 and not self._cluster_fits:
            return False
        if tile.feed is Feed.THREADS and any(size % tile.threads for size in self._pieces):
            return False
        if self.steps < 1 or self.matrices.batches * tile.split > _MOST_BLOCKS:
            return False
        return (
            arch.warp <= tile.threads <= arch.threads
            and self.registers <= arch.registers_each(tile.threads)
            and self.shared_bytes <= arch.shared
        )

    @property
    def _pieces(self) -> tuple[int, int]:
        left, right = self.matrices.pieces
        return self.shape.left.bytes // left, self.shape.right.bytes // right

    def _groups_fit(self, arch: Arch) -> bool:
        tile, one = self.tile, self.matrices
        # Of what is not in 16 bits they read lines that are deep alone.
        read = one.element_bytes == 2 or (one.left_deep and one.right_deep)
        return (
            arch.warp_groups
            and read
            and one.dtype != "float32"
            and tile.across == 1
            and tile.rows == tile.down * MMA_ROWS
            and tile.rows % GROUP_ROWS == 0
            and tile.multiplying % GROUP == 0
            and tile.columns <= 256
        )

    @property
    def _engine_fits(self) -> bool:
        sides = (self.shape.left, self.shape.right)
        return (
            self.matrices.boxes
            and self.tile.cores is Cores.GROUPS
            and all(one.across <= MOST_BOX for one in sides)
        )

    @property
    def _cluster_fits(self) -> bool:
        """Each block's share of a panel begins where the order of bytes does, and all have tiles of
        their own."""
        tile, right = self.tile, self.shape.right
        share, rest = divmod(right.across, tile.cluster)
        return (
            tile.feed is Feed.ENGINE
            and tile.split == 1
            and tile.cluster <= _MOST_OF_A_CLUSTER
            and rest == 0
            and share * right.width % ALIGNED == 0
            and self.grid[0] % tile.cluster == 0
        )


def possible(matrices: Matrices, arch: Arch) -> Iterator[TensorTile]:
    """Every tile that fits both, and wastes little."""
    per_step = STEP_BYTES // matrices.element_bytes
    depths = [per_step * n for n in (1, 2, 3, 4)]
    warps = [(d, a) for d, a in itertools.product((1, 2, 4), (1, 2, 4)) if d * a <= 8]
    ways = [(Cores.WARPS, Feed.THREADS), *((Cores.GROUPS, feed) for feed in Feed)]
    for cores, feed in ways:
        arrangements = warps if cores is Cores.WARPS else [(4 * n, 1) for n in (1, 2, 3, 4)]
        for (down, across), rows, columns in itertools.product(
            arrangements, (16, 32, 64, 128, 192, 256), (16, 32, 64, 96, 128, 192, 256)
        ):
            if _too_much(matrices.rows, rows, 16) or _too_much(matrices.columns, columns, 16):
                continue
            for depth, stages in itertools.product(depths, (3, 4, 5, 6)):
                first = TensorTile(cores, rows, columns, depth, stages, down, across, feed=feed)
                if not Plan(matrices, first).fits(arch):
                    continue
                shared = itertools.product((1, 2, 4, 8, 16), (1, 4, 8))
                clusters = [(1, band, 2) for band in (1, 4, 8)] if feed is Feed.ENGINE else []
                for split, band, cluster in (*((*one, 1) for one in shared), *clusters):
                    tile = replace(first, split=split, band=band, cluster=cluster)
                    plan = Plan(matrices, tile)
                    if _sensible(plan, arch) and (cluster == 1 or plan.fits(arch)):
                        yield tile


def _too_much(length: int, tile: int, least: int) -> bool:
    """Whether half of the tile would lie beyond the end."""
    return tile > least and tile >= 2 * length


def _sensible(plan: Plan, arch: Arch) -> bool:
    tile, (down, across) = plan.tile, plan.grid
    if tile.split > 1:
        # Sharing is for products with too few tiles, and has to leave each block some steps.
        fewer = plan.matrices.batches * down * across * (tile.split // 2)
        if fewer >= arch.multiprocessors or plan.steps < 2:
            return False
        if plan.steps * (tile.split - 1) * tile.depth >= plan.matrices.length:
            return False  # the last one would have nothing to do
    if tile.band > 1 and (down < tile.band or across == 1):
        return False
    if tile.band > 1 and plan.matrices.batches * down * across <= arch.multiprocessors:
        return False  # all of them run at a time
    return not (tile.stages > 3 and plan.ahead > plan.steps)


# ------------------------------------------------------------------- what it should take

_SEEN = 0.3
"""How much of what is shorter does not hide behind the longest."""
_BARRIER = 40.0
"""Cycles until a block's threads have met."""
_WARPS_OF_PEAK = 0.62
"""Of Hopper's peak, that a warp's own instructions reach: published measurements agree on some
three fifths."""


def expected_s(plan: Plan, arch: Arch) -> float:
    """Seconds, to order tiles by; nothing of it has been fitted to a GPU."""
    tile, one = plan.tile, plan.matrices
    down, across = plan.grid
    blocks = one.batches * down * across * tile.split
    block = costs.Block(tile.threads, plan.shared_bytes, plan.registers)
    resident = block.resident(arch, blocks)
    peak = arch.tensor_lanes * 2.0 / one.element_bytes
    if arch.warp_groups and tile.cores is Cores.WARPS:
        peak *= _WARPS_OF_PEAK
    multiplying = tile.rows * tile.columns * tile.depth / peak / block.awake(arch, resident)
    each = tile.depth * one.element_bytes
    if tile.cores is Cores.GROUPS:
        read = (tile.rows + tile.rows // GROUP_ROWS * tile.columns) * each
    else:
        read = (tile.across * tile.rows + tile.down * tile.columns) * each
    parts = (
        multiplying,
        (read + plan.stage_bytes) / costs.SHARED_BYTES,
        _fetched(plan) / costs.FETCHED_BYTES,
        sum(plan.copies) * tile.threads / arch.warp * costs.COPY,
    )
    busy = costs.overlapped(parts, _SEEN)
    # What is read element by element is waited for before it is stored, in the same step.
    alone = min(one.pieces) == SINGLE_BYTES and tile.feed is Feed.THREADS
    ahead = 1 if alone else plan.ahead
    step = max(resident * busy, busy + costs.LATENCY / ahead) + _BARRIER
    laid = costs.stored(tile.rows, tile.columns) * (1.0 if tile.split == 1 else 3.0)
    waves = ceil(blocks / (resident * arch.multiprocessors))
    cycles = waves * (plan.steps * step + costs.BEGIN + resident * laid)
    if tile.split > 1:  # another kernel, that waits for all of them
        cycles += 2 * costs.BEGIN
    if tile.band == 1 and down * across > 2 * arch.multiprocessors and down > 1 < across:
        cycles *= 1.05  # operands come from memory again
    return cycles / costs.HERTZ


def _fetched(plan: Plan) -> float:
    """Bytes of a step; the engine takes its time by lines, so shorter ones cost as whole ones."""
    if plan.tile.feed is Feed.THREADS:
        return plan.stage_bytes
    sides = ((plan.shape.left, 1), (plan.shape.right, plan.tile.cluster))
    return sum(one.bytes * WIDTHS[0] / one.width / shared for one, shared in sides)


def figures_of(one: Matrices) -> tuple[float, ...]:
    """As a cost model has them."""
    sizes = (one.batches, one.rows, one.columns, one.length)
    said = (one.element_bytes, one.left_deep, one.right_deep)
    return (*(log2(n) for n in sizes), *(float(n) for n in said))
