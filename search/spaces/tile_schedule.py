"""From a tile to a schedule, with TVM's own primitives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tunefarm.search.kernels.matrices import Sizes, multiply_matrices
from tunefarm.search.kernels.neighbours import KEY as OF_BFLOAT16
from tunefarm.search.kernels.neighbours import name_of, register_neighbours
from tunefarm.search.spaces.apart import (
    schedule_before,
    schedule_elementwise,
    vectorise_columns,
)
from tunefarm.search.spaces.form import Reduction
from tunefarm.search.spaces.tile import Before, Tile, longest, reduction_order, tile_sizes


def schedule_tile(
    schedule: Any,
    form: Reduction,
    tile: Tile,
    maker: Any = None,
    matrices: Sizes | None = None,
) -> None:
    """Apply `tile` to the unscheduled kernel in `schedule`.

    Args:
        maker: the stage that makes the vector operand, where one does: it makes it packed.
        matrices: it is one of matrix registers, of these sizes.
    """
    inlined = form.before if tile.before is Before.INLINE else ()
    for stage in (*form.copies, *inlined, *form.after[:-1], *form.beyond[:-1]):
        schedule.compute_inline(schedule.get_sblock(stage.name))
    block = schedule.get_sblock(form.block.name)
    padded = bool(tile.pads(form))
    fills, cut = _pad(schedule, block, form, tile) if padded else ({}, None)
    if tile.pack:
        run = matrices.together if matrices is not None else ()
        terms = [*(one for one in reduction_order(form) if one not in run), *run]
        _pack(schedule, block, form, tile, terms, maker or fills.pop(form.vector.buffer, None))
    if form.other is not None and form.other.buffer in fills and not tile.flat:
        # A comparison for each row, outside of the reduction's loop: cheaper than a copy of
        # everything. In a flat loop it stays inside, and a tile takes half as long again.
        schedule.compute_inline(fills.pop(form.other.buffer))
    store = schedule.cache_write(block, 0, "local") if padded else _result(schedule, block, form)
    inner = _tile_loops(schedule, store, form, tile)
    schedule.compute_at(block, inner.last, preserve_unit_loops=True)
    if tile.before is Before.LOCAL:
        _compute_locally(schedule, form, tile, inner.last if tile.columns_first else inner.parallel)
    apart = list(fills.values())
    if padded and tile.cuts_near(form):
        schedule.reverse_compute_at(cut, inner.parallel, preserve_unit_loops=True)
    elif padded:
        apart.append(cut)
    schedule.parallel(inner.parallel)
    _vectorise(schedule, inner.column, tile)
    if matrices is not None:
        multiply_matrices(schedule, schedule.get_loops(block)[-len(form.block.axes)], matrices)
    else:
        for loop in inner.rows:
            schedule.unroll(loop)
        accumulate(schedule, block, form, tile.lanes, tile.unroll)
        if form.rounded:
            schedule.annotate(inner.parallel, OF_BFLOAT16, 1)
    for stage in form.before if tile.before is Before.APART else ():
        schedule_before(schedule, stage, tile.lanes)
    apart += [schedule.get_sblock(stage.name) for stage in form.beyond[-1:]]
    for one in apart:
        schedule_elementwise(schedule, one, tile.lanes)


def _compute_locally(schedule: Any, form: Reduction, tile: Tile, loop: Any) -> None:
    """The stages before the reduction inside `loop`: only what its iteration reads of them."""
    for stage in reversed(form.before):
        block = schedule.get_sblock(stage.name)
        schedule.compute_at(block, loop, preserve_unit_loops=True)
        if not stage.branches:  # else the compiler's own loop vectoriser does better
            vectorise_columns(schedule, block, tile.lanes)


def _pad(schedule: Any, block: Any, form: Reduction, tile: Tile) -> tuple[dict[str, Any], Any]:
    """Fill the matrices up to whole tiles; the stages that do it, by the operand that they fill,
    and the one that cuts the result out again and applies what follows."""
    pads = tile.pads(form)
    schedule.pad_einsum(block, [pads.get(axis, 1) for axis in range(len(form.block.axes))])
    (cut,) = schedule.get_consumers(block)
    fills = {
        schedule.get(fill).reads[0].source.name: fill for fill in schedule.get_producers(block)
    }
    if not form.after:
        return fills, cut
    schedule.compute_inline(cut)
    return fills, schedule.get_sblock(form.after[-1].name)


def _pack(
    schedule: Any, block: Any, form: Reduction, tile: Tile, terms: Sequence[int], fill: Any
) -> None:
    """Lay the vector operand out in tiles of columns, or in vectors, in the order in which they are
    read, `terms` being that of the reductions: by `fill`, the stage that copies it anyway, or by
    one that is made for it."""
    vector, columns = form.vector, tile.lanes if tile.streams else tile.columns
    axes = list(vector.plain)
    column = axes.index(form.column)
    order = [*(axis for axis in form.spatial if axis in axes), *terms]
    rest = [axes.index(axis) for axis in order if axis in axes and axis != form.column]
    packed = fill or schedule.cache_read(block, vector.read, "global")
    schedule.transform_layout(
        block,
        ("read", vector.read),
        lambda *index: [
            index[column] // columns,
            *(index[d] for d in rest),
            index[column] % columns,
            *index[len(axes) :],
        ],
    )  # fmt: skip
    if vector.free:
        schedule.annotate(packed, "meta_schedule.layout_rewrite_preproc", True)
        return
    loops = schedule.get_loops(packed)
    outer, inner = schedule.split(loops[column], [None, columns])
    schedule.reorder(outer, *(loops[d] for d in rest), inner)
    schedule.parallel(schedule.fuse(outer, loops[rest[0]]))
    _vectorise(schedule, inner, tile)


def _result(schedule: Any, block: Any, form: Reduction) -> Any:
    """The block that stores the tile: the last stage after the reduction, or a plain copy."""
    if not form.after:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return schedule.get_sblock(form.after[-1].name)


@dataclass(frozen=True)
class _Loops:
    """Of the storing block: which is parallel, which encloses a tile, and the tile's own."""

    parallel: Any
    last: Any
    rows: list[Any]
    column: Any


