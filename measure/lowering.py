"""How kernels and whole models are lowered to machine code: the same way."""

from __future__ import annotations

import os
from typing import Any

import tvm
from tvm.s_tir import SBlock
from tvm.tirx.compilation_pipeline import get_tir_pipeline, register_tir_pipeline
from tvm_ffi import structural_walk

from tunefarm.devices.target import Target
from tunefarm.measure.cpu_passes import kept_local, rounded_at_once, rounded_in_vectors
from tunefarm.measure.cuda.passes import bound_loads, copied_apart

os.environ["TVM_COMPILE_FORCE_FALLBACK"] = "1"
"""TVM's way without a CUDA runtime, on a machine that has a GPU as well: both make the same bytes,
and `cubin` puts the machine code in."""
_FOR_GPUS, _FOR_PROCESSORS = "tunefarm-gpu", "tunefarm-cpu"
_COPIES = {"tirx.use_async_copy": True}


def pipeline(target: Target) -> str:
    """The name of a pipeline of TVM's for `target`, for `tvm.tirx.build` and `relax.build`.

    On a processor, what a kernel holds in registers is left to LLVM, and numbers are rounded and
    made integers in one step (`cpu_passes`).

    On a GPU, copies to shared memory that a kernel marks for it go past the registers
    (``cp.async``, from sm_80 on). And kernels that ask for their shared memory at launch keep their
    buffers apart: where storage is used again by its size, sums in float32 come to lie in an
    operand's 16 bits, and TVM refuses to store them there. A later pass uses that memory again by
    its bytes, which it does not for other kernels.
    """
    name, made = _FOR_PROCESSORS, _for_processors
    if target.kind == "cuda":
        name, made = _FOR_GPUS, _for_gpus
    register_tir_pipeline(name, made)
    return name


def _for_processors() -> tuple[Any, Any, Any]:
    lower, for_host, for_device = get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_each(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        written = {variable: rounded_in_vectors(one) for variable, one in module.functions_items()}
        return lower(tvm.IRModule(written, attrs=module.attrs))

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def for_llvm(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        written = {
            variable: rounded_at_once(kept_local(one)) for variable, one in module.functions_items()
        }
        return tvm.IRModule(written, attrs=module.attrs)

    return lower_each, lambda: tvm.ir.transform.Sequential([for_llvm, for_host()]), for_device


def _for_gpus() -> tuple[Any, Any, Any]:
    lower, for_host, for_device = get_tir_pipeline("default")

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower_each(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        parts: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})
        for variable, function in module.functions_items():
            parts[asks_for_shared(function)][variable] = copied_apart(function)
        plain, asking = (tvm.IRModule(part, attrs=module.attrs) for part in parts)
        with tvm.transform.PassContext(config={**_COPIES, "tirx.disable_storage_rewrite": True}):
            lowered = lower(asking)
        with tvm.transform.PassContext(config=_COPIES):
            lowered.update(lower(plain))
        return lowered

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def bind_loads(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        bound = {variable: bound_loads(one) for variable, one in module.functions_items()}
        return tvm.IRModule(bound, attrs=module.attrs)

    return lower_each, for_host, lambda: tvm.ir.transform.Sequential([for_device(), bind_loads])


def asks_for_shared(function: Any) -> bool:
    """Whether a kernel's shared memory is asked for at launch."""
    found = False

    def look(block: Any) -> None:
        nonlocal found
        found = found or any(one.scope() == "shared.dyn" for one in block.alloc_buffers)

    structural_walk(function.body, (SBlock, look))
    return found
