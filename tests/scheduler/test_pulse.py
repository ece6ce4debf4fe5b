"""On a real Ray: a worker that is busy lives, one that is frozen does not, and can be ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.ray
LIMIT_S = 2.0


@dataclass(eq=False)
class Worker:
    actor: Any


def process_of(title: str) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        if process.cmdline()[:1] == [title]:
            return process
    raise AssertionError(f"no process is called {title}")


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.1)


def test_who_is_frozen_is_found_and_ended() -> None:
    import ray

    from tunefarm.scheduler import actors, farm
    from tunefarm.scheduler.pulse import Pulses

    class Busy(actors.Pulsed):
        def work(self, seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

    farm.start_local(4, (), 0)
    try:
        worker, late = Worker(actors.spawn(Busy, cpus=0)), Worker(actors.spawn(Busy, cpus=99))
        pulses = Pulses(limit_s=LIMIT_S, start_limit_s=30.0)
        pulses.ask([worker])
        ray.get(worker.actor.work.remote(0.0))
        until(lambda: not pulses.frozen() and not pulses._asked)
        busy = worker.actor.work.remote(2 * LIMIT_S)
        pulses.ask([worker])
        time.sleep(1.5 * LIMIT_S)
        assert pulses.frozen() == [], "it works, and says that it lives"
        ray.get(busy)
        process = process_of("ray::Busy")
        process.suspend()
        pulses.ask([worker, late])
        assert pulses.frozen() == []
        until(lambda: pulses.frozen() == [worker], 5 * LIMIT_S)  # and who never began is waited for
        pulses.ask([late])
        assert pulses.frozen() == [], "nobody asks for it any more"
        ray.kill(worker.actor)
        until(lambda: not process.is_running())
    finally:
        ray.shutdown()
