"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import TypeVar

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
from tunefarm.search.spaces.tensor_tile.tiling import (
    MOST_BLOCKS,
    PAD,
    SINGLE_BYTES,
    Matrices,
    Tiling,
    launched_s,
    sensible,
    too_much,
)

T = TypeVar("T")

_OTHER_REGISTERS = 40
"""Of a thread, besides its sums and the fragments that it multiplies."""
_TURNED_PAD = 4
"""Sums between rows that are laid down column by column: two threads meet in a bank, and not four;
pieces of sixteen bytes allow no less."""
_MOST_OF_A_CLUSTER = 8
"""Blocks, on any GPU that has clusters."""

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
class Plan(Tiling[TensorTile]):
    """For tensor cores."""

    @cached_property
    def sides(self) -> tuple[TileLayout, TileLayout]:
        one, tile = self.matrices, self.tile
        return (
            TileLayout(tile.rows, tile.depth, one.element_bytes, one.left_deep),
            TileLayout(tile.columns, tile.depth, one.element_bytes, one.right_deep),
        )

    @cached_property
    def shape(self) -> Shape:
        one, tile = self.matrices, self.tile
        grouped = tile.cores is Cores.GROUPS
        sides = self.in_turn(*self.sides)
        return Shape(*sides, tile.down, tile.across, one.dtype, one.sums, grouped, self.turned)

    @property
    def turned(self) -> bool:
        """Groups read words that lie along the sum alone, so a right operand of others takes the
        left one's place, which threads read for them."""
        one = self.matrices
        is_of_words = one.element_bytes == 4 and not one.right_deep
        return is_of_words and self.tile.cores is Cores.GROUPS

    def in_turn(self, left: T, right: T) -> tuple[T, T]:
        """What is of either operand, in the order in which they are multiplied."""
        return (right, left) if self.turned else (left, right)

    @property
    def laid_row(self) -> int:
        pad = _TURNED_PAD if self.turned else PAD
        return (self.tile.columns + pad) * costs.SUM_BYTES

    @property
    def held(self) -> int:
        return self.shape.held

    @property
    def barriers_at(self) -> int:
        """Bytes from where tiles begin to the barriers, which are of eight bytes each."""
        return -(-self.tile_bytes // PAIR) * PAIR

    @property
    def shared_bytes(self) -> int:
        pairs = self.tile.stages * PAIR if self.tile.feed is Feed.ENGINE else 0
        return self.barriers_at + pairs + ALIGNED

    @property
    def ahead(self) -> int:
        """Where groups copy for themselves, a stage less than is free: the step before is still
        being multiplied while the next copies begin. The engine has its place as soon as that step
        is done."""
        if self.tile.feed is Feed.ENGINE:
            return self.tile.stages - 1
        return self.tile.stages - (2 if self.tile.cores is Cores.GROUPS else 1)

    @property
    def copies(self) -> tuple[int, int]:
        return (0, 0) if self.tile.feed is Feed.ENGINE else super().copies

    @property
    def registers(self) -> int:
        down, across = self.shape.fragments
        fragments = 2 * (4 * down + 2 * across) if self.tile.cores is Cores.WARPS else 0
        if self.turned:
            fragments = 2 * 4 * self.shape.steps
        return self.held + fragments + _OTHER_REGISTERS + sum(self.copies)

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
        lines, beside = self.in_turn(tile.rows, tile.columns)
        if lines % (tile.down * MMA_ROWS) or beside % (tile.across * 2 * MMA_COLUMNS):
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
        if tile.feed is Feed.THREADS and any(size % tile.threads for size in self.pieces):
            return False
        if self.steps < 1 or self.matrices.batches * tile.split > MOST_BLOCKS:
            return False
        return (
            arch.warp <= tile.threads <= arch.threads
            and self.registers <= arch.registers_each(tile.threads)
            and self.shared_bytes <= arch.shared
        )

    def _groups_fit(self, arch: Arch) -> bool:
        tile, one = self.tile, self.matrices
        lines, beside = self.in_turn(tile.rows, tile.columns)
        # Of what is not in 16 bits they read lines that are deep alone.
        read = one.element_bytes == 2 or (one.left_deep and (one.right_deep or self.turned))
        # They cut words off, and the engine rounds them.
        rounded = one.dtype != "float32" or tile.feed is Feed.ENGINE
        return (
            arch.warp_groups
            and read
            and rounded
            and tile.across == 1
            and lines == tile.down * MMA_ROWS
            and lines % GROUP_ROWS == 0
            and tile.multiplying % GROUP == 0
            and beside <= 256
        )

    @property
    def _engine_fits(self) -> bool:
        return (
            self.matrices.boxes
            and self.tile.cores is Cores.GROUPS
            and all(one.across <= MOST_BOX for one in self.sides)
        )

    @property
    def _cluster_fits(self) -> bool:
        """Each block's share of a panel begins where the order of bytes does, and all have tiles of
        their own."""
        tile, (_, right) = self.tile, self.sides
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
            if too_much(matrices.rows, rows, 16) or too_much(matrices.columns, columns, 16):
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
                    if sensible(plan, arch) and (cluster == 1 or plan.fits(arch)):
                        yield tile


# ------------------------------------------------------------------- what it should take

_WARPS_OF_PEAK = 0.62
"""Of Hopper's peak, that a warp's own instructions reach: published measurements agree on some
three fifths."""


def expected_s(plan: Plan, arch: Arch) -> float:
    """See `tiling.launched_s`."""
    tile, one = plan.tile, plan.matrices
    block = costs.Block(tile.threads, plan.shared_bytes, plan.registers)
    resident = block.resident(arch, plan.blocks)
    peak = arch.tensor_lanes * 2.0 / one.element_bytes
    if arch.warp_groups and tile.cores is Cores.WARPS:
        peak *= _WARPS_OF_PEAK
    multiplying = tile.rows * tile.columns * tile.depth / peak / block.awake(arch, resident)
    each = tile.depth * one.element_bytes
    if tile.cores is Cores.GROUPS:
        lines, beside = plan.in_turn(tile.rows, tile.columns)
        read = (lines + lines // GROUP_ROWS * beside) * each
    else:
        read = (tile.across * tile.rows + tile.down * tile.columns) * each
    parts = (
        multiplying,
        (read + plan.stage_bytes) / costs.SHARED_BYTES,
        _fetched(plan) / costs.FETCHED_BYTES,
        sum(plan.copies) * tile.threads / arch.warp * costs.COPY,
    )
    # What is read element by element is waited for before it is stored, in the same step.
    alone = min(one.pieces) == SINGLE_BYTES and tile.feed is Feed.THREADS
    begun_s = costs.TOLD_S if tile.feed is Feed.ENGINE else 0.0
    if tile.cluster > 1:
        begun_s += costs.MET_S
    return begun_s + launched_s(plan, arch, resident, parts, 1 if alone else plan.ahead)


def _fetched(plan: Plan) -> float:
    """Bytes of a step; the engine takes its time by lines, so shorter ones cost as whole ones."""
    if plan.tile.feed is Feed.THREADS:
        return plan.stage_bytes
    sides = zip(plan.sides, (1, plan.tile.cluster), strict=True)
    return sum(one.bytes * WIDTHS[0] / one.width / shared for one, shared in sides)
