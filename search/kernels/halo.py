"""Zeros around a result, for the convolution that reads it.

A convolution whose image is padded has to ask of every element whether it lies inside, or to copy
the image first. Where nothing else reads the image, the kernel that makes it stores it where there
is room around it, and fills that with zeros. `frontend.relax.halos` puts the stage that pads at the
end of that kernel. What is searched for is the kernel without that stage (`within`): each family
knows it already. When it has been scheduled, it is moved to its place (`with_halo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

from tunefarm.frontend.relax.halos import STAGE
from tunefarm.search.kernels.placed import placed
from tunefarm.search.kernels.streaming import streams

_ROOM = "tunefarm.room"
"""Of a kernel without the stage that pads its result."""


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
    """A kernel without the stage that pads its result, noted as `has_room`, and what that stage
    leaves around it; None, and the kernel as it is, where it has no such stage or nothing else."""
    function = workload["main"]
    root = function.body.block
    text = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stage = _stage(text[-1])
    if stage is None or len(text) < 2:
        return workload, None
    (load,) = _of_type(stage.body, TensorLoad)
    inner = load.source
    starts = [
        int(Analyzer().simplify(axis.var - index))
        for axis, index in zip(stage.iter_vars, load.indices, strict=True)
    ]
    halo = Halo(_sizes(function.params[-1]), tuple(starts), _sizes(inner))
    kept = [one for one in root.alloc_buffers if not one.same_as(inner)]
    made = tirx.PrimFunc(
        [*function.params[:-1], inner],
        _root(root, text[:-1], kept),
        ret_type=function.ret_type,
        attrs=function.attrs,
    )
    return tvm.IRModule({"main": made.with_attr(_ROOM, True)}, attrs=workload.attrs), halo


def has_room(workload: Any) -> bool:
    """Whether a kernel's result will lie within a larger one: its rows are then not one behind the
    other."""
    return _ROOM in (workload["main"].attrs or {})


def stays_aligned(function: Any, halo: Halo) -> bool:
    """Whether a scheduled kernel's result may lie there: what passes the caches by is stored at
    multiples of a vector's length."""
    lanes = streams(function)
    return not lanes or halo.shape[-1] % lanes == 0


def with_halo(function: Any, halo: Halo) -> Any:
    """A scheduled kernel that stores its result inside the room around it, and fills that: each
    iteration of the loop that the cores share, if that is the outermost one, stores some zeros."""
    function = placed(function, halo.starts, halo.shape)
    result, root = function.params[-1], function.body.block
    text = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    for place, loop in enumerate(text):
        if _is_shared(loop) and _stores_to(result, loop):
            zeros = _zeros(result, halo, loop.loop_var, int(loop.extent))
            text[place] = tirx.For(
                loop.loop_var,
                loop.min,
                loop.extent,
                loop.kind,
                tirx.SeqStmt([loop.body, zeros]),
                annotations=loop.annotations,
            )
            break
    else:
        text.append(_zeros(result, halo, tirx.const(0, "int64"), 1))
    return function.with_body(_root(root, text, root.alloc_buffers))


def _root(root: Any, text: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The outermost block with other statements."""
    block = SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        tirx.SeqStmt(text) if len(text) > 1 else text[0],
        root.init,
        buffers,
        root.match_buffers,
        root.annotations,
    )
    return SBlockRealize([], tirx.const(True, "bool"), block)


def _is_shared(text: Any) -> bool:
    """Whether it is a loop whose iterations are the cores' tasks."""
    if not isinstance(text, tirx.For) or text.kind != tirx.ForKind.PARALLEL:
        return False
    first = getattr(text.min, "value", None)
    return first == 0 and text.step is None and isinstance(text.extent, tirx.IntImm)


def _stores_to(buffer: Any, text: Any) -> bool:
    return any(store.buffer.same_as(buffer) for store in _of_type(text, tirx.BufferStore))


def _zeros(result: Any, halo: Halo, task: Any, tasks: int) -> Any:
    """A stage that stores a task's share of the zeros: of some rows of the image what is outside of
    it. All tasks are as many as `tasks`."""
    images, height, width, channels = halo.shape
    _, top, left, _ = halo.starts
    _, inside, across, _ = halo.inner
    task, count = tirx.Cast("int64", task), images * height
    loop = tirx.Var("row", "int64")
    image, row = tirx.floordiv(loop, height), tirx.floormod(loop, height)

    def box(start: int, size: int) -> Any:
        column, channel = tirx.Var("column", "int64"), tirx.Var("channel", "int64")
        zero = tirx.const(0.0, result.ty.dtype)
        text = tirx.BufferStore(result, zero, [image, row, column + start, channel])
        return _loop(column, size, _loop(channel, channels, text))

    sides = [(0, left), (left + across, width - left - across)]
    between = [box(start, size) for start, size in sides if size]
    beside = tirx.SeqStmt(between) if len(between) > 1 else next(iter(between), None)
    outside = tirx.any(row < top, row >= top + inside)
    text = tirx.IfThenElse(outside, box(0, width), beside)
    if tasks < count:
        first, behind = (tirx.floordiv(one * count, tasks) for one in (task, task + 1))
        rows = tirx.For(loop, first, behind - first, tirx.ForKind.SERIAL, text)
    else:  # a row for some of them: the others are to know at once
        every = 1 << (tasks // count).bit_length() - 1
        chosen = tirx.all(task % every == 0, task // every < count)
        one = tirx.For(loop, task // every, tirx.const(1, "int64"), tirx.ForKind.SERIAL, text)
        rows = tirx.IfThenElse(chosen, one, None)
    whole = [Range.from_min_extent(0, size) for size in halo.shape]
    block = SBlock([], [], [tirx.BufferRegion(result, whole)], STAGE, rows)
    return SBlockRealize([], tirx.const(True, "bool"), block)


def _loop(variable: Any, extent: int, text: Any) -> Any:
    zero, size = tirx.const(0, "int64"), tirx.const(extent, "int64")
    return tirx.For(variable, zero, size, tirx.ForKind.SERIAL, text)


def _stage(text: Any) -> Any:
    """The block called `STAGE` in a statement, None where there is none."""
    return next((one for one in _of_type(text, SBlock) if one.name_hint == STAGE), None)


def _of_type(node: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (kind, found.append))
    return found


def _sizes(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.ty.shape)
