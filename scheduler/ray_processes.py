"""Which of Ray's processes a job's own Ray goes without, and that none of them stays.

`ray.init` starts seven for a Ray of its own. Three of them are of no use to a job: the dashboard's
server, which is started and waited for where no dashboard is asked for too; the autoscaler's
monitor, where there is one machine; and the log monitor, whose lines nobody has asked for. Python,
imported by all of them at once, is most of what starting takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

STOP_LIMIT_S = 2.0
"""For a worker to notice that its Ray is gone."""
NOT_NEEDED = ("start_api_server", "start_monitor", "start_log_monitor")
"""Methods of Ray's node, which are no public ones: what a later Ray calls otherwise it starts."""


@contextmanager
def without_what_no_job_needs() -> Iterator[None]:
    """While a Ray is started inside."""
    try:
        from ray._private.node import Node
    except ImportError:  # a later Ray's
        yield
        return
    kept = {name: getattr(Node, name) for name in NOT_NEEDED if hasattr(Node, name)}
    for name in kept:
        setattr(Node, name, _nothing)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Node, name, method)


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of starting a process."""


def end_own_ray() -> None:
    """End a Ray that this process has started, and whoever is still at work for it: one that holds
    Python's lock, as an import does for seconds, notices late that nobody waits for it."""
    import psutil
    import ray

    started: list[Any] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if child.name() in ("raylet", "gcs_server"):
                started.append(child)
                started += child.children(recursive=True)
    try:
        ray.shutdown()
    finally:
        end(started)


def end(processes: Sequence[Any]) -> None:
    """Wait for them, and kill those that take their time."""
    import psutil

    for process in _outlasting(processes):
        with suppress(psutil.Error):
            process.kill()
    _outlasting(processes)  # until they are gone


def _outlasting(processes: Sequence[Any]) -> list[Any]:
    """Those that are still there when they have had their time."""
    until, left = time.monotonic() + STOP_LIMIT_S, list(processes)
    while left := [one for one in left if is_alive(one)]:
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    return left


def is_alive(process: Any) -> bool:
    """One that nobody has asked for its end is not."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
