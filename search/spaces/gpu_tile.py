"""Tiles of a contraction on a GPU: what a block, a warp and a thread have of it.

TVM's sketches of multi-level tiling have the right structure and, of a 1024x1024 product, one valid
point in fifty: drawn freely, blocks have too many threads or more shared memory than there is. So
their factors are drawn here, within the limits of the architecture, and come in the order of what a
model of the hardware expects. Nothing of it has been fitted to a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod

from tunefarm.devices.gpu import STATIC_SHARED, Arch
from tunefarm.search.space import Knob, KnobKind, Modelled, Point, Value

SPATIAL, REDUCTION = 5, 3
"""Factors of a loop of the result, outermost first (of blocks, of virtual threads, of threads, and
two inside a thread), and of a loop that is summed over (the middle and inner ones make a step)."""
DRAWS, KEPT = 4000, 512
MOST_SUMS = 128
"""That a thread holds in registers."""
_LANES, _TENSOR_LANES, _SHARED_BYTES, _GLOBAL_BYTES = 128, 1024, 128, 14.0
"""Multiply-adds, and bytes of shared and of device memory, of a multiprocessor in a cycle."""
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
        element_bytes, sum_bytes: of an element of the operands, and of a sum.
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
    sum_bytes: int = 4

    @property
    def shared_bytes(self) -> int:
        """Both operands of a step; on tensor cores the sums pass through it as well."""
        operands = (self.rows + self.columns) * self.step * self.element_bytes
        sums = self.rows * self.columns * self.sum_bytes if self.tensor else 0
        return max(operands, sums)

    @property
    def sums(self) -> int:
        """Registers of a thread for what it sums up."""
        own = self.own_rows * self.own_columns
        return own * self.sum_bytes // (4 * 32) if self.tensor else own

    def fits(self, arch: Arch) -> bool:
        return (
            arch.warp <= self.threads <= arch.threads
            and self.sums <= MOST_SUMS
            and self.shared_bytes <= (arch.shared if self.tensor else STATIC_SHARED)
            and self.threads * (self.sums + 32) <= arch.registers
        )


def expected_s(tile: Tile, arch: Arch) -> float:
    """Seconds at 1.4 GHz: to order tiles by, not to quote. A block is bound by multiplying, by
    shared or by device memory; few warps hide little; the last wave of blocks may be half empty."""
    together = max(
        1,
        min(
            arch.threads_of_all // tile.threads,
            arch.shared_of_all // max(1, tile.shared_bytes),
            arch.registers // (tile.threads * (tile.sums + 32)),
        ),
    )
    products = tile.rows * tile.columns * tile.depth
    multiplying = products / (_TENSOR_LANES if tile.tensor else _LANES)
    units = tile.threads // arch.warp if tile.tensor else tile.threads
    read = units * (tile.own_rows + tile.own_columns) * tile.depth * tile.element_bytes
    fetched = (tile.rows + tile.columns) * tile.depth * tile.element_bytes
    busy = max(multiplying, read / _SHARED_BYTES, fetched / _GLOBAL_BYTES)
    steps = tile.depth / tile.step
    hidden = min(1.0, together * tile.threads / 512)
    cycles = together * busy / hidden + steps * _BARRIER
    return ceil(tile.blocks / (together * arch.multiprocessors)) * cycles / 1.4e9


def tile_of(knobs: Sequence[Knob], point: Point, tensor: bool, element_bytes: int) -> Tile | None:
    """None for a sketch that is no tiled contraction."""
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
        blocks=prod(f[0] * (f[1] if tensor else 1) for f in loops),
        threads=prod(f[2] for f in loops) * (32 if tensor else 1),
        rows=prod(held[:-1]) * size,
        columns=held[-1] * size,
        own_rows=prod(own[:-1]) * size,
        own_columns=own[-1] * size,
        step=prod(f[1] * f[2] for f in sums) * size,
        depth=prod(prod(f) for f in sums) * size,
        tensor=tensor,
        element_bytes=element_bytes,
    )


def _is(knob: Knob, size: int) -> bool:
    return knob.kind is KnobKind.TILE and knob.size == size


def tiles(
    sketch: int, knobs: Sequence[Knob], tensor: bool, element_bytes: int, arch: Arch
) -> list[Modelled]:
    """Points of one sketch that fit, best first; deterministic."""
    if not any(_is(k, SPATIAL) for k in knobs) or not any(_is(k, REDUCTION) for k in knobs):
        return []
    rng = random.Random(sketch)
    found: dict[Point, Modelled] = {}
    for _ in range(DRAWS):
        point = Point(sketch, tuple(_draw(knob, tensor, rng) for knob in knobs))
        tile = tile_of(knobs, point, tensor, element_bytes)
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
