"""What GPUs of an architecture have, as far as a builder without one must know. Pure.

Limits by compute capability are NVIDIA's, from the table of technical specifications in the CUDA
C++ Programming Guide (compute capabilities 7.0 to 12.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tunefarm.devices.target import Target, make_target
from tunefarm.errors import UnsupportedTarget

STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a block may have without asking. TVM asks for what a kernel takes
dynamically, as those for tensor cores do."""


CLUSTERED, EXCHANGED = "cluster_of_", "tunefarm_registers_"
"""In the names of functions in CUDA C++ that say how a kernel which calls them has to be launched:
in clusters of as many blocks as follows, or with registers that change hands between threads."""


@dataclass(frozen=True)
class Arch:
    """Limits of one compute capability.

    Attributes:
        shared: bytes of shared memory that a block can ask for at most.
        shared_of_all: bytes that a multiprocessor's blocks have together.
        threads_of_all: that a multiprocessor holds at a time.
        registers: 32-bit ones, of a block as of a multiprocessor.
        tensor_cores: element types that they multiply.
        lanes, tensor_lanes: multiply-adds of a multiprocessor in a cycle, in float32 and, on tensor
            cores, of float16; by NVIDIA's tables of throughput and its data sheets' peaks.
        multiprocessors: of its largest part that is sold, to order schedules by where nobody has
            asked the device.
    """

    name: str
    shared: int
    shared_of_all: int
    threads_of_all: int
    tensor_cores: tuple[str, ...]
    multiprocessors: int
    lanes: int
    tensor_lanes: int
    registers: int = 65536
    threads: int = 1024
    warp: int = 32

    def registers_each(self, threads: int) -> int:
        """That a thread can have at most, in a block of so many: they are given out to four warps
        together, and to a thread by eights."""
        return min(255, self.registers // self._together(threads) // 8 * 8)

    def blocks_by_registers(self, threads: int, registers: int) -> int:
        """That a multiprocessor has registers for, where each thread of a block takes so many."""
        return self.registers // (self._together(threads) * (-(-registers // 8) * 8))

    def _together(self, threads: int) -> int:
        """Threads that registers are given out for."""
        four = 4 * self.warp
        return -(-threads // four) * four

    @property
    def copies_aside(self) -> bool:
        """Whether it copies to shared memory without its threads' registers: from 8.0 on."""
        return int(self.name.removeprefix("sm_")) >= 80

    @property
    def warp_groups(self) -> bool:
        """Whether four warps multiply together (``wgmma``): on 9.0 alone."""
        return self.name == "sm_90"


_TURING = ("float16", "int8")
_AMPERE = ("float16", "bfloat16", "tf32", "int8")
_HOPPER = (*_AMPERE, "float8")
_KIB = 1 << 10
_ARCHS = {
    70: Arch("sm_70", 96 * _KIB, 96 * _KIB, 2048, ("float16",), 80, 64, 512),
    72: Arch("sm_72", 96 * _KIB, 96 * _KIB, 2048, _TURING, 8, 64, 512),
    75: Arch("sm_75", 64 * _KIB, 64 * _KIB, 1024, _TURING, 72, 64, 512),
    80: Arch("sm_80", 163 * _KIB, 164 * _KIB, 2048, _AMPERE, 108, 64, 1024),
    86: Arch("sm_86", 99 * _KIB, 100 * _KIB, 1536, _AMPERE, 84, 128, 512),
    87: Arch("sm_87", 163 * _KIB, 164 * _KIB, 1536, _AMPERE, 16, 128, 1024),
    89: Arch("sm_89", 99 * _KIB, 100 * _KIB, 1536, _HOPPER, 142, 128, 512),
    90: Arch("sm_90", 227 * _KIB, 228 * _KIB, 2048, _HOPPER, 132, 128, 2048),
    100: Arch("sm_100", 227 * _KIB, 228 * _KIB, 2048, _HOPPER, 148, 128, 4096),
    120: Arch("sm_120", 99 * _KIB, 100 * _KIB, 1536, _HOPPER, 170, 128, 512),
}


def arch_of(target: Target) -> Arch:
    """The architecture that `target`, of kind ``cuda``, names.

    Raises:
        UnsupportedTarget: it names none, or one that is not known here.
    """
    text = str(target.get("arch") or "")
    match = re.fullmatch(r"sm_(\d+)a?", text)
    if match is None or int(match[1]) not in _ARCHS:
        known = ", ".join(arch.name for arch in _ARCHS.values())
        raise UnsupportedTarget(
            f"target {target.text!r}: "
            + (f"no architecture {text!r} is known" if text else "it names no architecture"),
            hint=f"Write cuda:arch=sm_80; known are {known}.",
        )
    return _ARCHS[int(match[1])]


def multiplies_tf32(target: Target) -> bool:
    """Whether `target` allows that products of float32 are computed from ten of its 23 bits.

    Raises:
        UnsupportedTarget: it allows something else, or its tensor cores cannot.
    """
    allowed = target.get("precision")
    if allowed in (None, "float32"):
        return False
    arch = arch_of(target)
    if allowed != "tf32":
        raise UnsupportedTarget(
            f"target {target.text!r}: no precision {allowed!r} is known",
            hint="Write cuda:precision=tf32, or leave it away for float32.",
        )
    if "tf32" not in arch.tensor_cores:
        raise UnsupportedTarget(
            f"target {target.text!r}: the tensor cores of {arch.name} have no tf32",
            hint="From sm_80 on they do.",
        )
    return True


def with_dynamic_shared(target: Target) -> Target:
    """`target` for kernels whose shared memory is asked for at launch."""
    limits = {**dict(target.attrs), "max_shared_memory_per_block": arch_of(target).shared}
    return make_target(target.kind, limits)


def completed(target: Target) -> Target:
    """`target` with the limits that schedules must keep, where it does not name them itself.

    Raises:
        UnsupportedTarget: see `arch_of` and `multiplies_tf32`.
    """
    arch = arch_of(target)
    multiplies_tf32(target)
    return target.with_attrs(
        {
            "max_shared_memory_per_block": STATIC_SHARED,
            "max_threads_per_block": arch.threads,
            "registers_per_block": arch.registers,
            "thread_warp_size": arch.warp,
        }
    )
