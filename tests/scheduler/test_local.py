"""Tuning a kernel without Ray, journal or model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.measure.facts import KernelFacts, ScreenOutcome
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.scheduler.local import LocalTuner, Trial
from tunefarm.scheduler.state import Limits

pytestmark = [pytest.mark.tvm, pytest.mark.alone]


@pytest.fixture(scope="module")
def device():
    return probe()[0]


def test_a_matmul_is_tuned_and_its_best_schedule_is_a_register_tile(device, tmp_path: Path) -> None:
    model = models.single_matmul(tmp_path / "matmul.onnx", 192)
    program = import_model(ImportRequest(model, tmp_path / "program", device.target))
    (task,) = program.tasks
    heard: list[Trial] = []
    tuning = LocalTuner(
        {task.id: (task, program.workload(task.id))},
        device,
        "test",
        tmp_path,
        Limits(trials=12),
        report=heard.append,
    ).run()
    trials = tuning.trials
    assert list(trials) == heard
    assert {one.candidate for one in tuning.taught} == {t.candidate.id for t in trials[1:]}
    assert {one.family for one in tuning.taught} <= {"register-tile", "sketch"}
    untuned, *tried = trials
    assert untuned.candidate.untuned
    assert untuned.latency_s is not None
    assert len(tried) == len({t.candidate.id for t in tried}) == 12
    assert [t.elapsed_s for t in trials] == sorted(t.elapsed_s for t in trials)
    sound = [t for t in tried if t.latency_s is not None]
    best = min(sound, key=lambda t: t.latency_s or 0.0)
    assert best.latency_s is not None
    assert best.latency_s < untuned.latency_s / 5
    assert "register-tile" in best.candidate.trace


def test_of_several_kernels_each_is_taught_by_its_own_results(device, tmp_path: Path) -> None:
    """Two matrix products, for which the same traces make different schedules."""
    programs = [
        import_model(
            ImportRequest(
                models.single_matmul(tmp_path / f"{size}.onnx", size),
                tmp_path / f"program {size}",
                device.target,
            )
        )
        for size in (128, 192)
    ]
    tasks = {p.tasks[0].id: (p.tasks[0], p.workload(p.tasks[0].id)) for p in programs}
    tuning = LocalTuner(tasks, device, "test", tmp_path, Limits(trials=10)).run()
    taught = [one.candidate for one in tuning.taught]
    assert len(taught) == len(set(taught)), "by nobody else's"
    assert set(taught) == {t.candidate.id for t in tuning.trials if not t.candidate.untuned}


def test_a_kernel_is_timed_as_cold_as_it_is_where_it_is_used(
    device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[KernelFacts] = []
    screen = Runner.screen

    def watched(runner: Runner, request: ScreenRequest) -> ScreenOutcome:
        asked.append(request.facts)
        return screen(runner, request)

    monkeypatch.setattr(Runner, "screen", watched)
    model = models.vector_dense(tmp_path / "dense.onnx", 256)
    program = import_model(ImportRequest(model, tmp_path / "program", device.target))
    (task,) = program.tasks
    tasks = {task.id: (task, program.workload(task.id))}
    LocalTuner(tasks, device, "test", tmp_path, Limits(trials=2), between=1 << 28).run()
    assert len(asked) == 3
    assert {one.between for one in asked} == {1 << 28}
    assert {one.constants for one in asked} == {task.constants} != {()}, (
        "and its weights most of all"
    )


def test_a_budget_ends_it(device, tmp_path: Path) -> None:
    model = models.single_matmul(tmp_path / "matmul.onnx", 96)
    program = import_model(ImportRequest(model, tmp_path / "program", device.target))
    (task,) = program.tasks
    trials = (
        LocalTuner(
            {task.id: (task, program.workload(task.id))},
            device,
            "test",
            tmp_path,
            Limits(trials=100_000, patience=100_000),
            budget_s=5.0,
        )
        .run()
        .trials
    )
    assert 1 < len(trials) < 1000
    assert trials[-1].elapsed_s < 9.0
