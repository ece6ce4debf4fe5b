"""A kernel as a product of matrices: which of its axes are rows, columns and depth, and where its
operands lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call, TensorLoad

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.expressions import (
    inlined,
    is_its_stages,
    lie_together,
    loads_of,
    uses,
)
from tunefarm.search.spaces.form import Stage, only_reduction, sums_from_zero
from tunefarm.search.spaces.tensor_tile.box import strides_of
from tunefarm.search.spaces.tensor_tile.tiling import SINGLE_BYTES

PIECE_BYTES = (16, 8, 4)
"""What one asynchronous copy can be, longest first."""
_SUMS = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "float32": "float32"}
"""What the elements of operands are summed in."""


@dataclass(frozen=True)
class Operand:
    """One matrix, a batch of them, or an image that is read as one.

    Attributes:
        buffer: argument of the kernel that it is read from.
        indices: of what is read, in variables of the block.
        condition: under which it is read, else it is zero; None for always.
        lines: its rows, or the right operand's columns: positions of axes, outermost first.
        deep: neighbours along the depth lie side by side; else those along the lines do.
        piece: elements that can be copied at once; one where they are read one by one.
    """

    buffer: Any
    indices: tuple[Any, ...]
    condition: Any | None
    lines: tuple[int, ...]
    deep: bool
    piece: int


@dataclass(frozen=True)
class After:
    """An elementwise stage that follows.

    Attributes:
        buffer: that it makes; variables: that its elements are in.
        value: of an element, in nothing but arguments, the product and what other stages made of it
            before, at the same place.
    """

    buffer: Any
    variables: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class Product:
    """One sum of products, with elementwise stages after it.

    Attributes:
        batch, depth: positions of axes among the block's, outermost first; of `left.lines` come the
            rows, of `right.lines` the columns of the result.
        after: stages that follow, the last of which makes the result; may be none.
        sums: type that it is summed in.
    """

    block: Stage
    batch: tuple[int, ...]
    depth: tuple[int, ...]
    left: Operand
    right: Operand
    after: tuple[After, ...]
    dtype: str
    sums: str

    def extent(self, axes: Sequence[int]) -> int:
        return prod(self.block.axes[axis].extent for axis in axes)

    @property
    def rows(self) -> int:
        return self.extent(self.left.lines)

    @property
    def columns(self) -> int:
        return self.extent(self.right.lines)

    @property
    def length(self) -> int:
        """Terms of a sum."""
        return self.extent(self.depth)

    @property
    def batches(self) -> int:
        return self.extent(self.batch)

    @property
    def element_bytes(self) -> int:
        return numpy_dtype(self.dtype).itemsize


def product_of(workload: Any) -> Product | None:
    """The kernel as a product whose operands can be copied piece by piece, None where it is
    something else."""
    found = only_reduction(workload)
    if found is None or not is_its_stages(workload):
        return None
    before, block, after, rest = found
    if rest or not isinstance(block.node.body.value, tirx.Add) or not sums_from_zero(block):
        return None
    terms = terms_of(block)
    made = {stage.node.body.buffer: stage for stage in before}
    read = [read_of(block, term, made) for term in terms or ()]
    if len(read) != 2 or None in read:
        return None
    followers = tuple(_after(stage, made) for stage in after)
    return _product(block, [one for one in read if one], followers)


def _after(stage: Stage, before: Mapping[Any, Stage]) -> After:
    store = stage.node.body
    variables = tuple(one.var for one in stage.node.iter_vars)
    return After(store.buffer, variables, inlined(store.value, before))


@dataclass(frozen=True)
class Read:
    """See `Operand`; `axes`: that it depends on."""

    buffer: Any
    indices: tuple[Any, ...]
    condition: Any | None
    axes: frozenset[int]


def terms_of(block: Stage) -> tuple[Any, Any] | None:
    """The two loads whose product is summed, of one type, in the type that it is summed in."""
    value = block.node.body.value.b
    sums = str(block.node.body.buffer.dtype)
    if not isinstance(value, tirx.Mul):
        return None
    loads = []
    for factor in (value.a, value.b):
        load = factor.value if isinstance(factor, tirx.Cast) else factor
        if not isinstance(load, TensorLoad):
            return None
        loads.append(load)
    kinds = {str(load.source.dtype) for load in loads}
    if len(kinds) != 1 or _SUMS.get(*kinds) != sums:
        return None
    return loads[0], loads[1]


def read_of(block: Stage, load: Any, made: Mapping[Any, Stage]) -> Read | None:
    """What a load comes to, through the stages before that copy, pad or arrange anew."""
    condition: Any = None
    while load.source in made:
        stage = made[load.source]
        axes = [v.var for v in stage.node.iter_vars]
        here = dict(zip(axes, load.indices, strict=True))
        value = stage.node.body.value
        if isinstance(value, Call) and getattr(value.op, "name", "") == "prim.if_then_else":
            asked, value, other = value.args
            if not (isinstance(other, tirx.FloatImm | tirx.IntImm) and float(other.value) == 0):
                return None
            asked = renamed(asked, here)
            condition = asked if condition is None else tirx.And(condition, asked)
        if not isinstance(value, TensorLoad):
            return None
        load = renamed(value, here)
    buffer = load.source
    if len(buffer.strides) or not _is_nought(buffer.elem_offset):
        return None  # whose elements do not lie one after another from its beginning on
    places = [*load.indices, *([] if condition is None else [condition])]
    if loads_of(places):
        return None  # where it lies is read as well, and beyond the end nobody may
    variables = [v.var for v in block.node.iter_vars]
    depends = frozenset(i for i, variable in enumerate(variables) if uses(places, variable))
    return Read(load.source, tuple(load.indices), condition, depends)


def _is_nought(expression: Any) -> bool:
    return expression is None or (isinstance(expression, tirx.IntImm) and int(expression) == 0)


def _product(block: Stage, read: list[Read], after: tuple[After, ...]) -> Product | None:
    axes = range(len(block.axes))
    depth = tuple(i for i in axes if block.axes[i].reduces)
    spatial = [i for i in axes if not block.axes[i].reduces]
    batch = tuple(i for i in spatial if all(i in one.axes for one in read))
    batch = tuple(i for i in batch if block.axes[i].extent > 1)
    # The right operand is the one whose lines the result's last axis counts.
    last = next((i for i in reversed(spatial) if i not in batch and block.axes[i].extent > 1), None)
    if last is None:
        return None
    left, right = read if last in read[1].axes else reversed(read)
    columns = tuple(
        i for i in spatial if i in right.axes and i not in left.axes and block.axes[i].extent > 1
    )
    if not columns:
        return None
    rows = tuple(i for i in spatial if i not in batch and i not in columns)
    if any(i in right.axes and block.axes[i].extent > 1 for i in rows):
        return None
    operands = [
        operand_of(block, one, lines, depth) for one, lines in ((left, rows), (right, columns))
    ]
    if operands[0] is None or operands[1] is None:
        return None
    dtype = str(operands[0].buffer.dtype)
    return Product(block, batch, depth, operands[0], operands[1], after, dtype, _SUMS[dtype])


def operand_of(
    block: Stage,
    read: Read,
    lines: tuple[int, ...],
    depth: tuple[int, ...],
    singly: bool = False,
) -> Operand | None:
    """None where not even the shortest copy has elements that lie side by side, and they are not
    read one by one either, which those of 32 bits can be, and `singly` others."""
    size = numpy_dtype(str(read.buffer.dtype)).itemsize
    for piece in (bytes_ // size for bytes_ in PIECE_BYTES):
        for deep, along in ((True, depth), (False, lines)):
            long = [i for i in along if block.axes[i].extent > 1]
            if long and _together(block, read, long[-1], piece):
                return Operand(read.buffer, read.indices, read.condition, lines, deep, piece)
    if size != SINGLE_BYTES and not singly:
        return None
    strides, _ = strides_of(block, read.indices, read.buffer.shape)
    last = next((i for i in reversed(lines) if block.axes[i].extent > 1), None)
    beside = last is not None and strides[last] == 1
    return Operand(read.buffer, read.indices, read.condition, lines, not beside, 1)


def _together(block: Stage, read: Read, axis: int, piece: int) -> bool:
    """Whether each `piece` elements along `axis` can be copied at once, under one condition."""
    variables = [v.var for v in block.node.iter_vars]
    extents = {v: one.extent for v, one in zip(variables, block.axes, strict=True)}
    if read.condition is not None and uses(read.condition, variables[axis]):
        return False
    return lie_together(read.indices, read.buffer.shape, variables[axis], extents, piece)
