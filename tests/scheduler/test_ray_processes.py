"""A job's own Ray: what it starts, on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.tvm  # it starts Ray, but nothing here is judged by its time


def test_a_rays_own_processes_are_those_that_a_job_needs() -> None:
    import ray
    from ray._private.node import Node

    from tunefarm.scheduler import farm
    from tunefarm.scheduler.ray_processes import NOT_NEEDED

    before = {name: getattr(Node, name) for name in NOT_NEEDED}
    farm.start_local(2, (), 0)
    try:
        children = psutil.Process().children(recursive=True)
        commands = [" ".join(one.cmdline()) for one in children]
        for needed in ("gcs_server", "raylet"):
            assert any(needed in one for one in commands), commands
        for spared in ("dashboard.py", "monitor.py", "log_monitor.py"):
            assert not any(spared in one for one in commands), commands
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
    finally:
        ray.shutdown()
    assert {name: getattr(Node, name) for name in NOT_NEEDED} == before


def test_no_process_of_a_rays_own_stays_however_busy_it_is() -> None:
    import ray

    from tunefarm.scheduler import farm
    from tunefarm.scheduler.ray_processes import end_own_ray, is_alive

    class Busy:
        def pid(self) -> int:
            return os.getpid()

        def hold_the_lock(self) -> int:
            return sum(range(10**11))  # in one call that never looks up

    farm.start_local(2, (), 0)
    try:
        worker = ray.remote(Busy).remote()
        process = psutil.Process(ray.get(worker.pid.remote()))
        ray_is = psutil.Process().children(recursive=True)
        worker.hold_the_lock.remote()
        time.sleep(0.5)
    finally:
        end_own_ray()
    assert not is_alive(process)
    assert [one for one in ray_is if is_alive(one)] == []


def test_who_does_not_end_is_killed() -> None:
    """As a worker whose Ray was killed before it could tell."""
    from tunefarm.scheduler.ray_processes import end

    command = [sys.executable, "-c", "print(flush=True); sum(range(10**11))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        end([psutil.Process(busy.pid)])
        assert busy.wait(1) == -signal.SIGKILL
