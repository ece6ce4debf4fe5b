"""CUDA C++ to machine code on a machine without a GPU, and what its compiler says of it.

There are two: NVRTC, a library that NVIDIA publishes as a Python package, and `nvcc`, a toolkit's
program. The later release is used; of the same one NVRTC, which takes a quarter of the time.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunefarm.errors import UnsupportedTarget
from tunefarm.home import write_atomically
from tunefarm.measure.cuda import nvcc, nvrtc
from tunefarm.measure.cuda.source import CudaError, block_sizes, with_bounds, with_features

PTX_DIRECTORY = "TUNEFARM_PTX"
"""Environment variable: where the PTX of what is compiled goes, by the digest of its machine code;
a GPU of paper reads it (`cuda.emulator`)."""


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


COMPILERS = {"nvrtc": nvrtc, "nvcc": nvcc}
"""By the name that `cuda_compiler` begins with."""
COMPILER = "TUNEFARM_CUDA_COMPILER"
"""Environment variable: the one of them that is used, whichever is the later."""


@cache
def cuda_compiler() -> str:
    """What compiles here and its version, such as ``nvrtc-13.0.88``: part of a candidate's
    identity.

    Raises:
        UnsupportedTarget: nothing does, or not what the environment asks for.
    """
    asked = os.environ.get(COMPILER)
    among = {name: one for name, one in COMPILERS.items() if not asked or name == asked}
    found = {name: version for name, one in among.items() if (version := one.version())}
    if asked and not found:
        raise UnsupportedTarget(
            f"{COMPILER}={asked}: nothing here compiles CUDA by that name",
            hint=f"It may be one of {', '.join(COMPILERS)}, if that is here; or unset it.",
        )
    if not found:
        raise UnsupportedTarget(
            "nothing here compiles CUDA: there is no nvcc on the path, and no NVRTC",
            hint="Install CUDA's compiler (a GPU is not needed), or: pip install 'tunefarm[cuda]'",
        )
    latest = max(found, key=lambda name: _release(found[name]))  # the first of equals
    return f"{latest}-{found[latest]}"


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def compile_cuda(source: str, arch: str) -> Compiled:
    """Machine code of `source` for `arch`, such as ``sm_80``.

    Raises:
        CudaError: the compiler refuses it.
        UnsupportedTarget: there is no compiler.
    """
    which, _, _ = cuda_compiler().partition("-")
    source, arch = with_bounds(source), with_features(source, arch)
    cubin, ptx, said = COMPILERS[which].compiled(source, arch)
    if ptx and (directory := os.environ.get(PTX_DIRECTORY)):
        name = f"{hashlib.sha256(cubin).hexdigest()}.ptx"
        write_atomically(Path(directory) / name, ptx)
    return Compiled(cubin, read_report(said, code_sizes(cubin), block_sizes(source)))


_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


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
