"""How far apart a machine's cores are just now.

Cores that share their last cache hand a line to each other in some 50 ns; others take several times
as long. Which of both it is, is not told by a virtual machine: its host moves its cores about, for
seconds or for hours, between parts of a processor that share a cache and parts that do not.
Whatever passes from core to core then takes two to four times as long, a whole network half as long
again, while computation and what each core reads for itself take what they took.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection

LINES = 1024
"""Of 64 bytes; read in no order, so that none is fetched before it is asked for."""
_FLOATS = 16
_PATIENCE_S = 1.0


def exchange_s(cores: Collection[int] | None = None, times: int = 5) -> float:
    """Seconds in which one core reads `LINES` lines that another has just written: the least of
    `times`, about a millisecond in all. 0.0 where that cannot be told, as with a single core.

    Args:
        cores: from which the first and the last are taken; by default this thread's.
    """
    import numpy as np

    cores = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if len(cores) < 2:
        return 0.0
    order = np.random.default_rng(0).permutation(2 * LINES)[:LINES] * _FLOATS
    shared, own = (np.zeros(2 * LINES * _FLOATS, np.float32) for _ in range(2))
    taken = np.empty(LINES, np.float32)
    written, read = threading.Semaphore(0), threading.Semaphore(0)
    found: list[float] = []

    def write() -> None:
        for number in range(times):
            shared.fill(number)
            written.release()
            if not read.acquire(timeout=_PATIENCE_S):
                return

    def fetch() -> None:
        for _ in range(times):
            if not written.acquire(timeout=_PATIENCE_S):
                return
            np.take(own, order, out=taken, mode="clip")  # awake, and `order` at hand
            started = time.perf_counter()
            np.take(shared, order, out=taken, mode="clip")
            found.append(time.perf_counter() - started)
            read.release()

    threads = [_bound(cores[0], write), _bound(cores[-1], fetch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(found, default=0.0)


def _bound(core: int, work: Callable[[], None]) -> threading.Thread:
    """A thread of its own: `work`, on `core` alone."""

    def run() -> None:
        try:
            os.sched_setaffinity(0, {core})
        except OSError:  # a core that was taken from us; whoever waits for this thread gives up
            return
        work()

    return threading.Thread(target=run, daemon=True)
