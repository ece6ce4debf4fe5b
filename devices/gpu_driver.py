"""What the NVIDIA driver of this machine says, asked through its own library: no CUDA is needed."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Driver:
    """`cuda`: the newest major version that it runs; `archs`: of its GPUs, such as (8, 6)."""

    cuda: int
    archs: tuple[tuple[int, int], ...]


def driver() -> Driver | None:
    """None where there is none, or it shows no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if library.cuInit(0):
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    library.cuDeviceGetCount(ctypes.byref(count))
    return Driver(version.value // 1000, tuple(_arch(library, n) for n in range(count.value)))


_MAJOR, _MINOR = 75, 76
"""Attributes of a device: its compute capability."""


def _arch(library: ctypes.CDLL, number: int) -> tuple[int, int]:
    device, value = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), number)
    found = []
    for attribute in (_MAJOR, _MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found.append(value.value)
    return found[0], found[1]


def gpu_misfits(arch: str, cuda: int, here: Driver | None = None) -> list[str]:
    """Why machine code for `arch`, such as ``sm_80``, made by CUDA `cuda`, does not run here; empty
    where it does: on that architecture, or a later one of the same major version.

    Args:
        here: instead of this machine's.
    """
    here = here or driver()
    if here is None or not here.archs:
        return [f"it needs an NVIDIA GPU ({arch}), and the driver shows none"]
    found = []
    match = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
    assert match is not None, arch
    major, minor = int(match[1]), int(match[2])
    first = here.archs[0]  # which it would run on
    if first[0] != major or first[1] < minor:
        shown = f"sm_{first[0]}{first[1]}"
        found.append(f"it is for {arch} (to sm_{major}9), this machine's first GPU is {shown}")
    if here.cuda < cuda:
        found.append(f"it needs a driver for CUDA {cuda}, this one is for {here.cuda}")
    return found
