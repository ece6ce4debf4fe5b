"""Several groups of filters in one vector, where a group is shorter than that.

In a grouped convolution with four filters a group, a vector of sixteen filters needs four channels
at each of its steps, each for four of its elements. Here they are laid out like that beforehand:
for every channel of a group a row as long as the filters, each filter beside the channel that it
takes. What was grouped is then read like a depthwise convolution, in whole vectors, and a spread
vector is made once and used for every place of the filters.

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.ir.expr import Var
from tvm_ffi import structural_walk

from tunefarm.search import replay
from tunefarm.search.kernels.splice import renamed, spliced
from tunefarm.search.spaces.form import Reduction, load_of, reduction_of, sums_from_zero

SPREAD, PRODUCT = "spread", "spread_product"
"""Names of the stages that `spread` makes, in the order of the text."""


def spread(workload: Any, lanes: int) -> Any:
    """`workload` rewritten for vectors of `lanes` filters; its arguments stay as they are. What
    comes before the reduction, such as padding, is computed where the channels are spread.

    Raises:
        ValueError: it has no such groups.
    """
    form = reduction_of(workload)
    place = _group_channel(form, lanes) if form is not None else None
    if form is None or place is None:
        raise ValueError(f"no groups that could be spread over vectors of {lanes}")
    made = _stages(form, *place)
    sources = {region.source.name: region.source for region in form.block.node.reads}
    assert form.other is not None
    written = form.block.node.writes[0].source
    theirs = (sources[form.other.buffer], sources[form.vector.buffer], written)
    stages = renamed(made.body, dict(zip(made.params, theirs, strict=True))).block
    instead = {form.block.name: stages.body.seq}
    rewritten = spliced(workload["main"], instead, stages.alloc_buffers)
    schedule = replay.new_schedule(rewritten, seed=1)
    for stage in (*form.copies, *form.before):
        schedule.compute_inline(schedule.get_sblock(stage.name))
    return schedule.mod


def spreadable(form: Reduction, lanes: int) -> bool:
    """Whether several groups of its columns fill a vector, and each of its columns reads one
    channel at a step."""
    return _group_channel(form, lanes) is not None


def _group_channel(form: Reduction, lanes: int) -> tuple[int, int] | None:
    """The dimension of the broadcast operand that the groups divide, and the axis that runs over
    a group's channels; None where the kernel is not of this kind."""
    vector, other = form.vector, form.other
    if not form.product or other is None or not vector.free or not sums_from_zero(form.block):
        return None
    if any(stage.branches for stage in form.before):
        return None  # padded along the channels: element by element, as often as it is read
    group = other.groups[form.column]
    if not group or group >= lanes or lanes % group or form.extent(form.column) % lanes:
        return None
    if form.column not in vector.plain or None in vector.plain:
        return None
    uses = [_axes_of(form, index) for index in load_of(form).indices]
    dimensions = [d for d, axes in enumerate(uses) if form.column in axes]
    if len(dimensions) != 1:
        return None
    (dimension,) = dimensions
    channels = uses[dimension] - {form.column}
    if len(channels) != 1 or not channels <= set(form.reductions):
        return None
    (channel,) = channels
    alone = all(channel not in axes for d, axes in enumerate(uses) if d != dimension)
    return (dimension, channel) if alone else None


def _axes_of(form: Reduction, index: Any) -> set[int]:
    used: list[Any] = []
    structural_walk(index, (Var, used.append))
    axes = [variable.var for variable in form.block.node.iter_vars]
    return {place for place, axis in enumerate(axes) if any(axis.same_as(u) for u in used)}


def _stages(form: Reduction, dimension: int, channel: int) -> Any:
    """The stages as a function of the broadcast operand, the weights and the result; see
    `_group_channel`."""
    vector, other, load = form.vector, form.other, load_of(form)
    assert other is not None
    axes = [variable.var for variable in form.block.node.iter_vars]
    data = te.placeholder(other.shape, name="data")
    weights = te.placeholder(vector.shape, name="weights")
    kept = [size for d, size in enumerate(other.shape) if d != dimension]

    def value_of(index: Any, values: dict[int, Any]) -> Any:
        known = {axes[axis]: getattr(value, "var", value) for axis, value in values.items()}
        return renamed(index, known)

    def spreading(*at: Any) -> Any:
        *index, one, column = at
        of_group = value_of(load.indices[dimension], {channel: one, form.column: column})
        index.insert(dimension, of_group)
        return data(*index)

    shape = (*kept, form.extent(channel), form.extent(form.column))
    rows = te.compute(shape, spreading, name=SPREAD)
    sums = {
        axis: te.reduce_axis((0, form.extent(axis)), name=form.block.axes[axis].name)
        for axis in form.reductions
    }

    def product(*at: Any) -> Any:
        values = {**dict(zip(form.spatial, at, strict=True)), **sums}
        others = [i for d, i in enumerate(load.indices) if d != dimension]
        index = [value_of(i, values) for i in others]
        of_weights = weights(*(values[axis] for axis in vector.plain if axis is not None))
        return te.sum(
            rows(*index, values[channel], values[form.column]) * of_weights, list(sums.values())
        )

    result = te.compute([form.extent(a) for a in form.spatial], product, name=PRODUCT)
    return te.create_prim_func([data, weights, result], index_dtype_override="int64")
