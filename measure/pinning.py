"""Keeping a kernel's calling thread off the cores of its own workers.

The runtime binds each thread of its pool to a core and leaves the calling thread, which works too,
wherever it wakes. Woken on a worker's core, the two share it, and the kernel takes twice its time
until the system moves one of them: seen in the first samples after every pause.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

_pinned = False


def pin_caller() -> None:
    """Confine the calling thread to the cores that no other thread of this process is bound to.

    Call it after every kernel: the pool's threads are made by the first one that is parallel.
    Once it has done its work it costs nothing.
    """
    global _pinned
    if _pinned:
        return
    taken = _bound()
    free = os.sched_getaffinity(0) - taken
    if taken and free:
        os.sched_setaffinity(0, free)
        _pinned = True


def _bound() -> set[int]:
    """Cores that some other thread of this process is bound to, alone."""
    taken: set[int] = set()
    own = threading.get_native_id()
    for task in Path("/proc/self/task").iterdir():
        thread = int(task.name)
        if thread == own:
            continue
        try:
            cores = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue
        if len(cores) == 1:
            taken |= cores
    return taken
