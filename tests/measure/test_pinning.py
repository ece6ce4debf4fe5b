"""The calling thread keeps off the cores of its own workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, threading
from tunefarm.measure.pinning import pin_caller

everything = os.sched_getaffinity(0)
pin_caller()
assert os.sched_getaffinity(0) == everything, "no thread is bound yet"
core = max(everything)
free = everything - {core} or everything  # of a single core there is nothing to keep off
bound, stop = threading.Event(), threading.Event()

def worker():
    os.sched_setaffinity(0, {core})
    bound.set()
    stop.wait()

threading.Thread(target=worker, daemon=True).start()
bound.wait()
pin_caller()
assert os.sched_getaffinity(0) == free, os.sched_getaffinity(0)
pin_caller()
assert os.sched_getaffinity(0) == free
stop.set()
"""


def test_the_caller_is_confined_to_the_cores_that_no_worker_has() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
