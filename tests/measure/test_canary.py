"""The canary is of the machine, not of what ran before it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests import models
from tests.bench import Bench, imported
from tunefarm.devices.probe import probe
from tunefarm.measure.build import Builder
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import Runner

pytestmark = [pytest.mark.tvm, pytest.mark.alone]


def test_who_was_asked_whether_all_is_there_stands_still() -> None:
    """Its threads would keep a core for a while, which is others' now."""
    runner = Runner(2, Protocol().memory_bytes)
    try:
        for limit_s in (0.0, 5.0):
            assert runner.await_steady(limit_s), "without a gauge all is there"
            serving = [one for one in psutil.Process().children() if _serves(one)]
            assert [one.status() for one in serving] == [psutil.STATUS_STOPPED]
            assert runner.canary()
            assert [one.status() == psutil.STATUS_STOPPED for one in serving] == [False]
    finally:
        runner.close()


def _serves(process: psutil.Process) -> bool:
    return any("measure.serve:" in word for word in process.cmdline())


def test_a_kernel_that_just_ran_does_not_disturb_it(tmp_path: Path) -> None:
    """Its threads keep their cores for a while: beside them a product takes 30 times as long."""
    from tunefarm.search.spaces import design_space

    (device,) = probe()
    program = imported(tmp_path, models.single_matmul(tmp_path / "m.onnx", 256), device.target)
    builder, runner = Builder(60.0), Runner(device.cores, Protocol().memory_bytes)
    try:
        idle = runner.canary()
        (task,) = program.tasks
        bench = Bench(program, task, device.target, (builder, runner), tmp_path)
        space = design_space(bench.workload, device.target)
        proposal = space.realise(min(space.modelled(), key=lambda one: one.seconds).point, 0)
        assert proposal is not None
        afterwards = []
        for number in range(4):
            bench.check(proposal, str(number))
            afterwards.append(runner.canary())
    finally:
        builder.close()
        runner.close()
    assert idle
    assert all(seconds and seconds < 8 * idle for seconds in afterwards), (idle, afterwards)
