"""What TVM's CUDA C++ lacks for its compiler, and what it says of its kernels. Pure."""

from __future__ import annotations

import re

from tunefarm.devices.gpu import CLUSTERED, EXCHANGED


class CudaError(Exception):
    """The compiler refuses the source; its own words."""


FLAGS = (
    *("--use_fast_math", "-w"),
    *(
        f"-U__CUDA_NO_{name}__"
        for kind in ("HALF", "BFLOAT16", "BFLOAT162")
        for name in (f"{kind}_OPERATORS", f"{kind}_CONVERSIONS")
    ),
)
"""Of nvcc and of NVRTC."""
_KERNEL = re.compile(r'(?=extern "C" __global__)')
_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, 1)?\)\s+(\w+)\s*\(")


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


def block_sizes(source: str) -> dict[str, int]:
    """Threads of a block, by kernel, as the source declares them."""
    return {name: int(threads) for threads, name in _BOUNDS.findall(source)}


def first_errors(said: str) -> str:
    """The compiler's first errors among all that it said."""
    lines = [line for line in said.splitlines() if "error" in line.lower()]
    return " ".join(lines[:3])[-500:] or said.strip()[-300:]
