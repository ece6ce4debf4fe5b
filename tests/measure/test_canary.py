"""The canary is of the machine, not of what ran before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tests.bench import Bench, imported
from tunefarm.devices.probe import probe
from tunefarm.measure.build import Builder
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import Runner

pytestmark = [pytest.mark.tvm, pytest.mark.alone]


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
