"""What the builder's child does. Importing this module is the child's warm-up."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tunefarm.devices.gpu import arch_of, multiplies_tf32
from tunefarm.measure.build import BuildRequest, Library
from tunefarm.measure.cuda import cubin
from tunefarm.measure.lowering import pipeline
from tunefarm.search import replay
from tunefarm.search.kernels.intrinsics import register_intrinsics
from tunefarm.search.plugins import load_plugins

register_intrinsics("llvm", platform.machine())
load_plugins()


class LinkError(Exception):
    """`ld` refused; its own words."""


def run_build(request: BuildRequest) -> Library:
    """Replay, lower, compile, link."""
    workload = replay.load_workload(request.workload)
    function = replay.scheduled_function(workload, request.target, request.trace)
    target = replay.tvm_target(request.target)
    if request.target.kind == "cuda":  # where nothing is packed
        kernel = tvm.IRModule({replay.KERNEL: function.with_attr("global_symbol", replay.KERNEL)})
        return _cuda_library(kernel, request)
    kernel, prepack, packed = replay.kernel_module(function)
    link(tvm.tirx.build(kernel, target, pipeline=pipeline(request.target)), request.library)
    if prepack is None:
        return Library(request.library, packed)
    return Library(request.library, packed, _prepack(prepack, target, request.library.parent))


def _cuda_library(kernel: Any, request: BuildRequest) -> Library:
    """With machine code for the GPU in it.

    Raises:
        InvalidTrace: no block of it fits a multiprocessor, or it rounds more than is allowed.
    """
    arch = arch_of(request.target)
    target = replay.tvm_target(request.target)
    built = tvm.tirx.build(kernel, target=target, pipeline=pipeline(request.target))
    multiplied = cubin.multiplies(built)
    if multiplied and not multiplies_tf32(request.target):
        raise replay.InvalidTrace(f"it multiplies {multiplied}, which nobody has allowed")
    imports, resources = cubin.pack_imports(built, arch.name)
    for one in resources:
        if one.registers * one.threads > arch.registers or one.shared_bytes > arch.shared:
            raise replay.InvalidTrace(
                f"{one.kernel}: {one.threads} threads of {one.registers} registers, and "
                f"{one.shared_bytes} bytes of shared memory, do not fit {arch.name}"
            )
    link(built, request.library, imports)
    return Library(request.library, (), None, resources, multiplied)


def _prepack(module: Any, target: Any, directory: Path) -> Path:
    """The packing function's library, built once: it takes as long as the kernel, and hundreds of
    candidates pack alike. Named by what is in it, so two builders may both make it."""
    library = directory / f"prepack-{tvm_ffi.structural_hash(module):016x}.so"
    if not library.exists():
        link(tvm.tirx.build(module, target=target), library)
    return library


def link(module: Any, library: Path, imports: Any = None) -> None:
    """Objects, and one `ld -shared`: gcc would take six times as long to the same bytes."""
    library.parent.mkdir(parents=True, exist_ok=True)
    stem = f".{library.stem}-{os.getpid()}"  # two builders may make the same library
    parts = [one for one in (module, imports) if one is not None]
    objects = [library.with_name(f"{stem}-{number}.o") for number, _ in enumerate(parts)]
    shared = library.with_name(f"{stem}.so")
    try:
        for part, file in zip(parts, objects, strict=True):
            part.write_to_file(str(file))
        done = subprocess.run(
            ["ld", "-shared", "-o", str(shared), *map(str, objects)], capture_output=True, text=True
        )
        if done.returncode:
            raise LinkError(done.stderr.strip()[-300:] or f"ld: exit code {done.returncode}")
        os.replace(shared, library)
    finally:
        for file in (*objects, shared):
            file.unlink(missing_ok=True)
