"""Pooling along rows with the rows of a window folded first, in whole vectors.

Neighbouring results of a pooling with channels first read every other element. Here the rows of a
window are folded into one by the maximum, in vectors as they lie in memory; a result is the maximum
of as many vectors as the window is wide, each put together from those of the folded row by one or
two permutations. All of it stays in registers: a folded row that is stored and read again at other
places would wait for its own stores.

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation
from tvm_ffi import structural_equal, structural_walk

from tunefarm.search.kernels.splice import renamed, spliced
from tunefarm.search.spaces.form import Reduction, Stage, reduction_of

FOLD = "fold"
"""Name of the stage that `fold` makes; its axes are planes and rows of the result."""
LEAST = -3.4e38


@dataclass(frozen=True)
class Pooling:
    """The largest of each window of the last two dimensions; (down, across).

    Attributes:
        source: the buffer that is read.
        windows, strides, before: a window's size, its steps, and how far the first one begins
            outside.
    """

    source: Any
    windows: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]


def fold(workload: Any, lanes: int) -> Any:
    """`workload` rewritten for vectors of `lanes`; its arguments stay as they are.

    Raises:
        ValueError: it is no such pooling, or its rows are shorter than a vector.
    """
    form = reduction_of(workload)
    pooling = pooling_of(form) if form is not None else None
    if form is None or pooling is None or not fits(form, pooling, lanes):
        raise ValueError(f"no pooling whose rows could be folded in vectors of {lanes}")
    instead = {form.block.name: [_text(form, pooling, lanes)]}
    paddings: dict[str, list[Any]] = {stage.name: [] for stage in form.before}
    unused = form.before[0].writes if form.before else ""
    return spliced(workload["main"], {**instead, **paddings}, (), unused)


def fits(form: Reduction, pooling: Pooling, lanes: int) -> bool:
    """Whether its rows, what is read and what is written, are no shorter than a vector."""
    return lanes <= min(int(pooling.source.shape[-1]), form.extent(form.column))


def pooling_of(form: Reduction) -> Pooling | None:
    """The pooling that a kernel is, None for anything else. What follows it is no part of it."""
    if form.product or form.after or form.copies or len(form.before) > 1:
        return None
    store, column = form.block.node.body, form.column
    if len(form.spatial) < 3:
        return None
    row = form.spatial[-2]
    if not _is_largest(form.block.node) or len(form.reductions) != 2:
        return None
    operand, width = form.vector, form.vector.shape[-1]
    across = [axis for axis in form.reductions if operand.strides[axis] == 1]
    down = [axis for axis in form.reductions if operand.strides[axis] == width]
    steps = (operand.strides[row] or 0, operand.strides[column] or 0)
    if operand.plain[:-2] != form.spatial[:-2] or len(across) != 1 or len(down) != 1:
        return None
    if steps[0] % width or not 0 < steps[1] < width or not steps[0]:
        return None
    load = store.value.b  # see `_is_largest`
    first = {variable.var: _whole(0) for variable in form.block.node.iter_vars}
    if any(Analyzer().simplify(renamed(index, first)) != 0 for index in load.indices):
        return None
    source, before = load.source, (0, 0)
    if form.before:
        (padding,) = form.before
        found = _padding(padding)
        if found is None:
            return None
        source, before = found
    windows = (form.extent(down[0]), form.extent(across[0]))
    strides = (steps[0] // width, steps[1])
    sizes = tuple(map(int, source.shape[-2:]))
    extents = (form.extent(row), form.extent(column))
    pairs = zip(windows, strides, before, sizes, extents, strict=True)
    # Each window has an element inside: the nearest one stands for those outside.
    inside = all(
        outside < window and (extent - 1) * stride - outside < size
        for window, stride, outside, size, extent in pairs
    )
    return Pooling(source, windows, strides, before) if inside else None


def _is_largest(node: Any) -> bool:
    """Whether it is the maximum of what it reads, as it is, and of the least number."""
    store, first = node.body, node.init
    if not isinstance(store.value, tirx.Max) or not isinstance(first, tirx.BufferStore):
        return False
    own, other = store.value.a, store.value.b
    return (
        isinstance(own, TensorLoad)
        and isinstance(other, TensorLoad)
        and own.source.same_as(store.buffer)
        and structural_equal(list(own.indices), list(store.indices))
        and float(getattr(first.value, "value", 0.0)) <= LEAST
    )


def _padding(stage: Stage) -> tuple[Any, tuple[int, int]] | None:
    """What `stage` pads with the least number in its last two dimensions, and how far before; None
    where it is something else."""
    value, axes = stage.node.body.value, [variable.var for variable in stage.node.iter_vars]
    if getattr(getattr(value, "op", None), "name", "") != "prim.if_then_else":
        return None
    condition, load, other = value.args
    if not isinstance(load, TensorLoad) or not float(getattr(other, "value", 0.0)) <= LEAST:
        return None
    if len(load.indices) != len(axes):
        return None
    offsets = []
    for index, axis in zip(load.indices, axes, strict=True):
        linear = detect_linear_equation(index, [axis])
        if not linear or not all(isinstance(one, tirx.IntImm) for one in linear):
            return None
        if int(linear[0]) != 1:
            return None
        offsets.append(-int(linear[1]))
    ors: list[Any] = []
    structural_walk(condition, (tirx.Or, ors.append))
    if any(offsets[:-2]) or ors or not _is_inside(condition, axes, stage, load, offsets):
        return None
    return load.source, (offsets[-2], offsets[-1])


def _is_inside(condition: Any, axes: list[Any], stage: Stage, load: Any, offsets: Any) -> bool:
    """Whether `condition` holds where `load` is inside its tensor, and only there; along each axis
    by all of its values."""
    known, sizes = Analyzer(), [int(size) for size in load.source.shape]
    for place, axis in enumerate(stage.axes):
        for at in range(axis.extent):
            where = [*offsets]  # the first element of the tensor, and on this axis all places
            where[place] = at
            values = {a: _whole(w) for a, w in zip(axes, where, strict=True)}
            holds = known.simplify(renamed(condition, values))
            if bool(holds) != (0 <= at - offsets[place] < sizes[place]):
                return False
    return True


def _text(form: Reduction, pooling: Pooling, lanes: int) -> Any:
    """Loops over planes and rows around a block that writes a row of the result."""
    result = form.block.node.writes[0].source
    axes = [form.block.axes[axis] for axis in form.spatial[:-1]]
    loops = [tirx.Var(axis.name, "int64") for axis in axes]
    places = [tirx.Var(f"at_{axis.name}", "int64") for axis in axes]
    columns = form.extent(form.column)
    stores = [
        tirx.BufferStore(
            result,
            _largest(form, pooling, lanes, places, first),
            [*places, _vector(first, lanes)],
        )
        # The last vector begins early enough to end with the row: what it writes again is equal.
        for first in sorted({min(at, columns - lanes) for at in range(0, columns, lanes)})
    ]
    *planes, row = (_range(place, 1) for place in places)
    source = [_range(0, int(size)) for size in pooling.source.shape[-2:]]
    block = SBlock(
        [
            tirx.IterVar(_range(0, axis.extent), place, tirx.IterVar.DataPar)
            for axis, place in zip(axes, places, strict=True)
        ],
        [tirx.BufferRegion(pooling.source, [*planes, *source])],
        [tirx.BufferRegion(result, [*planes, row, _range(0, columns)])],
        FOLD,
        tirx.SeqStmt(stores) if len(stores) > 1 else stores[0],
    )
    text: Any = SBlockRealize(loops, tirx.const(True, "bool"), block)
    for loop, axis in zip(reversed(loops), reversed(axes), strict=True):
        serial = tirx.ForKind.SERIAL
        text = tirx.For(loop, _whole(0), _whole(axis.extent), serial, text)
    return text


def _largest(
    form: Reduction, pooling: Pooling, lanes: int, places: Sequence[Any], first: int
) -> Any:
    """Of the windows of the results from `first` on. What is read more than once is left to the
    compiler, which reads it once."""
    *planes, row = places
    width = int(pooling.source.shape[-1])
    rows = [_row(form, pooling, row, down) for down in range(pooling.windows[0])]

    def folded(at: int) -> Any:
        loads = (
            tirx.BufferLoad(pooling.source, [*planes, one, _vector(at, lanes)]) for one in rows
        )
        return reduce(tirx.max, loads)

    def picked(across: int) -> Any:
        """One element of each window: the one in this place, or the nearest inside."""
        begin = first * pooling.strides[1] + across - pooling.before[1]
        steps = range(begin, begin + lanes * pooling.strides[1], pooling.strides[1])
        wanted = [min(max(element, 0), width - 1) for element in steps]
        begins = [min(element // lanes * lanes, width - lanes) for element in wanted]
        vectors = sorted(set(begins))
        lane = [
            vectors.index(at) * lanes + element - at
            for element, at in zip(wanted, begins, strict=True)
        ]
        return tirx.Shuffle([folded(at) for at in vectors], lane)

    return reduce(tirx.max, map(picked, range(pooling.windows[1])))


def _row(form: Reduction, pooling: Pooling, row: Any, down: int) -> Any:
    """Of the source: a row of the window of the result's `row`, or the nearest inside."""
    (step, _), height = pooling.strides, int(pooling.source.shape[-2])
    first = down - pooling.before[0]
    last = first + (form.extent(form.spatial[-2]) - 1) * step
    index = row * step + first
    index = tirx.max(index, _whole(0)) if first < 0 else index
    return tirx.min(index, _whole(height - 1)) if last >= height else index


def _vector(first: int, lanes: int) -> Any:
    return tirx.Ramp(_whole(first), _whole(1), lanes)


def _whole(value: int) -> Any:
    return tirx.const(value, "int64")


def _range(first: Any, extent: int) -> Any:
    begin = _whole(first) if isinstance(first, int) else first
    return Range.from_min_extent(begin, _whole(extent))
