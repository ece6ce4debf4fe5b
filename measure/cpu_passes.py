"""What TVM's lowering for processors keeps from the compiler under it."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call
from tvm_ffi import structural_map

MOST_BYTES = 4096
"""Twice what AVX-512 has registers for: what is more than they hold is seldom worth it, and whoever
calls a kernel may have little stack."""
_AS_IT_IS = "disable_lower_builtin"
"""TVM's word for an allocation that stays one."""

_TO_WHOLE = "tirx.nearbyint"
_IN_VECTORS = "tirx.round"
"""Another name of the same instruction's, for TVM's code for processors: half a step comes to the
even number by either."""
_AT_ONCE = "llvm.lrint"
_AT_MOST_32_BITS = ("int8", "uint8", "int16", "uint16", "int32")


def rounded_in_vectors(function: Any) -> Any:
    """`function`, before it is lowered, with a rounding to whole numbers that TVM knows in vectors.

    A loop with the other one is left to LLVM, whole, as one of single numbers; what it makes of
    that has half of AVX-512's width where it prefers so, and is seldom as good.
    """

    def in_vectors(call: Any) -> Any:
        if getattr(call.op, "name", "") != _TO_WHOLE:
            return call
        return tirx.call_intrin(call.ty, _IN_VECTORS, *call.args)

    return function.with_body(structural_map(function.body, (Call, in_vectors)))


def rounded_at_once(function: Any) -> Any:
    """`function` in which a number is rounded to a whole one and made an integer in one step, which
    x86 has an instruction for: half a step comes to the even number, as before."""

    def at_once(cast: Any) -> Any:
        rounding, kind = cast.value, tvm.DataType(cast.ty.dtype)
        if getattr(getattr(rounding, "op", None), "name", "") != _IN_VECTORS:
            return cast
        (number,) = rounding.args
        single = tvm.DataType("float32").with_lanes(kind.lanes)
        if str(kind.with_lanes(1)) not in _AT_MOST_32_BITS or number.ty.dtype != single:
            return cast
        wide = tvm.DataType("int32").with_lanes(kind.lanes)
        return tirx.call_llvm_pure_intrin(wide, _AT_ONCE, number).astype(kind)

    return function.with_body(structural_map(function.body, (tirx.Cast, at_once)))


def kept_local(function: Any) -> Any:
    """`function` whose local buffers, such as a tile's sums, lie on the stack, where LLVM makes
    registers of them.

    TVM asks its runtime for them: memory that others may read, as far as LLVM knows. So it sets to
    zero what is never read, and stores every sum before it reads it again.
    """

    def kept(allocation: Any) -> Any:
        return _marked(allocation) if _is_small_and_local(allocation.buffer) else allocation

    return function.with_body(structural_map(function.body, (tirx.AllocBuffer, kept)))


def _is_small_and_local(buffer: Any) -> bool:
    if buffer.scope() != "local" or not all(isinstance(one, tirx.IntImm) for one in buffer.shape):
        return False
    element = tvm.DataType(buffer.dtype)
    size: int = prod(map(int, buffer.shape)) * element.bits * element.lanes // 8
    return size <= MOST_BYTES


def _marked(allocation: Any) -> Any:
    noted = {**(allocation.annotations or {}), _AS_IT_IS: tirx.IntImm("bool", 1)}
    return tirx.AllocBuffer(allocation.buffer, noted, allocation.span)
