"""A kernel as TensorIR: its arguments, and the form in which it is hashed and tuned (needs TVM)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms

from tunefarm.frontend.program import TensorSpec


def argument_specs(function: Any) -> tuple[TensorSpec, ...]:
    """Shapes and dtypes of a PrimFunc's buffers: inputs, then outputs."""
    return tuple(
        TensorSpec(f"a{index}", tuple(int(d) for d in info.shape), str(info.dtype))
        for index, info in enumerate(ms.arg_info.ArgInfo.from_prim_func(function))
    )


def workload_module(function: Any) -> tvm.IRModule:
    """A kernel alone, under the name every tuner expects."""
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def workload_id(workload: tvm.IRModule) -> str:
    """The structural hash: equal kernels of any model have it in common; 16 hex digits."""
    return f"{int(ms.utils.shash2hex(workload), 16):016x}"
