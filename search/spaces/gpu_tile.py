"""Tiles of a contraction on a GPU: what a block, a warp and a thread have of it.

TVM's sketches of multi-level tiling have the right structure and, of a 1024x1024 product, one valid
point in fifty: drawn freely, blocks have too many threads or more shared memory than there is. So
their factors are drawn here, within the limits of the architecture, and come in the order of what a
model of the hardware expects, from specifications.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

from tunefarm.devices.gpu import STATIC_SHARED, Arch
from tunefarm.search.space import Knob, KnobKind, Modelled, Point, Value
from tunefarm.search.spaces import gpu_costs as costs

SPATIAL, REDUCTION = 5, 3
"""Factors of a loop of the result, outermost first (of blocks, of virtual threads, of threads, and
two inside a thread), and of a loop that is summed over (the middle and inner ones make a step)."""
DRAWS, KEPT = 4000, 512
MOST_SUMS = 128
"""That a thread holds in registers."""
_SEEN = 0.5
"""How much of what is shorter does not hide behind the longest, as on processors, where it was
measured; so larger tiles of a thread win where multiplying is the bound anyway."""
_MOST_COPIED = 16
"""Elements, and bytes, that a thread copies at once."""
_BARRIER = 60.0
"""Cycles of a step until its block's threads have met twice."""
_FRAGMENT = 16
"""Rows and columns of what tensor cores multiply; their loops count these."""


@dataclass(frozen=True)
class Tile:
    """What one block computes, in elements.

    Attributes:
        blocks: how many there are.
        threads: of a block.
        rows, columns: of a block; the columns are the last loop of the result.
        own_rows, own_columns: of a thread, or of a warp on tensor cores.
        step: summed over between two loads of shared memory; depth: in all.
        element_bytes: of an element of the operands.
        stages: steps whose operands are in shared memory at a time.
        vectors: elements of each operand that a thread copies at once.
    """

    blocks: int
    threads: int
    rows: int
    columns: int
    own_rows: int
    own_columns: int
    step: int
    depth: int
    tensor: bool
    element_bytes: int
    stages: int = 1
    vectors: tuple[int, int] = (1, 1)

    @property
    def shared_bytes(self) -> int:
        """Both operands of all stages; on tensor cores the sums pass through it as well."""
        operands = self.stages * (self.rows + self.columns) * self.step * self.element_bytes
        sums = self.rows * self.columns * costs.SUM_BYTES if self.tensor else 0
        return max(operands, sums)

    @property
    def sums(self) -> int:
        """Registers of a thread for what it sums up."""
        own = self.own_rows * self.own_columns
        return own // 32 if self.tensor else own

    def fits(self, arch: Arch) -> bool:
        return (
            arch.warp <= self.threads <= arch.threads
            and self.sums <= MOST_SUMS
            and max(self.vectors) * self.element_bytes <= _MOST_COPIED
            and all(length & (length - 1) == 0 for length in self.vectors)  # three are no copy
            and self.shared_bytes <= (arch.shared if self.tensor else STATIC_SHARED)
            and self.threads * (self.sums + 32) <= arch.registers
        )


def expected_s(tile: Tile, arch: Arch) -> float:
    """Seconds at 1.4 GHz: to order tiles by, not to quote. Steps are bound by multiplying, by
    shared memory or by what they fetch, or, where too few blocks share a multiprocessor, by waiting
    for it; the last wave of blocks may be half empty."""
    block = costs.Block(tile.threads, tile.shared_bytes, tile.sums + 32)
    resident = block.resident(arch, tile.blocks)
    steps = tile.depth / tile.step
    products = tile.rows * tile.columns * tile.depth
    lanes = arch.tensor_lanes if tile.tensor else arch.lanes
    busy_share = (block.awake if tile.tensor else block.begun)(arch, resident)
    multiplying = products / lanes / busy_share
    units = tile.threads // arch.warp if tile.tensor else tile.threads
    read = units * (tile.own_rows + tile.own_columns) * tile.depth * tile.element_bytes
    fetched = (tile.rows + tile.columns) * tile.depth * tile.element_bytes
    left, right = tile.vectors
    copies = (tile.rows / left + tile.columns / right) * tile.depth / arch.warp
    parts = (
        multiplying,
        read / costs.SHARED_BYTES,
        fetched / costs.FETCHED_BYTES,
        copies * costs.COPY,
    )
    busy = costs.overlapped(parts, _SEEN) / steps
    step = max(resident * busy, busy + costs.LATENCY / tile.stages) + _BARRIER
    last = costs.BEGIN + resident * costs.stored(tile.rows, tile.columns)
    waves = ceil(tile.blocks / (resident * arch.multiprocessors))
    return waves * (steps * step + last) / costs.HERTZ


