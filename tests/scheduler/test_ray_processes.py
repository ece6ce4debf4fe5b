"""A job's own Ray: what it starts, on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.tvm  # it starts Ray, but nothing here is judged by its time


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_rays_own_processes_are_those_that_a_job_needs() -> None:
    import ray
    from ray._private.node import Node

    from tunefarm.scheduler import farm
    from tunefarm.scheduler.ray_processes import NOT_NEEDED, end_own_ray

    before = {name: getattr(Node, name) for name in NOT_NEEDED}
    farm.start_local(2, (), 0)
    try:
        commands = [" ".join(one.cmdline()) for one in descendants()]
        for needed in ("gcs_server", "raylet"):
            assert any(needed in one for one in commands), commands
        for spared in ("dashboard.py", "monitor.py", "log_monitor.py"):
            assert not any(spared in one for one in commands), commands
        assert ray.get(ray.remote(lambda: 7).remote()) == 7
    finally:
        end_own_ray()
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

    bystander = psutil.Popen(["sleep", "600"])  # nor need it be the only one: tests leave some
    others = descendants()
    farm.start_local(2, (), 0)
    try:
        worker = ray.remote(Busy).remote()
        process = psutil.Process(ray.get(worker.pid.remote()))
        ray_is = [one for one in descendants() if one not in others]
        names = {one.name() for one in ray_is}
        assert process in ray_is
        assert {"raylet", "gcs_server"} <= names
        worker.hold_the_lock.remote()
        time.sleep(0.5)
    finally:
        end_own_ray()
        left_alone = is_alive(bystander)
        bystander.kill()
        bystander.wait()
    assert left_alone
    assert not is_alive(process)
    assert [one.cmdline() for one in ray_is if is_alive(one)] == []


def test_who_outlasts_its_ray_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Workers end after their Ray has said that it has: here one and its raylet never would."""
    from tunefarm.scheduler.ray_processes import end_own_ray, is_alive

    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sh")
    script = [raylet, "-c", "sleep 600 & echo begun; wait"]
    with psutil.Popen(script, stdout=subprocess.PIPE, text=True) as late:
        assert late.stdout.readline() == "begun\n"
        (worker,) = late.children()
        end_own_ray()
        left = [one for one in (late, worker) if is_alive(one)]
        for one in left:
            one.kill()  # or the test waits for it
    assert left == []


def test_who_does_not_end_is_killed() -> None:
    """As a worker whose Ray was killed before it could tell."""
    from tunefarm.scheduler.ray_processes import end

    command = [sys.executable, "-c", "print(flush=True); sum(range(10**11))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        end([psutil.Process(busy.pid)])
        assert busy.wait(1) == -signal.SIGKILL
