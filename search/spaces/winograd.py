"""Convolutions by minimal filtering (`search/kernels/winograd.py`): three parallel passes.

Tiles are read and transformed a vector of channels at a time, wholly in registers and the
first-level cache; the products at all points are one batched product of matrices, done in register
tiles; the last pass transforms back and applies what follows the convolution.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.kernels.cook_toom import LARGEST
from tunefarm.search.kernels.winograd import (
    FILTERS,
    PRODUCT,
    RESULT,
    SIGNAL,
    Convolution,
    convolution_of,
    filtered,
)
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Reduction, reduction_at, stages_of
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware
from tunefarm.search.spaces.register_tile import may_unroll, register_tiles
from tunefarm.search.spaces.tile import Before, Tile, in_order, longest
from tunefarm.search.spaces.tile_estimate import estimate
from tunefarm.search.spaces.tile_schedule import schedule_tile

SIZES = (2, 4, 6)
"""Results of a tile, each way."""
TILES = 24
"""Register tiles of each size that are kept, the hardware model's best."""
TRANSFORM = 5.0
"""Cycles of an element of a tile, in vectors, to be transformed once."""


@dataclass(frozen=True)
class Filtered(Way):
    """One point.

    Attributes:
        size: results of a tile, each way.
        lanes_in, lanes_out: elements of the transforms' vectors, of the image's channels and of
            the result's.
        rows, vectors, lanes, unroll, columns_first, flat: of the product's register tile, see
            `Tile`.
    """

    size: int
    lanes_in: int
    lanes_out: int
    rows: int
    vectors: int
    lanes: int
    unroll: int
    columns_first: bool
    flat: bool

    @property
    def tile(self) -> Tile:
        return Tile(
            self.rows,
            1,
            self.vectors,
            self.lanes,
            self.unroll,
            self.columns_first,
            self.flat,
            True,
            Before.APART,
        )

    def coordinates(self) -> tuple[float, ...]:
        counts = (self.size, self.rows, self.vectors, self.lanes, self.unroll)
        return (*map(log2, counts), 2.0 * self.columns_first, 2.0 * self.flat)


@dataclass(frozen=True)
class Algorithm:
    """The kernel rewritten for one size of tiles.

    Attributes:
        before: names of the stages that make the image.
        after: names of the stage that puts the image together, and of those that follow it.
    """

    size: int
    workload: Any
    product: Reduction
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"winograd {self.size}"


def winograd_space(workload: Any, target: Target) -> FewWays[Filtered] | None:
    """The space of `workload`, None where it is no convolution that can be done so."""
    if target.kind != "llvm":
        return None
    convolution, machine = convolution_of(workload), hardware(target)
    if convolution is None:
        return None
    algorithms = {
        size: _algorithm(workload, convolution, size)
        for size in SIZES
        if size + convolution.taps - 1 <= LARGEST
    }
    ways = [
        way for algorithm in algorithms.values() for way in _ways(convolution, algorithm, machine)
    ]
    if not ways:
        return None
    return FewWays(
        "winograd",
        workload,
        ways,
        lambda one: _estimate(convolution, algorithms[one.size], one, machine),
        lambda schedule, one: schedule_filtered(schedule, algorithms[one.size], one),
        (
            *(log2(extent) for extent in (*convolution.image, convolution.filters)),
            float(convolution.taps),
            float(len(convolution.form.after)),
            *machine.figures(),
        ),
        lambda one: algorithms[one.size].workload,
        lambda one: algorithms[one.size].name,
    )


def _algorithm(workload: Any, convolution: Convolution, size: int) -> Algorithm:
    rewritten = filtered(workload, convolution, size)
    (block,) = (stage for stage in stages_of(rewritten) if stage.name == PRODUCT)
    product = reduction_at(block, frozenset(FILTERS))
    assert product is not None, "a batched product of matrices"
    form = convolution.form
    return Algorithm(
        size,
        rewritten,
        product,
        tuple(stage.name for stage in (*form.before, *form.copies)),
        (RESULT[-1], *(stage.name for stage in form.after)),
    )