def tile_of(
    knobs: Sequence[Knob],
    point: Point,
    tensor: bool,
    element_bytes: int,
    stages: int = 1,
    batches: int = 1,
) -> Tile | None:
    """None for a sketch that is no tiled contraction. `batches`: of products, that no loop of the
    sketch counts."""
    spatial = [v for k, v in zip(knobs, point.values, strict=True) if _is(k, SPATIAL)]
    summed = [v for k, v in zip(knobs, point.values, strict=True) if _is(k, REDUCTION)]
    if not spatial or not summed:
        return None
    loops = [tuple(v) for v in spatial if isinstance(v, tuple)]
    sums = [tuple(v) for v in summed if isinstance(v, tuple)]
    # On tensor cores both outer levels are blocks.
    held = [f[2] * f[3] * f[4] * (1 if tensor else f[1]) for f in loops]
    own = [f[3] * f[4] * (1 if tensor else f[1]) for f in loops]
    size = _FRAGMENT if tensor else 1
    return Tile(
        blocks=batches * prod(f[0] * (f[1] if tensor else 1) for f in loops),
        threads=prod(f[2] for f in loops) * (32 if tensor else 1),
        rows=prod(held[:-1]) * size,
        columns=held[-1] * size,
        own_rows=prod(own[:-1]) * size,
        own_columns=own[-1] * size,
        step=prod(f[1] * f[2] for f in sums) * size,
        depth=prod(prod(f) for f in sums) * size,
        tensor=tensor,
        element_bytes=element_bytes,
        stages=stages,
        vectors=_vectors(knobs, point),
    )


def _vectors(knobs: Sequence[Knob], point: Point) -> tuple[int, int]:
    """The operands' are the last two choices of a vector's length."""
    chosen = [
        knob.options[value]
        for knob, value in zip(knobs, point.values, strict=True)
        if isinstance(value, int) and knob.options and min(knob.options) > 0
        if max(knob.options) <= _MOST_COPIED
    ]
    return (chosen[-2], chosen[-1]) if len(chosen) > 1 else (1, 1)


def _is(knob: Knob, size: int) -> bool:
    return knob.kind is KnobKind.TILE and knob.size == size


def tiles(
    sketch: int,
    knobs: Sequence[Knob],
    tensor: bool,
    element_bytes: int,
    stages: int,
    arch: Arch,
    elements: int = 0,
) -> list[Modelled]:
    """Points of one sketch that fit, best first; deterministic. `elements`: of the result, where
    the sketch's loops may count only some of them, as those for tensor cores leave batches out."""
    if not any(_is(k, SPATIAL) for k in knobs) or not any(_is(k, REDUCTION) for k in knobs):
        return []
    rng = random.Random(sketch)
    counted = prod(k.extent for k in knobs if _is(k, SPATIAL)) * (_FRAGMENT**2 if tensor else 1)
    batches = max(1, elements // counted)
    found: dict[Point, Modelled] = {}
    for _ in range(DRAWS):
        point = Point(sketch, tuple(_draw(knob, tensor, rng) for knob in knobs))
        tile = tile_of(knobs, point, tensor, element_bytes, stages, batches)
        if tile is not None and tile.fits(arch):
            where = (tile.threads, tile.rows, tile.columns, tile.own_rows, tile.own_columns)
            coordinates = tuple(log2(one) for one in (*where, tile.step))
            found[point] = Modelled(point, expected_s(tile, arch), coordinates)
    return sorted(found.values(), key=lambda one: one.seconds)[:KEPT]


def _draw(knob: Knob, tensor: bool, rng: random.Random) -> Value:
    if knob.kind is KnobKind.CHOICE:
        return rng.randrange(knob.size)
    if _is(knob, SPATIAL):
        inner = _divisor(knob.extent, 4 if tensor else 8, rng)
        threads = _divisor(knob.extent // inner, 4 if tensor else 32, rng)
        left = knob.extent // inner // threads
        second = _divisor(left, left if tensor else 2, rng)
        innermost = inner if inner <= (knob.innermost_limit or inner) and rng.random() < 0.5 else 1
        return (left // second, second, threads, inner // innermost, innermost)
    if _is(knob, REDUCTION):
        step = _divisor(knob.extent, 4 if tensor else 32, rng)
        middle = _divisor(step, step, rng)
        return (knob.extent // step, middle, step // middle)
    return None


def _divisor(number: int, most: int, rng: random.Random) -> int:
    return rng.choice([d for d in range(1, min(number, most) + 1) if number % d == 0])
