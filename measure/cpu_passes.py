"""What TVM's lowering for processors keeps from the compiler under it."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

MOST_BYTES = 4096
"""Twice what AVX-512 has registers for: what is more than they hold is seldom worth it, and whoever
calls a kernel may have little stack."""
_AS_IT_IS = "disable_lower_builtin"
"""TVM's word for an allocation that stays one."""


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
