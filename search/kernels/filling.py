"""Groups of columns filled up to whole vectors, where no good vector divides them.

A grouped convolution with 68 filters a group takes vectors of four: a third of what the processor
does in vectors of sixteen. With twelve filters of zeros beside them it takes five of those. They
are added to the weights when those are packed; their results are computed, and never stored.

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.s_tir import SBlock

from tunefarm.search.kernels.restaged import indices_of, inlined, restaged, stored_at
from tunefarm.search.spaces.form import Reduction, reduction_of, sums_from_zero

WEIGHTS, PRODUCT, STORE = "filled_weights", "filled_product", "filled_store"
"""Names of the stages that `filled` makes, in the order of the text."""


def filled(workload: Any, lanes: int) -> Any:
    """`workload` rewritten, the columns of a group filled up to a multiple of `lanes`; its
    arguments stay as they are. Copies, and what follows the reduction, are computed where they are
    read; other stages before it stay.

    Raises:
        ValueError: its columns cannot be filled, or need not be.
    """
    whole = reduction_of(workload)
    if whole is None or not fillable(whole, lanes):
        raise ValueError(f"no groups of columns that could be filled up to vectors of {lanes}")
    workload, form = inlined(workload, whole)
    made = _stages(form, lanes)
    return restaged(workload, form, made, lambda copy: _guarded(copy, form, lanes))


def fillable(form: Reduction, lanes: int) -> bool:
    """Whether a group's columns fill more than half of a vector, and no whole number of them; and
    its weights are constants, which can be filled beforehand."""
    columns, vector = form.limits[form.column], form.vector
    return (
        form.product
        and form.other is not None
        and form.other.groups[form.column] in (0, columns)
        and vector.free
        and form.column in vector.plain
        and all(axis is not None for axis in vector.plain)
        and columns % lanes > 0
        and 2 * columns > lanes
        and form.extent(form.column) % columns == 0
        and sums_from_zero(form.block)
    )


def _stages(form: Reduction, lanes: int) -> Any:
    """The stages as a function of the broadcast operand and the weights; the last one is a copy,
    which `_guarded` makes the store that it is to be."""
    columns, vector, other = form.limits[form.column], form.vector, form.other
    assert other is not None
    groups, whole = form.extent(form.column) // columns, -(-columns // lanes) * lanes
    data = te.placeholder(other.shape, name="data")
    weights = te.placeholder(vector.shape, name="weights")
    column = vector.plain.index(form.column)
    rest = [axis for axis in vector.plain if axis is not None and axis != form.column]

    def fill(group: Any, *at: Any) -> Any:
        *index, one = at
        index.insert(column, group * columns + one)
        return tirx.if_then_else(one < columns, weights(*index), tirx.const(0.0, "float32"))

    filled_weights = te.compute(
        (groups, *(form.extent(axis) for axis in rest), whole), fill, name=WEIGHTS
    )
    sums = {
        axis: te.reduce_axis((0, form.extent(axis)), name=form.block.axes[axis].name)
        for axis in form.reductions
    }

    def product(*at: Any) -> Any:
        *spatial, group, one = at
        values = {**dict(zip(form.spatial[:-1], spatial, strict=True)), **sums}
        # All columns of a group read the same, those of zeros among them.
        index = indices_of(form, {**values, form.column: group * columns})
        of_weights = filled_weights(group, *(values[axis] for axis in rest), one)
        return te.sum(data(*index) * of_weights, list(sums.values()))

    shape = (*(form.extent(axis) for axis in form.spatial[:-1]), groups, whole)
    multiplied = te.compute(shape, product, name=PRODUCT)
    stored = te.compute(shape, lambda *at: multiplied(*at), name=STORE)
    return te.create_prim_func([data, weights, stored], index_dtype_override="int64")


def _guarded(copy: Any, form: Reduction, lanes: int) -> SBlock:
    """The store of the result: filled columns are left out; whole vectors of the others need no
    look at each element."""
    columns = form.limits[form.column]
    *spatial, group, one = (variable.var for variable in copy.iter_vars)

    def guarded(written: Any) -> Any:
        alone = tirx.IfThenElse(one < columns, written, None)
        return tirx.IfThenElse(one // lanes < columns // lanes, written, alone)

    return stored_at(copy, form, [*spatial, group * columns + one], guarded)
