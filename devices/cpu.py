"""Facts about this machine's processor, read from the kernel.

psutil is imported where it is used: checking an artifact against its host needs none of it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
import subprocess
from collections.abc import Collection
from functools import cache
from pathlib import Path

ASK_FOR_MATRICES = (158, 0x1023, 18)
"""x86 Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
_PROCESSORS = Path("/sys/devices/system/cpu")


@cache
def cpu_info() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_model() -> str:
    info = cpu_info()
    name = info.get("model name") or info.get("CPU part") or platform.processor() or "unknown"
    numbers = [info.get(key, "") for key in ("cpu family", "model", "stepping")]
    # Hypervisors hide the marketing name; family, model and stepping tell the parts apart.
    return f"{name} ({'/'.join(numbers)})" if all(numbers) else name


def cpu_features() -> tuple[str, ...]:
    """By the system's names; without what it keeps back from this process, which is asked for:
    see `matrices_are_lent`."""
    info = cpu_info()
    found = (info.get("flags") or info.get("Features") or "").split()
    if any(map(is_lent, found)) and not matrices_are_lent():
        found = [one for one in found if not is_lent(one)]
    return tuple(sorted(found))


def is_lent(feature: str) -> bool:
    """Whether a process has to ask the system for it."""
    return feature.startswith("amx_")


@cache
def matrices_are_lent() -> bool:
    """Ask Linux for this process's right to x86's matrix registers (from 5.16 on), which holds for
    all of its threads: signal stacks have to have room for them from then on."""
    if platform.machine() != "x86_64":
        return False
    request = map(ctypes.c_long, ASK_FOR_MATRICES)
    return bool(ctypes.CDLL(None).syscall(*request) == 0)


def usable_cores() -> int:
    """Physical cores, no more than the affinity mask or the container's quota allow."""
    import psutil

    cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)


def one_of_each_core(processors: Collection[int], root: Path = _PROCESSORS) -> list[int]:
    """Of processors that are threads of one core the first; all where the kernel does not say."""
    found: dict[str, int] = {}
    for number in sorted(processors):
        try:
            core = (root / f"cpu{number}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            core = str(number)
        found.setdefault(core, number)
    return list(found.values())


def cache_sizes() -> tuple[int, int, int]:
    """Bytes of L1d, L2 and L3 as seen by the first core; 0 where the kernel does not say."""
    sizes = {1: 0, 2: 0, 3: 0}
    for index in (_PROCESSORS / "cpu0" / "cache").glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            match = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if match and kind != "Instruction" and level in sizes:
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match[2]]
            sizes[level] = int(match[1]) * unit
    return sizes[1], sizes[2], sizes[3]


def linker_version() -> str:
    try:
        out = subprocess.run(["ld", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return out.stdout.splitlines()[0].strip()


def memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def peak_bytes() -> int:
    """The most memory that this process has held; 0 where the kernel does not say. What `getrusage`
    tells is no less than its parent's."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(one.split()[1]) for one in lines if one.startswith("VmHWM:")), 0)


def host_name() -> str:
    return socket.gethostname()


def conditions() -> dict[str, float | str]:
    """What may disturb a measurement right now: load, steal time, clock policy, free memory, and
    how far apart the cores are (`devices.cores`)."""
    import psutil

    from tunefarm.devices.cores import exchange_s

    times = psutil.cpu_times()
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        frequency = psutil.cpu_freq()
    except (AttributeError, NotImplementedError, OSError):
        # psutil lacks the function on some systems, raises the second where the kernel tells no
        # clock, and the third where a container hides what it reads. A clock is a note, no need.
        frequency = None
    return {
        "load_1m": os.getloadavg()[0],
        "steal_s": float(getattr(times, "steal", 0.0)),
        "governor": governor.read_text().strip() if governor.exists() else "unknown",
        "clock_policy": "floating",
        "clock_mhz": round(frequency.current, 1) if frequency else 0.0,
        "exchange_us": round(1e6 * exchange_s(), 2),
        "memory_available_bytes": float(psutil.virtual_memory().available),
    }
