"""Device code inside a library, made where no CUDA runtime is.

Without the CUDA runtime TVM leaves a kernel's CUDA C++ in the library, for whoever loads it to
compile: a GPU machine would need a compiler. So it is compiled here, and its machine code is put in
the place of the source. What TVM writes of a module of device code is [format][functions][code],
each string with its length in eight bytes before it; `tests/measure/test_cuda.py` fails when an
upgrade changes that.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from tunefarm.frontend.dtypes import TF32
from tunefarm.measure.cuda.compiler import Resources, compile_cuda

_SOURCE, _MACHINE = b"cuda", b"cubin"


class EmbedError(Exception):
    """The library is not laid out as expected."""


def device_modules(module: Any) -> list[Any]:
    """Modules of CUDA source that `module` imports, directly or not; each once."""
    found: list[Any] = []
    left = list(module.imports)
    while left:
        one = left.pop()
        if one.kind == "cuda" and not any(one.same_as(other) for other in found):
            found.append(one)
        left += list(one.imports)
    return found


def multiplies(module: Any) -> str:
    """See `Library.multiplies`."""
    rounded = any(".tf32." in one.inspect_source() for one in device_modules(module))
    return TF32 if rounded else ""


def pack_imports(module: Any, arch: str) -> tuple[Any, tuple[Resources, ...]]:
    """A module to link with `module`, that holds what it imports, as machine code; and what that
    takes.

    Raises:
        CudaError: the compiler refuses the source.
        EmbedError: TVM's format is another one.
    """
    tensor = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    blob = tensor.numpy().tobytes()
    resources: list[Resources] = []
    for one in device_modules(module):
        source = one.inspect_source()
        compiled = compile_cuda(source, arch)
        resources += compiled.resources
        blob = with_machine_code(blob, source.encode(), compiled.cubin)
    host = _host(module)
    target, prefix = host["_get_target_string"](), host["__tvm_get_system_lib_prefix"]()
    pack = tvm_ffi.get_global_func("codegen.codegen_blob")
    return pack(blob, bool(host["__tvm_is_system_module"]()), target, prefix or ""), tuple(
        resources
    )


def _host(module: Any) -> Any:
    left = [module]
    while left:
        one = left.pop()
        if one.kind == "llvm":
            return one
        left += list(one.imports)
    raise EmbedError("no code for the host")


def with_machine_code(blob: bytes, source: bytes, cubin: bytes) -> bytes:
    """`blob`, what `ModulePackImportsToTensor` made, with `cubin` where `source` was.

    Raises:
        EmbedError: `source` is not in it once, as expected.
    """
    code = _sized(source)
    at = blob.find(code)
    head = _sized(_SOURCE)
    start = blob.rfind(head, 0, at)
    if at < 0 or start < 8 or blob.find(code, at + 1) >= 0:
        raise EmbedError("the library's device code is not where it was expected")
    before, functions, after = blob[8:start], blob[start + len(head) : at], blob[at + len(code) :]
    payload = head + functions + code
    if before[-8:] != _length(payload):
        raise EmbedError("the library's device code is not as long as expected")
    made = _sized(_MACHINE) + functions + _sized(cubin)
    packed = before[:-8] + _length(made) + made + after
    return _length(packed) + packed


def _length(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little")


def _sized(data: bytes) -> bytes:
    return _length(data) + data
