"""What a model of the hardware expects of a tile: to order points by, not to quote. Pure."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2, prod

from tunefarm.search.spaces.form import Reduction
from tunefarm.search.spaces.hardware import LAUNCH, Hardware
from tunefarm.search.spaces.tile import (
    Before,
    Tile,
    distinct,
    longest,
    parallel_tasks,
    tile_counts,
    tiled_rows,
)

# Fitted to some 1600 random points of 45 kernels, on one processor (docs/benchmarks.md).
OVERLAP = 0.5
"""How much of the shorter of multiplying and loading is not hidden behind the longer."""
CUT_NEAR = 0.5
"""Cycles of an element that is cut out of a padded result while it is in a core's own cache; 1 in a
pass of its own."""
STORE, FLAT = 4.0, 400.0
"""Cycles to finish an accumulator, and what a tile costs that is a task of its own."""

STREAMS = 0.65
"""What the time to fetch weights from far shrinks to where each vector of a tile is a stream of its
own (docs/adr/0049-streams-of-weights.md)."""


def estimate(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by, not to quote.

    A step of the reduction is bound by multiply-adds, by what comes from the second-level cache, or
    by the latency of a chain of additions; a tile adds its stores and the loops around it; uneven
    shares of the cores and what is read again from the outer caches stretch the whole.
    """
    row_tiles, column_tiles = tile_counts(form, tile)
    tasks = parallel_tasks(form, tile)
    share = ceil(tasks / machine.cores) / tasks
    finish = tile.accumulators * (STORE + len(form.after)) + (FLAT if tile.flat else STORE)
    steps = row_tiles * column_tiles * form.depth * share
    cycles = steps * _step(form, tile, machine) + row_tiles * column_tiles * finish * share
    cycles += LAUNCH if tasks > 1 else 0.0
    fetched = refetched(form, tile, machine, row_tiles, column_tiles)
    streams = tile.streams and 4 * prod(form.vector.shape) > machine.l2
    cycles += fetched / machine.bytes_per_cycle * (STREAMS if streams else 1.0)
    cycles += stages_before(form, tile, machine, row_tiles, column_tiles)
    if pads := tile.pads(form):
        cut = CUT_NEAR if tile.cuts_near(form) else 1.0
        cycles += cut * form.points_written / machine.cores
        if tile.flat and set(pads) != {form.column}:
            cycles += _other_bytes(form) / 4 / machine.cores
    if tile.pack and not form.vector.free:
        cycles += 2.0 * prod(form.vector.shape) / machine.cores
    return cycles / 3e9


def _step(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Cycles of one step of the reduction in one tile."""
    multiplies = tile.accumulators * machine.registers_of(tile.lanes) / machine.fma
    loads = loads_of_step(form, tile, machine)
    bound = max(multiplies, loads, machine.latency) + OVERLAP * min(multiplies, loads)
    inline = 0.5 if form.before and tile.before is Before.INLINE else 0.0
    return bound + inline + 1.0 / tile.unroll


SCATTERED = 0.6
"""Cycles of an element that is loaded alone into its place in a vector."""
HALO = 3.0
"""How much more than its own share of the input a tile of a convolution reads, about."""


def stages_before(
    form: Reduction, tile: Tile, machine: Hardware, row_tiles: int, column_tiles: int
) -> float:
    """Cycles for the stages before the reduction."""
    points = sum(stage.points for stage in form.before) / machine.lanes / machine.cores
    if not points or tile.before is Before.INLINE:
        return 0.0
    if tile.before is Before.APART:
        return 2 * points + LAUNCH
    again = column_tiles if tile.columns_first or tile.flat else 1
    return points * HALO * again + 20.0 * row_tiles * again / machine.cores


def tile_figures(form: Reduction, tile: Tile, machine: Hardware) -> tuple[float, ...]:
    """What a cost model can tell this model's error by: the kernel, how the tile lies in it, and
    the machine."""
    rows, columns = tile_counts(form, tile)
    other = form.other
    _, rows_axis = tiled_rows(form)
    return (
        log2(estimate(form, tile, machine)),
        log2(form.flops),
        log2(form.depth),
        log2(form.extent(longest(form))),
        float(sum(form.extent(axis) > 1 for axis in form.reductions)),
        log2(4 * prod(form.vector.shape)),
        log2(4 * prod(other.shape)) if other else 0.0,
        float((other.strides[form.column] or 0) if other else -1),
        float((other.strides[rows_axis] or 0) if other and rows_axis is not None else -1),
        float(form.product),
        float(len(form.before)),
        float(len(form.after)),
        log2(rows),
        log2(columns),
        float(len(tile.pads(form))),
        float(tile.accumulators),
        loads_of_step(form, tile, machine) * machine.fma / tile.accumulators,
        float(conflicts(form, tile)),
        *machine.figures(),
    )


def loads_of_step(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Cycles for a step's loads: its vectors, and broadcasts where no multiply-add does them."""
    vector, share = 4.0 * tile.lanes / machine.stream, distinct(form, tile)
    other = form.other
    if not form.product:
        # Strided vectors are put together element by element.
        apart = form.vector.strides[form.column] not in (0, 1)
        return tile.accumulators * share * (SCATTERED * tile.lanes if apart else vector)
    if other is None or other.depends_on(form.column):
        return (tile.vectors + tile.accumulators * share) * vector
    broadcasts = tile.rows * tile.planes / machine.loads if machine.loads else 0.0
    return tile.vectors * vector + broadcasts + 3.0 * conflicts(form, tile)


def conflicts(form: Reduction, tile: Tile) -> int:
    """Rows beyond the ways of the first-level cache, where their distance makes them share sets."""
    planes_axis, rows_axis = tiled_rows(form)
    if form.other is None or form.other.strides[longest(form)] != 1:
        return 0
    strides = [
        form.other.strides[axis] if axis is not None else 0 for axis in (rows_axis, planes_axis)
    ]
    if None in strides:
        return 0  # rows across the ends of lines are not evenly spaced
    row, plane = (4 * (stride or 0) for stride in strides)
    sets = Counter(
        (r * row + p * plane) % 4096 // 64 for r in range(tile.rows) for p in range(tile.planes)
    )
    # One way is kept for the vectors that stream through.
    return sum(max(0, count - 7) + (count if count > 8 else 0) for count in sets.values())


def refetched(
    form: Reduction, tile: Tile, machine: Hardware, row_tiles: int, column_tiles: int
) -> float:
    """Bytes a core reads from beyond its second-level cache, besides a first time."""
    vector = 4.0 * prod(form.vector.shape)
    if not form.product:
        return vector / machine.cores  # pooling: every element belongs to few rows and columns
    other = _other_bytes(form)
    panel = 4.0 * form.depth * tile.columns
    rows = 4.0 * form.depth * tile.rows * tile.planes
    if tile.columns_first:
        passes = row_tiles if panel > machine.l2 else 1
        return vector / machine.cores * passes + (
            other * column_tiles if other > machine.l2 else other
        )
    streams = max(1.0, row_tiles / machine.cores) if vector > machine.l2 else 1.0
    again = column_tiles if rows > machine.l2 else 1
    return vector * streams + other / machine.cores * again


def _other_bytes(form: Reduction) -> float:
    """Of the broadcast operand: a strided convolution does not touch all of it."""
    if form.other is None:
        return 0.0
    rows = prod(form.extent(axis) for axis in form.spatial if axis != form.column)
    return 4.0 * min(prod(form.other.shape), rows * form.depth)
