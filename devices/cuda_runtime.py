"""TVM's CUDA runtime in a process that has the runtime alone: there TVM does not load it itself."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from tunefarm.errors import NoDevice

LIBRARY = "libcudart.so.13"
"""What this TVM's needs, by name."""


def nvidia_packages() -> list[Path]:
    """Where NVIDIA's Python packages lie."""
    found = importlib.util.find_spec("nvidia")
    return [Path(one) for one in found.submodule_search_locations or ()] if found else []


def cuda_library() -> Path | None:
    """CUDA's own runtime library: beside TVM's (a bundle brings it along), in NVIDIA's package, or
    in a toolkit; None where only the system may know of it."""
    tvm = importlib.util.find_spec("tvm")
    beside = [Path(tvm.origin).parent / "lib"] if tvm and tvm.origin else []
    for root in (*beside, *nvidia_packages(), Path("/usr/local/cuda")):
        for found in sorted(root.glob(f"**/{LIBRARY}")):
            return found
    return None


def load_cuda_runtime() -> None:
    """Load it, and what it needs: the driver's library, and CUDA's own runtime library.

    Raises:
        NoDevice: one of them is not there.
    """
    import tvm_ffi

    if tvm_ffi.get_global_func("ffi.Module.load_from_bytes.cuda", allow_missing=True) is not None:
        return
    import tvm

    libraries = Path(tvm.__file__).parent / "lib"
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NoDevice(
            f"no NVIDIA driver: {error}", hint="Install it: libcuda.so.1 is a part of it."
        ) from error
    if (file := cuda_library()) is not None:
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    try:
        ctypes.CDLL(str(libraries / "libtvm_runtime_cuda.so"))
    except OSError as error:
        raise NoDevice(
            f"TVM's CUDA runtime cannot be loaded: {error}",
            hint="It needs CUDA's runtime library: pip install 'tunefarm[cuda]'",
        ) from error
