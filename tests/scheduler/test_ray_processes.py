"""A job's own Ray: what it starts, on a real one."""

from __future__ import annotations

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
