"""Watching a job from outside."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil

from tunefarm.home import Home
from tunefarm.results.journal import Journal


def left_over(marker: str) -> list[str]:
    """Living processes that carry the test's own directory in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and marker in str(process.environ().values()):
                found.append(" ".join(process.cmdline())[:120])
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition: Any, seconds: float = 300) -> None:
    """Patience, not a bound: beside other work a job takes its time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.2)


def measured(home: Home) -> int:
    journal = Journal(home)
    jobs = journal.jobs()
    count = journal.counts(jobs[0].id)["measured"] if jobs else 0
    journal.close()
    return count