def _tile_loops(schedule: Any, store: Any, form: Reduction, tile: Tile) -> _Loops:
    sizes = tile_sizes(form, tile)
    outer, rows, column_outer, column = [], [], [], None
    for axis, loop in zip(form.spatial, schedule.get_loops(store), strict=True):
        if axis not in sizes:
            outer.append(loop)
            continue
        outside, inside = schedule.split(loop, [None, sizes[axis]])
        if axis == form.column:
            column_outer, column = [outside], inside
        else:
            outer.append(outside)
            rows.append(inside)
    ordered = [*column_outer, *outer] if tile.columns_first else [*outer, *column_outer]
    schedule.reorder(*ordered, *rows, column)
    if tile.flat or not outer:
        groups = [ordered]
    elif tile.columns_first:
        groups = [column_outer, outer]
    else:
        groups = [outer, column_outer]
    fused = [schedule.fuse(*group) if len(group) > 1 else group[0] for group in groups]
    return _Loops(fused[0], fused[-1], rows, column)


def accumulate(schedule: Any, block: Any, form: Reduction, lanes: int, unroll: int) -> None:
    """Inside a tile: the reduction outermost, then its unrolled steps, rows and vectors."""
    if form.together:
        _accumulate_groups(schedule, block, form, lanes, unroll)
        return
    loops = dict(enumerate(schedule.get_loops(block)[-len(form.block.axes) :]))
    vectors, lane = schedule.split(loops[form.column], [None, lanes])
    last = form.extent(longest(form))
    steps, unrolled = schedule.split(loops[longest(form)], [None, min(unroll, last)])
    outer = [loops[axis] for axis in reduction_order(form)[:-1]]
    rows = [loops[axis] for axis in form.spatial if axis != form.column]
    schedule.reorder(*outer, steps, unrolled, *rows, vectors, lane)
    schedule.vectorize(lane)
    for loop in (*(outer if unroll > last else ()), unrolled, *rows, vectors):
        schedule.unroll(loop)
    # Last, for it refuses loops that are not yet what they are to be.
    schedule.decompose_reduction(block, [*outer, steps][0])


def _accumulate_groups(schedule: Any, block: Any, form: Reduction, lanes: int, unroll: int) -> None:
    """The same, with an instruction for a vector of sums and the terms that each of them gets."""
    loops = schedule.get_loops(block)[-len(form.block.axes) :]
    loops, groups = loops[: -len(form.together)], loops[-len(form.together) :]
    vectors, lane = schedule.split(loops[form.column], [None, lanes])
    steps, unrolled = schedule.split(loops[longest(form)], [None, unroll])
    outer = [loops[axis] for axis in reduction_order(form)[:-1]]
    rows = [loops[axis] for axis in form.spatial if axis != form.column]
    schedule.reorder(*outer, steps, unrolled, *rows, vectors, lane, *groups)
    for loop in (unrolled, *rows, vectors):
        schedule.unroll(loop)
    first = schedule.decompose_reduction(block, [*outer, steps][0])
    schedule.vectorize(schedule.get_loops(first)[-1])
    register_neighbours()
    schedule.tensorize(lane, name_of(form.together, lanes, form.rounded))


def _vectorise(schedule: Any, loop: Any, tile: Tile) -> None:
    """A tile's columns: its vectors unrolled."""
    vectors, lane = schedule.split(loop, [None, tile.lanes])
    schedule.vectorize(lane)
    schedule.unroll(vectors)