def _ways(convolution: Convolution, algorithm: Algorithm, machine: Hardware) -> Iterator[Filtered]:
    form = algorithm.product
    channels, filters = convolution.image[3], convolution.filters
    lanes_in = next((w for w in machine.widths() if channels % w == 0), 0)
    lanes_out = next((w for w in machine.widths() if filters % w == 0), 0)
    if not lanes_in or not lanes_out:
        return
    unrolls = [u for u in (1, 2, 4) if form.extent(longest(form)) % u == 0]
    found = []
    tiles = register_tiles(form, machine)
    for (rows, _, vectors, lanes), unroll, columns_first, flat in itertools.product(
        tiles, unrolls, (False, True), (False, True)
    ):
        one = Filtered(
            algorithm.size, lanes_in, lanes_out, rows, vectors, lanes, unroll, columns_first, flat
        )
        tile = one.tile
        if unroll > 1 and not may_unroll(form, tile, machine):
            continue
        if tile.pads(form) or not in_order(form, tile):
            continue
        found.append((estimate(form, tile, machine), one))
    found.sort(key=lambda pair: pair[0])
    yield from (one for _, one in found[:TILES])


def _estimate(
    convolution: Convolution, algorithm: Algorithm, one: Filtered, machine: Hardware
) -> float:
    """Seconds at 3 GHz: the product, and the transforms before and after it."""
    points = (one.size + convolution.taps - 1) ** 2
    down, across = convolution.tiles(one.size)
    vectors = convolution.image[3] / one.lanes_in + convolution.filters / one.lanes_out
    transforms = convolution.image[0] * down * across * vectors * points * TRANSFORM
    cycles = transforms / machine.cores + 2 * LAUNCH
    return estimate(algorithm.product, one.tile, machine) + cycles / 3e9


def schedule_filtered(schedule: Any, algorithm: Algorithm, one: Filtered) -> None:
    """Apply `one` to the rewritten, unscheduled kernel in `schedule`."""
    for name in (*algorithm.before, FILTERS[0], *algorithm.after[:-1]):
        schedule.compute_inline(schedule.get_sblock(name))
    schedule_tile(schedule, algorithm.product, one.tile, schedule.get_sblock(FILTERS[1]))
    _schedule_signal(schedule, one)
    _schedule_result(schedule, one, algorithm.after[-1])


def _schedule_signal(schedule: Any, one: Filtered) -> None:
    """A task for each tile; of it, one vector of channels after another."""
    *inner, last = SIGNAL
    block = schedule.get_sblock(last)
    row, column, tile, channel = schedule.get_loops(block)
    vectors, lane = schedule.split(channel, [None, one.lanes_in])
    schedule.reorder(tile, vectors, row, column, lane)
    for name in reversed(inner):
        _in_registers(schedule, schedule.get_sblock(name), vectors)
    _unroll(schedule, row, column, lane)
    schedule.parallel(tile)


def _schedule_result(schedule: Any, one: Filtered, last: str) -> None:
    """The same for the way back, and for what follows the convolution: `last` stores it."""
    batch, y, x, channel = schedule.get_loops(schedule.get_sblock(last))
    down, row = schedule.split(y, [None, one.size])
    across, column = schedule.split(x, [None, one.size])
    vectors, lane = schedule.split(channel, [None, one.lanes_out])
    schedule.reorder(batch, down, across, vectors, row, column, lane)
    for name in reversed(RESULT[:2]):
        _in_registers(schedule, schedule.get_sblock(name), vectors)
    _unroll(schedule, row, column, lane)
    schedule.parallel(schedule.fuse(batch, down, across))


def _in_registers(schedule: Any, block: Any, loop: Any) -> None:
    """Compute `block` in `loop`, unrolled, a vector at a time."""
    schedule.compute_at(block, loop, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    *loops, lane = schedule.get_loops(block)[-3:]
    _unroll(schedule, *loops, lane)


def _unroll(schedule: Any, *loops: Any) -> None:
    for loop in loops[:-1]:
        schedule.unroll(loop)
    schedule.vectorize(loops[-1])
