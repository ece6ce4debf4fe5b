"""A kernel whose result is a part of a larger one: it stores with an offset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad, TensorRegion, Var
from tvm_ffi import structural_map


def placed(function: Any, starts: Sequence[int], shape: Sequence[int]) -> Any:
    """The kernel, scheduled or not, with a result of `shape`, of which it writes its own part from
    `starts` on."""
    result = function.params[-1]
    sizes = [tirx.const(new, str(old.ty)) for new, old in zip(shape, result.ty.shape, strict=True)]
    whole = tirx.decl_buffer(sizes, result.ty.dtype, f"{result.name}_whole")

    def moved(indices: Any) -> list[Any]:
        return [i + start if start else i for i, start in zip(indices, starts, strict=True)]

    def store(node: Any) -> Any:
        if not node.buffer.same_as(whole):
            return node
        return tirx.BufferStore(whole, node.value, moved(node.indices))

    def load(node: Any) -> Any:
        return tirx.BufferLoad(whole, moved(node.indices)) if node.source.same_as(whole) else node

    def region(node: Any) -> Any:
        if not node.source.same_as(whole):
            return node
        first = moved([one.min for one in node.region])
        ranges = [
            Range.from_min_extent(least, one.extent)
            for least, one in zip(first, node.region, strict=True)
        ]
        return tirx.BufferRegion(whole, ranges)

    body = structural_map(
        function.body,
        (
            (Var, lambda variable: whole if variable.same_as(result) else variable),
            (tirx.BufferStore, store),
            (TensorLoad, load),
            (TensorRegion, region),
        ),
    )
    return tirx.PrimFunc(
        [*function.params[:-1], whole], body, ret_type=function.ret_type, attrs=function.attrs
    )
