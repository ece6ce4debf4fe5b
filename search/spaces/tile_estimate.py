"""What a model of the hardware expects of a tile: to order points by, not to quote. Pure."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2, prod

from tunefarm.search.spaces.form import Reduction
from tunefarm.search.spaces.hardware import Hardware
from tunefarm.search.spaces.tile import Tile, longest, tile_counts, tiled_rows


def estimate(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by, not to quote.

    A step of the reduction is bound by multiply-adds, by loads, or by the latency of a chain of
    additions; a tile adds its stores and the loops around it; uneven shares of the cores and what
    is read again from the outer caches stretch the whole.
    """
    row_tiles, column_tiles = tile_counts(form, tile)
    multiplies = tile.accumulators * (1.0 if tile.lanes == machine.lanes else 1.05) / machine.fma
    step = max(multiplies, loads_of_step(form, tile, machine), machine.latency) + 0.6 / tile.unroll
    finish = tile.accumulators * (2.0 + len(form.after)) + (24.0 if tile.flat else 12.0)
    tasks = row_tiles * column_tiles
    if not tile.flat and min(row_tiles, column_tiles) > 1:
        tasks = column_tiles if tile.columns_first else row_tiles
    share = ceil(tasks / machine.cores) / tasks
    cycles = row_tiles * column_tiles * (form.depth * step + finish) * share
    cycles += _refetched(form, tile, machine, row_tiles, column_tiles) / machine.bytes_per_cycle
    if form.before and not tile.inline:
        cycles += sum(stage.points for stage in form.before) / machine.lanes / machine.cores
    if pads := tile.pads(form):
        cycles += 1.0 * form.points_written / machine.cores
        cycles += _other_bytes(form) / 4 / machine.cores if len(pads) > 1 else 0.0
    if tile.pack and not form.vector.free:
        cycles += 0.5 * prod(form.vector.shape) / machine.cores
    return cycles / 3e9


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
    """Cycles for a step's loads: its vectors, and a broadcast for each row."""
    rows = tile.rows * tile.planes
    other = form.other
    if not form.product:
        return tile.accumulators * (form.vector.strides[form.column] or 1) / machine.loads
    if other is None or other.strides[form.column] != 0:
        return (tile.vectors + tile.accumulators) / machine.loads
    return (tile.vectors + rows + 3.0 * conflicts(form, tile)) / machine.loads


def conflicts(form: Reduction, tile: Tile) -> int:
    """Rows beyond the ways of the first-level cache, where their distance makes them share sets."""
    planes_axis, rows_axis = tiled_rows(form)
    if form.other is None or form.other.strides[longest(form)] != 1:
        return 0
    row: int = 4 * (form.other.strides[rows_axis] or 0) if rows_axis is not None else 0
    plane = 4 * (form.other.strides[planes_axis] or 0) if planes_axis is not None else 0
    sets = Counter(
        (r * row + p * plane) % 4096 // 64 for r in range(tile.rows) for p in range(tile.planes)
    )
    # One way is kept for the vectors that stream through.
    return sum(max(0, count - 7) + (count if count > 8 else 0) for count in sets.values())


def _refetched(
    form: Reduction, tile: Tile, machine: Hardware, row_tiles: int, column_tiles: int
) -> float:
    """Bytes a core reads from beyond its second-level cache, besides a first time."""
    vector = 4.0 * prod(form.vector.shape)
    other = _other_bytes(form)
    panel = 4.0 * form.depth * tile.columns
    rows = 4.0 * form.depth * tile.rows * tile.planes
    half = machine.l2 / 2
    if tile.columns_first:
        passes = row_tiles if panel > half else 1
        return vector / machine.cores * passes + (other * column_tiles if other > half else other)
    streams = row_tiles / machine.cores if vector > half else 1.0
    again = column_tiles if rows > half else 1
    return vector * streams + other / machine.cores * again


def _other_bytes(form: Reduction) -> float:
    """Of the broadcast operand: a strided convolution does not touch all of it."""
    if form.other is None:
        return 0.0
    rows = prod(form.extent(axis) for axis in form.spatial if axis != form.column)
    return 4.0 * min(prod(form.other.shape), rows * form.depth)
