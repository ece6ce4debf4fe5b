"""CUDA's compiler as a library: it needs neither a toolkit nor a C++ compiler, and, given no more
headers than a kernel uses, a fifth of nvcc's time."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.devices.cuda_runtime import nvidia_packages
from tunefarm.measure import nvcc
from tunefarm.measure.cuda_source import FLAGS, CudaError, first_errors

_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_TOOLKIT = Path("/usr/local/cuda")
_NUMBERS = """\
namespace cuda { namespace std {
using int8_t = signed char; using uint8_t = unsigned char;
using int16_t = short; using uint16_t = unsigned short;
using int32_t = int; using uint32_t = unsigned int;
using int64_t = long; using uint64_t = unsigned long;
} }
"""
_TRAITS = """\
namespace cuda { namespace std {
template <bool V> struct says { enum : bool { value = V }; };
template <class A, class B> struct is_same : says<false> {};
template <class A> struct is_same<A, A> : says<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A> struct is_floating_point
    : says<is_same_v<A, float> || is_same_v<A, double>> {};
template <class A, class... Others> constexpr bool is_one_of = (is_same_v<A, Others> || ...);
template <class A> struct is_signed : says<is_floating_point<A>::value ||
    is_one_of<A, signed char, short, int, long, long long>> {};
template <class A> struct is_unsigned : says<
    is_one_of<A, bool, unsigned char, unsigned short, unsigned, unsigned long,
              unsigned long long>> {};
template <class A> struct is_integral : says<is_unsigned<A>::value || is_same_v<A, char> ||
    (is_signed<A>::value && !is_floating_point<A>::value)> {};
template <bool C, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { using type = A; };
template <bool C, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
"""
_FIRST = "struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };\n"
"""Of what nvcc finds in cuda.h, which needs the host's headers."""
HEADERS = {
    "cuda/std/cstdint": _NUMBERS,
    "cuda/std/type_traits": _TRAITS,
    "tunefarm_first.h": _FIRST,
}
"""What TVM's source begins with, where CUDA's own take six times as long to read as all the rest
takes to compile."""


def version() -> str:
    """Such as ``13.0.88``, or ``13.0`` where nothing tells more; empty where there is none, or no
    headers beside it."""
    if (found := _library()) is None or not _include():
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    found.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    short = f"{major.value}.{minor.value}"
    longer = (one for one in _told(Path(found._name)) if one.startswith(f"{short}."))
    return next(longer, short)


def _told(file: Path) -> Iterator[str]:
    """Versions, by the file's name and by the packages that it may be of."""
    yield file.resolve().name.partition(".so.")[2]
    for package in _PACKAGES:
        try:
            yield importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def compiled(source: str, arch: str) -> tuple[bytes, bytes, str]:
    """Machine code for `arch`, the PTX in between, and the report.

    Raises:
        CudaError: `source` is refused.
    """
    library = _library()
    assert library is not None, "whoever asks has asked for its version"
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *FLAGS]
    options += ["--pre-include=tunefarm_first.h", "--ptxas-options=-v"]
    options += [f"-I{one}" for one in _include()]
    program = ctypes.c_void_p()
    texts = _strings([text.encode() for text in HEADERS.values()])
    names = _strings([name.encode() for name in HEADERS])
    given = _strings([one.encode() for one in options])
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), None, len(HEADERS), texts, names
        )
    )
    try:
        failed = library.nvrtcCompileProgram(program, len(options), given)
        log = _fetched(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        said = log.rstrip(b"\0").decode(errors="replace")
        if failed:
            raise CudaError(first_errors(said) or f"NVRTC: error {failed}")
        ptx = _fetched(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program).rstrip(b"\0")
        return _fetched(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), ptx, said
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: list[bytes]) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts)


@cache
def _library() -> ctypes.CDLL | None:
    for root in (*nvidia_packages(), _TOOLKIT):
        for file in sorted(root.glob("**/libnvrtc.so.*")):
            # It opens this one by its name alone.
            for part in file.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(part))
            return ctypes.CDLL(str(file))
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@cache
def _include() -> tuple[Path, ...]:
    """Directories of the headers that kernels use: of NVIDIA's packages, or of a toolkit."""
    for root in nvidia_packages():
        if found := sorted({one.parent for one in root.glob("**/cuda_fp16.h")}):
            return tuple(found)
    toolkits = filter(None, (nvcc.include_directory(), _TOOLKIT / "include"))
    return next(((one,) for one in toolkits if (one / "cuda_fp16.h").exists()), ())


def _fetched(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer))
    return buffer.raw


def _check(code: int) -> None:
    if code:
        raise CudaError(f"NVRTC: error {code}")
