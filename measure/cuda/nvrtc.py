"""CUDA's compiler as a library: it needs neither a toolkit nor a C++ compiler, and, given no more
headers than a kernel uses, a quarter of nvcc's time."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.devices.cuda_runtime import nvidia_packages
from tunefarm.measure.cuda.source import FLAGS, CudaError, first_errors

_TOOLKIT, _SYSTEM = Path("/usr/local/cuda"), Path("/usr")
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
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
template <class A> struct bare { using type = A; };
template <class A> struct bare<const A> : bare<A> {};
template <class A> struct bare<volatile A> : bare<A> {};
template <class A> struct bare<const volatile A> : bare<A> {};
template <class A, class B> struct is_same : says<false> {};
template <class A> struct is_same<A, A> : says<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A, class... Others>
constexpr bool is_one_of = (is_same_v<typename bare<A>::type, Others> || ...);
template <class A> struct is_floating_point : says<is_one_of<A, float, double, long double>> {};
template <class A> struct is_integral : says<
    is_one_of<A, bool, char, wchar_t, char16_t, char32_t, signed char, unsigned char, short,
              unsigned short, int, unsigned, long, unsigned long, long long,
              unsigned long long>> {};
template <class A, bool = is_integral<A>::value> struct is_signed : is_floating_point<A> {};
template <class A> struct is_signed<A, true>
    : says<(typename bare<A>::type)(-1) < (typename bare<A>::type)(0)> {};
template <class A, bool = is_integral<A>::value> struct is_unsigned : says<false> {};
template <class A> struct is_unsigned<A, true> : says<!is_signed<A>::value> {};
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
"""What TVM's source begins with, where CUDA's own take five times as long to read as all the rest
takes to compile."""
_TRIED = "#include <cuda_fp16.h>\n#include <mma.h>\n"
"""What kernels use of NVIDIA's own headers: where that does not compile, nothing of them would."""


@dataclass(frozen=True)
class _Found:
    """The library, and a directory of headers of the same release."""

    library: ctypes.CDLL
    include: Path
    version: str


def version() -> str:
    """Such as ``13.0.88``, or ``13.0`` where nothing tells more; empty where none is here that
    compiles."""
    found = _found()
    return found.version if found is not None else ""


@cache
def _found() -> _Found | None:
    for library, include in _candidates():
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        release = f"{major.value}.{minor.value}"
        if _release_of(include) != release:
            continue
        longer = (one for one in _told() if one.startswith(f"{release}."))
        found = _Found(library, include, next(longer, release))
        try:
            _compiled(found, _TRIED, "sm_80")
        except CudaError:  # parts of it are missing
            continue
        return found
    return None


def _candidates() -> Iterator[tuple[ctypes.CDLL, Path]]:
    """Of NVIDIA's packages, of a toolkit, of the system, the latest of each first: libraries that
    can be loaded here, and where their headers may be."""
    for root in (*nvidia_packages(), _TOOLKIT):
        headers = sorted({one.parent for one in root.glob("**/cuda_fp16.h")}, reverse=True)
        for file in sorted(root.glob("**/libnvrtc.so.*"), key=_numbers_of, reverse=True):
            try:
                # It opens this one by its name alone.
                for part in file.parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(part))
                library = ctypes.CDLL(str(file))
            except OSError:  # another processor's, say
                continue
            yield from ((library, one) for one in headers)
    for name in _NAMES:
        try:
            yield ctypes.CDLL(name), _SYSTEM / "include"
        except OSError:
            continue


def _numbers_of(file: Path) -> list[int]:
    """Of its name, whichever directory it lies in."""
    return [int(number) for number in re.findall(r"\d+", file.name)]


def _release_of(include: Path) -> str:
    """Of the headers in a directory, such as ``13.0``; empty where there are none."""
    try:
        said = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    except OSError:
        return ""
    return f"{int(said[1]) // 1000}.{int(said[1]) % 1000 // 10}" if said else ""


def _told() -> Iterator[str]:
    """Versions, by the name of the file that was loaded and by NVIDIA's packages."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, _, longer = line.rpartition("libnvrtc.so.")
        yield longer
    for major in ("", "-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield importlib.metadata.version(f"nvidia-cuda-nvrtc{major}")


def compiled(source: str, arch: str) -> tuple[bytes, bytes, str]:
    """Machine code for `arch`, the PTX in between, where it can be had, and the report.

    Raises:
        CudaError: `source` is refused.
    """
    found = _found()
    assert found is not None, "whoever asks has asked for its version"
    return _compiled(found, source, arch)


def _compiled(found: _Found, source: str, arch: str) -> tuple[bytes, bytes, str]:
    library = found.library
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *FLAGS]
    options += ["--pre-include=tunefarm_first.h", "--ptxas-options=-v", f"-I{found.include}"]
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
        ptx = b""
        with contextlib.suppress(CudaError):  # nobody is to fail for want of it
            ptx = _fetched(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program).rstrip(b"\0")
        return _fetched(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), ptx, said
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: list[bytes]) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts)


def _fetched(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer))
    return buffer.raw


def _check(code: int) -> None:
    if code:
        raise CudaError(f"NVRTC: error {code}")
