"""CUDA C++ to machine code on a machine without a GPU, and what its compiler says of it.

`nvcc` is used where it is on the path (it needs a C++ compiler beside it), else NVRTC, a library
that NVIDIA publishes as a Python package.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunefarm.devices.cuda_runtime import nvidia_packages
from tunefarm.devices.gpu import CLUSTERED, EXCHANGED
from tunefarm.errors import UnsupportedTarget
from tunefarm.home import write_atomically

PTX_DIRECTORY = "TUNEFARM_PTX"
"""Environment variable: where the PTX of what is compiled goes, by the digest of its machine code;
a GPU of paper reads it (`measure.emulator`)."""
_FLAGS = ("--use_fast_math", "-w")
_KERNEL = re.compile(r'(?=extern "C" __global__)')
_HALVES = tuple(
    f"-U__CUDA_NO_{name}__"
    for kind in ("HALF", "BFLOAT16", "BFLOAT162")
    for name in (f"{kind}_OPERATORS", f"{kind}_CONVERSIONS")
)


class CudaError(Exception):
    """The compiler refuses the source; its own words."""


@dataclass(frozen=True)
class Resources:
    """What one GPU kernel takes, by the compiler's report.

    Attributes:
        kernel: name of its entry.
        registers: of a thread, 32 bits each.
        shared_bytes: of a block, static.
        spill_bytes: that a thread stores to and loads from memory for want of registers.
        stack_bytes: of a thread.
        code_bytes: of its machine code.
        threads: of a block; 0 where the source does not say.
    """

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    stack_bytes: int
    code_bytes: int
    threads: int = 0


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    resources: tuple[Resources, ...]


COMPILERS = ("nvcc-", "nvrtc-")
"""What `cuda_compiler` begins with."""


@cache
def cuda_compiler() -> str:
    """What compiles here, in words that name its version: part of a candidate's identity.

    Raises:
        UnsupportedTarget: nothing does.
    """
    if shutil.which("nvcc"):
        said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\bV(\d+\.\d+\.\d+)", said.stdout)
        if said.returncode == 0 and version:
            return f"nvcc-{version[1]}"
    if (library := _nvrtc()) is not None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"nvrtc-{major.value}.{minor.value}"
    raise UnsupportedTarget(
        "nothing here compiles CUDA: there is no nvcc on the path, and no NVRTC",
        hint="Install CUDA's compiler (a GPU is not needed), or: pip install 'tunefarm[cuda]'",
    )


def compile_cuda(source: str, arch: str) -> Compiled:
    """Machine code of `source` for `arch`, such as ``sm_80``.

    Raises:
        CudaError: the compiler refuses it.
        UnsupportedTarget: there is no compiler.
    """
    which = cuda_compiler()
    source, arch = with_bounds(source), with_features(source, arch)
    cubin, ptx, said = (_with_nvcc if which.startswith("nvcc") else _with_nvrtc)(source, arch)
    if directory := os.environ.get(PTX_DIRECTORY):
        name = f"{hashlib.sha256(cubin).hexdigest()}.ptx"
        write_atomically(Path(directory) / name, ptx)
    return Compiled(cubin, read_report(said, code_sizes(cubin), block_sizes(source)))


def with_bounds(source: str) -> str:
    """`source` with what its kernels have to be launched with: clusters of blocks, where one calls
    what these do together; and where registers change hands, that a multiprocessor has one block at
    least, for else the compiler does not know with how many a thread begins, and leaves it be."""
    first, *kernels = _KERNEL.split(source)
    return "".join([first, *map(_bounded, kernels)])


def _bounded(kernel: str) -> str:
    if EXCHANGED in kernel:
        kernel = re.sub(r"__launch_bounds__\((\d+)\)", r"__launch_bounds__(\1, 1)", kernel, count=1)
    if (cluster := re.search(rf"{CLUSTERED}(\d+)\(", kernel)) is not None:
        dims = f"__cluster_dims__({cluster[1]}, 1, 1) __launch_bounds__("
        kernel = kernel.replace("__launch_bounds__(", dims, 1)
    return kernel


def with_features(source: str, arch: str) -> str:
    """`arch`, or what of it has instructions that no later architecture will have, where `source`
    uses such."""
    return f"{arch}a" if arch == "sm_90" and "wgmma." in source else arch


def _with_nvcc(source: str, arch: str) -> tuple[bytes, bytes, str]:
    number = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as directory:
        given, made = Path(directory) / "kernel.cu", Path(directory) / "kernel.cubin"
        given.write_text(source)
        command = ["nvcc", "--cubin", "-O3", f"-gencode=arch=compute_{number},code={arch}"]
        command += ["--keep", f"--keep-dir={directory}"]  # for the PTX in between
        command += [*_FLAGS, *_HALVES, "-Xptxas=-v", "-o", str(made), str(given)]
        # How long it may take is for whoever may end this process with all that it began.
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            raise CudaError(_errors(done.stderr) or f"nvcc: exit code {done.returncode}")
        between = made.with_suffix(".ptx")
        ptx = between.read_bytes() if between.exists() else b""
        return made.read_bytes(), ptx, done.stderr


def _errors(said: str) -> str:
    lines = [line for line in said.splitlines() if "error" in line.lower()]
    return " ".join(lines[:3])[-500:] or said.strip()[-300:]


# ------------------------------------------------------------------------------------ NVRTC


@cache
def _nvrtc() -> ctypes.CDLL | None:
    for root in nvidia_packages():
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


def _with_nvrtc(source: str, arch: str) -> tuple[bytes, bytes, str]:
    library = _nvrtc()
    assert library is not None
    headers = sorted({str(f.parent) for r in nvidia_packages() for f in r.glob("**/cuda_fp16.h")})
    std = sorted(
        {str(f.parent.parent) for r in nvidia_packages() for f in r.glob("**/cuda/std/cstdint")}
    )
    std = [str(Path(one).parent) for one in std]
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--use_fast_math", "-default-device"]
    options += [*_HALVES, "--ptxas-options=-v", *(f"-I{one}" for one in (*headers, *std))]
    program = ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    try:
        failed = library.nvrtcCompileProgram(program, len(options), given)
        log = _fetched(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        said = log.rstrip(b"\0").decode(errors="replace")
        if failed:
            raise CudaError(_errors(said) or f"NVRTC: error {failed}")
        ptx = b""
        if PTX_DIRECTORY in os.environ:  # nobody else is to fail for want of it
            ptx = _fetched(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program).rstrip(b"\0")
        return _fetched(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program), ptx, said
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetched(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(size_of(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(get(program, buffer))
    return buffer.raw


def _check(code: int) -> None:
    if code:
        raise CudaError(f"NVRTC: error {code}")


# ------------------------------------------------------------------------------- the report

_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, 1)?\)\s+(\w+)\s*\(")


def block_sizes(source: str) -> dict[str, int]:
    """Threads of a block, by kernel, as the source declares them."""
    return {name: int(threads) for threads, name in _BOUNDS.findall(source)}


def read_report(
    said: str, code_bytes: dict[str, int], threads: dict[str, int]
) -> tuple[Resources, ...]:
    """What `ptxas -v` printed, by kernel in its order.

    Args:
        code_bytes: by kernel, see `code_sizes`.
        threads: by kernel, see `block_sizes`.
    """
    found: list[Resources] = []
    entries = list(_ENTRY.finditer(said))
    for number, entry in enumerate(entries):
        end = entries[number + 1].start() if number + 1 < len(entries) else len(said)
        text, name = said[entry.end() : end], entry["name"]
        frame = _STACK.search(text)
        stack, stores, loads = map(int, frame.groups()) if frame else (0, 0, 0)
        used, shared = _USED.search(text), _SHARED.search(text)
        found.append(
            Resources(
                kernel=name,
                registers=int(used[1]) if used else 0,
                shared_bytes=int(shared[1]) if shared else 0,
                spill_bytes=stores + loads,
                stack_bytes=stack,
                code_bytes=code_bytes.get(name, 0),
                threads=threads.get(name, 0),
            )
        )
    return tuple(found)


def code_sizes(cubin: bytes) -> dict[str, int]:
    """Bytes of machine code by kernel: of the sections ``.text.NAME`` of an ELF file.

    Raises:
        CudaError: it is none.
    """
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise CudaError("what the compiler made is no 64-bit ELF file")

    def number(at: int, size: int) -> int:
        return int.from_bytes(cubin[at : at + size], "little")

    table, each, count, names = number(40, 8), number(58, 2), number(60, 2), number(62, 2)
    starts = [table + each * index for index in range(count)]
    strings = number(starts[names] + 24, 8)
    sizes = {}
    for start in starts:
        first = strings + number(start, 4)
        name = cubin[first : cubin.index(b"\0", first)].decode()
        if name.startswith(".text."):
            sizes[name.removeprefix(".text.")] = number(start + 32, 8)
    return sizes
