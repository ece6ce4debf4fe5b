"""Operands as Hopper's copy engine sees them: a box of a tensor, moved to shared memory at once.

The engine is told once, by the host, of a tensor's sizes and strides and of the box's; then one
thread names a corner. Beyond a tensor's ends it makes zeros. What it asks of sizes and addresses:
NVIDIA, CUDA Driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Var
from tvm.sym import Analyzer

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.form import Stage

MOST_RANK = 5
MOST_BOX = 256
"""Elements of a box along any dimension."""
_ALIGNED = 16
"""Bytes, at a multiple of which all but the innermost neighbours lie."""
_LONGEST, _FARTHEST = 1 << 31, 1 << 40
"""What coordinates of 32 bits and strides in bytes stay below."""


class Along(enum.Enum):
    """What a dimension counts."""

    LINES = enum.auto()
    DEPTH = enum.auto()
    BATCHES = enum.auto()


@dataclass(frozen=True)
class Dimension:
    """`stride`: in elements, from one to the next. Of batches: a batch's number divided by `within`
    counts along this dimension."""

    along: Along
    extent: int
    stride: int
    within: int = 1


@dataclass(frozen=True)
class Tensor:
    """An operand's dimensions, innermost first; `first`: element of the buffer that it begins
    with."""

    dimensions: tuple[Dimension, ...]
    first: int = 0

    @property
    def rank(self) -> int:
        return len(self.dimensions)


def tensor_of(
    block: Stage,
    operand: Any,
    batch: Sequence[int],
    depth: Sequence[int],
) -> Tensor | None:
    """An operand of a product as the engine can be told of it; None where its lines or its depth
    are no single dimension, part of it is padding, or it does not lie as the engine wants it.

    Args:
        operand: a `product.Operand`.
        batch, depth: positions of axes, outermost first.
    """
    if operand.condition is not None:
        return None
    maybe, first = strides_of(block, operand.indices, operand.buffer.shape)
    strides = [one for one in maybe if one is not None]
    size = numpy_dtype(str(operand.buffer.dtype)).itemsize
    if first is None or first * size % _ALIGNED or len(strides) < len(maybe):
        return None
    found: list[Dimension] = []
    for along, axes in (
        (Along.BATCHES, batch),
        (Along.LINES, operand.lines),
        (Along.DEPTH, depth),
    ):
        extents = [block.axes[axis].extent for axis in axes]
        joined = _joined(along, extents, [strides[axis] for axis in axes])
        if along is not Along.BATCHES and len(joined) != 1:
            return None
        found += joined
    found.sort(key=lambda one: one.stride)
    inner, *outer = found
    if inner.stride != 1 or inner.along is Along.BATCHES or len(found) > MOST_RANK:
        return None
    if any(one.extent >= _LONGEST or one.stride * size >= _FARTHEST for one in found):
        return None
    least = inner.extent
    for one in outer:
        if one.stride < least or one.stride * size % _ALIGNED:
            return None
        least = one.stride * one.extent
    return Tensor(tuple(found), first)


def strides_of(
    block: Stage, indices: Sequence[Any], shape: Sequence[Any]
) -> tuple[list[int | None], int | None]:
    """Elements of a buffer of `shape` from one value of each of the block's axes to the next, and
    its first element that is read; None of what is not the same everywhere."""
    analyzer = Analyzer()
    variables = [one.var for one in block.node.iter_vars]
    for variable, axis in zip(variables, block.axes, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, axis.extent), True)
    place: Any = tirx.const(0, str(indices[0].ty.dtype))
    for index, extent in zip(indices, shape, strict=True):
        place = place * extent + index
    found: list[int | None] = []
    for variable, axis in zip(variables, block.axes, strict=True):
        if axis.extent == 1:
            found.append(0)
            continue
        # Of all but the last value: from there on nothing follows.
        before = Var("before", variable.ty)
        analyzer.bind(before, tvm.ir.Range(0, axis.extent - 1), True)
        here, there = (renamed(place, {variable: before + step}) for step in (0, 1))
        found.append(_whole(analyzer, there - here))
    nought = {variable: tirx.const(0, str(variable.ty.dtype)) for variable in variables}
    return found, _whole(analyzer, renamed(place, nought))


def _whole(analyzer: Any, expression: Any) -> int | None:
    made = analyzer.simplify(expression)
    return int(made.value) if isinstance(made, tirx.IntImm) else None


def _joined(along: Along, extents: list[int], strides: list[int]) -> list[Dimension]:
    """Axes, outermost first, as dimensions, innermost first: those that count on from each other
    are one."""
    found: list[Dimension] = []
    within = 1
    for extent, stride in zip(reversed(extents), reversed(strides), strict=True):
        if extent == 1:
            continue
        last = found[-1] if found else None
        if last is not None and stride == last.stride * last.extent:
            found[-1] = replace(last, extent=last.extent * extent)
        else:
            found.append(Dimension(along, extent, stride, within))
        within *= extent
    return found
