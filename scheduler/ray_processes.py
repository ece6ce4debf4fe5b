"""Which of Ray's processes a job's own Ray goes without, and that none of them stays.

`ray.init` starts seven for a Ray of its own. Three of them are of no use to a job: the dashboard's
server, which is started and waited for where no dashboard is asked for too; the autoscaler's
monitor, where there is one machine; and the log monitor, whose lines nobody has asked for. Python,
imported by all of them at once, is most of what starting takes.
"""

from __future__ import annotations

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

    ours = [one for one in psutil.Process().children() if one.name() in ("raylet", "gcs_server")]
    started = [*ours, *(worker for one in ours for worker in one.children(recursive=True))]
    ray.shutdown()
    end(started)


def end(processes: Sequence[Any]) -> None:
    """Wait for them, and kill those that take their time."""
    import psutil

    _, left = psutil.wait_procs(processes, timeout=STOP_LIMIT_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_LIMIT_S)
