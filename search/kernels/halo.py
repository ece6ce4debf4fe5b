"""Zeros around a result, for the convolution that reads it.

A convolution whose image is padded has to ask of every element whether it lies inside, or to copy
the image first. Where nothing else reads the image, the kernel that makes it stores it where there
is room around it, and fills that with zeros. `frontend.relax.halos` puts the stage that pads at the
end of that kernel. What is searched for is the kernel without that stage (`within`): each family
knows it already. When it has been scheduled, it is moved to its place (`with_halo`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_walk

from tunefarm.frontend.relax.halos import STAGE
from tunefarm.search.kernels.placed import placed
from tunefarm.search.kernels.streaming import streams


@dataclass(frozen=True)
class Halo:
    """Room around a kernel's result, filled with zeros.

    Attributes:
        shape: of the whole, an extent an axis.
        starts: where the kernel's own result begins in it.
        inner: the extents of that.
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    inner: tuple[int, ...]


def within(workload: Any) -> tuple[Any, Halo | None]:
    """A kernel without the stage that pads its result, and what that leaves around it; None, and
    the kernel as it is, where it has no such stage or does nothing else."""
    function = workload["main"]
    root = function.body.block
    text = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stage = _stage(text[-1])
    if stage is None or len(text) < 2:
        return workload, None
    (load,) = (one for one in _loads(stage.body) if len(one.indices) == len(stage.iter_vars))
    inner = load.source
    starts = [
        int(Analyzer().simplify(axis.var - index))
        for axis, index in zip(stage.iter_vars, load.indices, strict=True)
    ]
    halo = Halo(_sizes(function.params[-1]), tuple(starts), _sizes(inner))
    rest = SBlock(
        [],
        [],
        [],
        root.name_hint,
        tirx.SeqStmt(text[:-1]) if len(text) > 2 else text[0],
        alloc_buffers=[one for one in root.alloc_buffers if not one.same_as(inner)],
        annotations=root.annotations,
    )
    made = tirx.PrimFunc(
        [*function.params[:-1], inner],
        SBlockRealize([], tirx.const(True, "bool"), rest),
        ret_type=function.ret_type,
        attrs=function.attrs,
    )
    return tvm.IRModule({"main": made}, attrs=workload.attrs), halo


def with_halo(function: Any, halo: Halo) -> Any:
    """A scheduled kernel that stores its result inside the room around it, and fills that.

    Raises:
        ValueError: it stores vectors that would not lie at multiples of their length there.
    """
    lanes = streams(function)
    if lanes and any(math.prod(halo.shape[axis + 1 :]) % lanes for axis in _padded(halo)):
        raise ValueError("with zeros around it the result's vectors would not be aligned")
    function = placed(function, halo.starts, halo.shape)
    result, shared = function.params[-1], _shared(function.body)

    def with_zeros(loop: Any) -> Any:
        if shared is None or not loop.same_as(shared):
            return loop
        zeros = _zeros(result, halo, loop.loop_var - loop.min, loop.extent)
        body = tirx.SeqStmt([loop.body, zeros])
        notes = loop.annotations
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    if shared is not None:
        return function.with_body(structural_map(function.body, (tirx.For, with_zeros)))
    root, one = function.body.block, tirx.const(1, "int64")
    zeros = _zeros(result, halo, tirx.const(0, "int64"), one)
    rest = SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        tirx.SeqStmt([root.body, zeros]),
        root.init,
        root.alloc_buffers,
        root.match_buffers,
        root.annotations,
    )
    return function.with_body(SBlockRealize([], function.body.predicate, rest))


def _shared(body: Any) -> Any:
    """The last loop that the cores share, None where there is none: each of its iterations has time
    for a share of the zeros."""
    loops: list[Any] = []
    structural_walk(body, (tirx.For, loops.append))
    shared = [loop for loop in loops if loop.kind == tirx.ForKind.PARALLEL]
    return shared[-1] if shared else None


def _padded(halo: Halo) -> list[int]:
    return [
        axis
        for axis, (inner, whole) in enumerate(zip(halo.inner, halo.shape, strict=True))
        if inner != whole
    ]


def _zeros(result: Any, halo: Halo, task: Any, tasks: Any) -> Any:
    """A stage that stores a task's share of the zeros: of some rows of the image what is outside of
    it. All tasks are as many as `tasks`."""
    images, height, width, channels = halo.shape
    _, top, left, _ = halo.starts
    _, inside, across, _ = halo.inner
    task, tasks = tirx.Cast("int64", task), tirx.Cast("int64", tasks)
    first = tirx.floordiv(task * (images * height), tasks)
    behind = tirx.floordiv((task + 1) * (images * height), tasks)
    loop = tirx.Var("row", "int64")
    image, row = tirx.floordiv(loop, height), tirx.floormod(loop, height)

    def box(start: int, size: int) -> Any:
        column, channel = tirx.Var("column", "int64"), tirx.Var("channel", "int64")
        zero = tirx.const(0.0, result.ty.dtype)
        text = tirx.BufferStore(result, zero, [image, row, column + start, channel])
        return _loop(column, size, _loop(channel, channels, text))

    sides = [(0, left), (left + across, width - left - across)]
    between = [box(start, size) for start, size in sides if size]
    text = box(0, width)
    if between:
        sides_of = tirx.SeqStmt(between) if len(between) > 1 else between[0]
        outside = tirx.any(row < top, row >= top + inside)
        text = tirx.IfThenElse(outside, text, sides_of)
    rows = tirx.For(loop, first, behind - first, tirx.ForKind.SERIAL, text)
    whole = [Range.from_min_extent(0, size) for size in halo.shape]
    block = SBlock([], [], [tirx.BufferRegion(result, whole)], STAGE, rows)
    return SBlockRealize([], tirx.const(True, "bool"), block)


def _loop(variable: Any, extent: int, text: Any) -> Any:
    zero, size = tirx.const(0, "int64"), tirx.const(extent, "int64")
    return tirx.For(variable, zero, size, tirx.ForKind.SERIAL, text)


def _stage(text: Any) -> Any:
    """The block called `STAGE` in a statement, None where there is none."""
    blocks: list[Any] = []
    structural_walk(text, (SBlock, blocks.append))
    return next((one for one in blocks if one.name_hint == STAGE), None)


def _loads(node: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (TensorLoad, found.append))
    return found


def _sizes(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.ty.shape)
