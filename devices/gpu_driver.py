"""What the NVIDIA driver of this machine says, asked through its own library: no CUDA is needed."""

from __future__ import annotations

import ctypes
import re
import uuid
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable that names the GPUs which a process sees; the first of them is its own."""
KIND = "TUNEFARM_DEVICE_KIND"
"""Environment variable that tells a runner's child what it runs on."""


@dataclass(frozen=True)
class Gpu:
    """`arch`: its compute capability, such as (8, 6); `uuid`: its name among all GPUs."""

    arch: tuple[int, int]
    uuid: str


@dataclass(frozen=True)
class Driver:
    """`cuda`: the newest major version that it runs; `gpus`: those that this process sees."""

    cuda: int
    gpus: tuple[Gpu, ...]


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
    return Driver(version.value // 1000, tuple(_gpu(library, n) for n in range(count.value)))


_MAJOR, _MINOR = 75, 76
"""Attributes of a device: its compute capability."""


def _gpu(library: ctypes.CDLL, number: int) -> Gpu:
    device, value = ctypes.c_int(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), number)
    found = []
    for attribute in (_MAJOR, _MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found.append(value.value)
    identity, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
    library.cuDeviceGetUuid_v2(identity, device)
    library.cuDeviceGetName(name, len(name), device)
    # An instance of a GPU that is shared out (MIG) goes by a name of its own.
    kind = "MIG" if b" MIG " in name.value else "GPU"
    return Gpu((found[0], found[1]), f"{kind}-{uuid.UUID(bytes=bytes(identity))}")


def gpu_misfits(arch: str, cuda: int, here: Driver | None = None) -> list[str]:
    """Why machine code for `arch`, such as ``sm_80``, made by CUDA `cuda`, does not run here; empty
    where it does: on that architecture, or a later one of the same major version.

    Args:
        here: instead of this machine's.
    """
    here = here or driver()
    if here is None or not here.gpus:
        return [f"it needs an NVIDIA GPU ({arch}), and the driver shows none"]
    found = []
    match = re.fullmatch(r"sm_(\d+)(\d)a?", arch)
    assert match is not None, arch
    major, minor = int(match[1]), int(match[2])
    first = here.gpus[0].arch  # which it would run on
    if first[0] != major or first[1] < minor:
        shown = f"sm_{first[0]}{first[1]}"
        found.append(f"it is for {arch} (to sm_{major}9), this machine's first GPU is {shown}")
    if here.cuda < cuda:
        found.append(f"it needs a driver for CUDA {cuda}, this one is for {here.cuda}")
    return found
