"""A point of the family, and what the hardware should make of it; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2

from tunefarm.devices.gpu import Arch
from tunefarm.search.spaces import gpu_costs as costs
from tunefarm.search.spaces.family import Way
from tunefarm.search.spaces.tensor_tile.box import MOST_BOX
from tunefarm.search.spaces.tensor_tile.device_text import GROUP, GROUP_ROWS, MMA_ROWS, Shape
from tunefarm.search.spaces.tensor_tile.engine_text import PAIR
from tunefarm.search.spaces.tensor_tile.layout import ALIGNED, TileLayout
from tunefarm.search.spaces.tensor_tile.tile import Cores, Feed
from tunefarm.search.spaces.tensor_tile.tiling import PAD

_BYTES = 2
"""Of an element."""
_STEP = 16
"""Terms that one instruction multiplies."""
_WARP = 32
_OTHER_REGISTERS = 48
_LAUNCHED = {1: 255, 2: 168, 3: 128}
"""Registers of a thread where that many groups multiply beside one that asks for their operands."""
_MULTIPLYING, _ASKING = {1: 255, 2: 240, 3: 160}, 24
"""The same once the one has given away what it does not need."""


@dataclass(frozen=True)
class Figures:
    """Attention in figures; see `attention.Attention`.

    Attributes:
        depth, columns: of what queries and keys have, and values.
        deep: neighbours along what is summed lie side by side, of queries, keys and values.
        pieces: bytes of each that are copied at once.
        boxes: whether all lie as the copy engine wants it.
    """

    batches: int
    rows: int
    keys: int
    depth: int
    columns: int
    dtype: str
    deep: tuple[bool, bool, bool]
    pieces: tuple[int, int, int]
    boxes: bool = False


@dataclass(frozen=True)
class AttentionTile(Way):
    """One point.

    Attributes:
        warps: of a block; each has queries of its own.
        down: times sixteen queries of a warp.
        keys: of a step.
        stages: steps whose keys and values are in shared memory at a time.
        cores: Hopper's groups have sixteen queries a warp.
        feed: the engine goes with `Cores.GROUPS` alone.
    """

    warps: int
    down: int
    keys: int
    stages: int
    cores: Cores = Cores.WARPS
    feed: Feed = Feed.THREADS

    def coordinates(self) -> tuple[float, ...]:
        sizes = map(log2, (self.warps, self.down, self.keys))
        how = 2.0 * (self.cores is Cores.GROUPS) + (self.feed is Feed.ENGINE)
        return (*sizes, float(self.stages), how)

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.warps * self.down * MMA_ROWS

    @property
    def multiplying(self) -> int:
        """Threads of a block that multiply: the first ones."""
        return _WARP * self.warps

    @property
    def threads(self) -> int:
        return self.multiplying + (GROUP if self.feed is Feed.ENGINE else 0)


@dataclass(frozen=True)
class Plan:
    """A tile of these figures: everything that follows from it."""

    figures: Figures
    tile: AttentionTile

    def _shape(self, left: TileLayout, right: TileLayout) -> Shape:
        of, grouped = self.figures.dtype, self.tile.cores is Cores.GROUPS
        return Shape(left, right, self.tile.warps, 1, of, "float32", grouped)

    @cached_property
    def first(self) -> Shape:
        """Queries by keys; what they have of is filled with zeros."""
        of, tile = self.figures, self.tile
        depth = _in_steps(of.depth)
        return self._shape(
            TileLayout(tile.rows, depth, _BYTES, of.deep[0]),
            TileLayout(tile.keys, depth, _BYTES, of.deep[1]),
        )

    @cached_property
    def second(self) -> Shape:
        """Weights by values; the former are nowhere but in registers."""
        of, tile = self.figures, self.tile
        return self._shape(
            TileLayout(tile.rows, tile.keys, _BYTES, deep=True),
            TileLayout(_in_steps(of.columns), tile.keys, _BYTES, of.deep[2]),
        )

    @property
    def values_at(self) -> int:
        """Bytes from a stage's keys to its values."""
        return self.first.right.aligned_bytes

    @property
    def stage_bytes(self) -> int:
        return self.values_at + self.second.right.aligned_bytes

    @property
    def laid_row(self) -> int:
        """Bytes from one row of the sums to the next, where they are laid down in the end."""
        return (self.second.right.lines + PAD) * costs.SUM_BYTES

    @property
    def barriers_at(self) -> int:
        """Bytes from where tiles begin to the barriers: queries, then all stages; in the end the
        sums in their place."""
        operands = self.first.left.aligned_bytes + self.tile.stages * self.stage_bytes
        return -(-max(operands, self.tile.rows * self.laid_row) // PAIR) * PAIR

    @property
    def shared_bytes(self) -> int:
        """Of a block; a pair of barriers for each stage, and one for the queries."""
        pairs = (self.tile.stages + 1) * PAIR if self.tile.feed is Feed.ENGINE else 0
        return self.barriers_at + pairs + ALIGNED

    @property
    def blocks(self) -> int:
        """Of a batch."""
        return ceil(self.figures.rows / self.tile.rows)

    @property
    def steps(self) -> int:
        return ceil(self.figures.keys / self.tile.keys)

    @property
    def ahead(self) -> int:
        """Steps whose copies are on their way: all of them where they have places of their own;
        else a stage is still being read, or two where groups multiply beside what follows."""
        if self.tile.stages >= self.steps:
            return self.steps
        if self.tile.feed is Feed.ENGINE:
            return self.tile.stages - 1
        return self.tile.stages - (2 if self.tile.cores is Cores.GROUPS else 1)

    @property
    def operands_held(self) -> tuple[int, int]:
        """Registers of a thread that have its queries, which groups read from shared memory, and
        those that have its weights."""
        each = self.tile.down * 4
        queries = 0 if self.tile.cores is Cores.GROUPS else self.first.steps * each
        return queries, self.second.steps * each

    @property
    def registers(self) -> int:
        """Of a thread, as far as they can be counted."""
        of_rows = self.tile.down * 2 * 2
        sums = self.first.held + self.second.held
        return sum(self.operands_held) + sums + of_rows + _OTHER_REGISTERS

    @property
    def shared_registers(self) -> tuple[int, int] | None:
        """Registers of a thread that multiplies, and of one beside them, where the latter give some
        to the former; None where all have enough."""
        groups = self.first.groups
        if self.tile.feed is Feed.THREADS or self.registers <= _LAUNCHED[groups]:
            return None
        return _MULTIPLYING[groups], _ASKING

    def fits(self, arch: Arch) -> bool:
        tile, sides = self.tile, (self.first.left, self.first.right, self.second.right)
        if min(tile.warps, tile.down, tile.keys) < 1 or tile.keys % _STEP:
            return False
        if not 1 <= tile.stages <= self.steps or self.ahead < 1:
            return False
        if tile.cores is Cores.GROUPS and not self._groups_fit(arch):
            return False
        if not arch.copies_aside or not all(one.lies for one in sides):
            return False
        if tile.feed is Feed.ENGINE and not self._engine_fits:
            return False
        return (
            tile.threads <= arch.threads
            and self.registers <= self._most_registers(arch)
            and self.shared_bytes <= arch.shared
        )

    def _groups_fit(self, arch: Arch) -> bool:
        tile = self.tile
        widest = max(tile.keys, self.second.right.lines)
        whole = tile.multiplying % GROUP == 0
        return arch.warp_groups and tile.down == 1 and whole and widest <= 256

    def _most_registers(self, arch: Arch) -> int:
        most = _MULTIPLYING.get(self.first.groups, 0) if self.tile.feed is Feed.ENGINE else 0
        return max(most, arch.registers_each(self.tile.threads))

    @property
    def _engine_fits(self) -> bool:
        sides = (self.first.left, self.first.right, self.second.right)
        return (
            self.figures.boxes
            and self.tile.cores is Cores.GROUPS
            and self.first.groups in _LAUNCHED
            and all(one.across <= MOST_BOX for one in sides)
        )


def _in_steps(size: int) -> int:
    return ceil(size / _STEP) * _STEP


def possible(of: Figures, arch: Arch) -> Iterator[AttentionTile]:
    """Every tile that fits, and of which no more than half lies beyond an end."""
    warps = itertools.product([Cores.WARPS], (1, 2, 4, 8), (1, 2), (16, 32, 64, 96, 128))
    groups = itertools.product([Cores.GROUPS], (4, 8, 12), (1,), (32, 64, 96, 128, 160, 192))
    for cores, many, down, keys in itertools.chain(warps, groups):
        feeds = Feed if cores is Cores.GROUPS else [Feed.THREADS]
        for stages, feed in itertools.product((1, 2, 3, 4), feeds):
            tile = AttentionTile(many, down, keys, stages, cores, feed)
            plan = Plan(of, tile)
            if tile.rows > MMA_ROWS and tile.rows >= 2 * of.rows:
                continue
            if keys > _STEP and keys >= 2 * of.keys:
                continue
            if plan.fits(arch):
                yield tile


# ------------------------------------------------------------------- what it should take

_SEEN = 0.3
"""How much of what is shorter does not hide behind the longest."""
_BARRIER = 40.0
"""Cycles until a block's threads have met."""
_WARPS_OF_PEAK = 0.62
"""Of Hopper's peak, that a warp's own instructions reach; as in `tensor_tile.tile`."""
_EXPONENTIALS = 16.0
"""That a multiprocessor computes in a cycle, by NVIDIA's tables of throughput."""
_OPERATIONS = 6.0
"""Instructions for a score besides: scaled, compared, subtracted, added up, rounded."""


def expected_s(plan: Plan, arch: Arch) -> float:
    """Seconds, to order tiles by, from specifications."""
    tile, of = plan.tile, plan.figures
    blocks = of.batches * plan.blocks
    block = costs.Block(tile.threads, plan.shared_bytes, plan.registers)
    resident = block.resident(arch, blocks)
    awake = block.awake(arch, resident)
    peak: float = arch.tensor_lanes
    read = tile.warps * plan.stage_bytes
    if tile.cores is Cores.GROUPS:
        read = plan.first.groups * (plan.stage_bytes + GROUP_ROWS * plan.first.left.depth * _BYTES)
    elif arch.warp_groups:
        peak *= _WARPS_OF_PEAK
    deep = plan.first.right.depth + plan.second.right.lines
    scores = tile.rows * tile.keys
    copied = 0.0 if tile.feed is Feed.ENGINE else plan.stage_bytes / min(of.pieces)
    parts = (
        scores * deep / peak / awake,
        scores / _EXPONENTIALS / awake,
        scores * _OPERATIONS / arch.lanes / awake,
        (read + plan.stage_bytes) / costs.SHARED_BYTES,
        plan.stage_bytes / costs.FETCHED_BYTES,
        copied / arch.warp * costs.COPY,
    )
    busy = costs.overlapped(parts, _SEEN)
    step = max(resident * busy, busy + costs.LATENCY / plan.ahead) + _BARRIER
    laid = costs.stored(tile.rows, plan.second.right.lines)
    begin = costs.BEGIN + costs.LATENCY + plan.first.left.bytes / costs.FETCHED_BYTES
    waves = ceil(blocks / (resident * arch.multiprocessors))
    told_s = costs.TOLD_S if tile.feed is Feed.ENGINE else 0.0
    return told_s + waves * (plan.steps * step + begin + resident * laid) / costs.HERTZ


def figures_of(of: Figures) -> tuple[float, ...]:
    """As a cost model has them."""
    sizes = (of.batches, of.rows, of.keys, of.depth, of.columns)
    return (*map(log2, sizes), *(float(one) for one in of.deep))
