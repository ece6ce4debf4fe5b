"""Tiles of rows that overlap, where no good tile divides them.

Seventeen pixels a row are one, or seventeen: tiles of one use what they load once, and seventeen
fit few registers. Three tiles of six hold them all if the last begins where it ends with the last
row; the row that two tiles have is computed twice, and the same is stored twice. Nothing is copied
or filled up for it, and inside a tile rows lie as far apart as ever.

A line of seven pixels is too short for that. Tiles may go on *across* the ends of lines: 49 pixels
are nine tiles of six, of which the last two overlap.

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.s_tir import SBlock

from tunefarm.search.kernels.halo import has_room
from tunefarm.search.kernels.restaged import (
    indices_of,
    inlined,
    placeholder_of,
    restaged,
    stored_at,
)
from tunefarm.search.spaces.form import Reduction, sums_from_zero
from tunefarm.search.spaces.neighbours import sums_of
from tunefarm.search.spaces.tile import tiled_rows

PRODUCT, STORE = "overlapped_product", "overlapped_store"
"""Names of the stages that `overlapped` makes, in the order of the text."""


def overlapped(workload: Any, rows: int, across: bool = False) -> Any:
    """`workload` rewritten, its innermost axis of rows as tiles of `rows`, or its two innermost as
    one (`across`); its arguments stay as they are. Copies, and what follows the reduction, are
    computed where they are read; other stages before it stay.

    Raises:
        ValueError: it has no such rows, or tiles of so many divide them.
    """
    whole = sums_of(workload)
    if whole is None or not overlappable(whole, rows, across):
        raise ValueError(f"no rows that tiles of {rows} could overlap on")
    room = has_room(workload)
    workload, form = inlined(workload, whole)
    made = _stages(form, rows, across)

    def stored(copy: Any) -> SBlock:
        at = [variable.var for variable in copy.iter_vars]
        return stored_at(copy, form, _places(form, rows, across, at, room))

    return restaged(workload, form, made, stored)


def tiled_axes(form: Reduction, across: bool) -> tuple[int, ...]:
    """The axes whose rows tiles are made of; none where there are no such."""
    axes = tiled_rows(form) if across else tiled_rows(form)[1:]
    found = tuple(axis for axis in axes if axis is not None)
    return found if len(found) == len(axes) else ()


def overlappable(form: Reduction, rows: int, across: bool = False) -> bool:
    """Whether it is a product with rows that share what is loaded of constant weights, more than
    one tile of them, and no whole number of tiles."""
    axes = tiled_axes(form, across)
    extent = prod(form.extent(axis) for axis in axes)
    return (
        form.product
        and form.other is not None
        and form.vector.free
        and all(one is not None for one in form.vector.plain)
        and len(axes) > 0
        and all(axis in form.rows and not form.vector.depends_on(axis) for axis in axes)
        and all(form.limits[axis] == form.extent(axis) for axis in axes)
        and extent > rows > 1
        and extent % rows > 0
        and sums_from_zero(form.block)
    )


def _places(
    form: Reduction, rows: int, across: bool, at: Sequence[Any], room: bool = False
) -> list[Any]:
    """Of the axes that `form` has, for those of the stages: a tile's number and a row in it are
    where the form has the first of its tiled axes.

    Args:
        room: a line does not begin where the one before it ends, so an address takes both its
            number and the place in it.
    """
    axes = tiled_axes(form, across)
    given, places = iter(at), dict[int, Any]()
    for axis in form.spatial:
        if axis == axes[0]:
            tile, row = next(given), next(given)
            extent, line = prod(form.extent(axis) for axis in axes), form.extent(axes[-1])
            first = tirx.min(tile * rows, extent - rows)
            found: tuple[Any, ...] = (first + row,)
            if across and room and rows <= line:  # a division a tile, not a row
                beyond = first % line + row >= line
                down, back = (
                    tirx.Select(beyond, tirx.const(by, "int64"), tirx.const(0, "int64"))
                    for by in (1, line)
                )
                found = (first // line + down, first % line + row - back)
            elif across:
                found = ((first + row) // line, (first + row) % line)
            places |= dict(zip(axes, found, strict=True))
        elif axis not in axes:
            places[axis] = next(given)
    return [places[axis] for axis in form.spatial]


def _stages(form: Reduction, rows: int, across: bool) -> Any:
    """The stages as a function of the broadcast operand and the weights; the last one is a copy,
    which becomes the store."""
    vector, other = form.vector, form.other
    assert other is not None
    data, weights = placeholder_of(form, other, "data"), placeholder_of(form, vector, "weights")
    axes_of_block = len(form.block.axes)
    neighbours = range(axes_of_block - len(form.together), axes_of_block)
    sums = {
        axis: te.reduce_axis((0, form.extent(axis)), name=form.block.axes[axis].name)
        for axis in (*form.reductions, *neighbours)
    }

    def product(*at: Any) -> Any:
        spatial = zip(form.spatial, _places(form, rows, across, at), strict=True)
        values = {**dict(spatial), **sums}
        plain = (axis for axis in (*vector.plain, *neighbours) if axis is not None)
        factors = (data(*indices_of(form, values)), weights(*(values[axis] for axis in plain)))
        wide = "float32" if form.rounded else "int32"
        number, weight = (one.astype(wide) if neighbours else one for one in factors)
        return te.sum(number * weight, list(sums.values()))

    shape: list[int] = []
    axes = tiled_axes(form, across)
    for axis in form.spatial:
        if axis == axes[0]:
            shape += [-(-prod(form.extent(axis) for axis in axes) // rows), rows]
        elif axis not in axes:
            shape.append(form.extent(axis))
    multiplied = te.compute(tuple(shape), product, name=PRODUCT)
    stored = te.compute(tuple(shape), lambda *at: multiplied(*at), name=STORE)
    return te.create_prim_func([data, weights, stored], index_dtype_override="int64")
