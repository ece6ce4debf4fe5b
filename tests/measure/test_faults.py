"""Candidates that crash, hang, compute nonsense or eat all memory: each is told by its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tunefarm.devices.probe import probe
from tunefarm.errors import FailureKind
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.search.candidate import UNTUNED

pytestmark = [pytest.mark.tvm, pytest.mark.alone]
EXPECTED = {
    "crash": FailureKind.CRASH,
    "hang": FailureKind.RUN_TIMEOUT,
    "wrong": FailureKind.WRONG_RESULT,
    "hungry": FailureKind.OUT_OF_MEMORY,
}

TRACES = {
    '[[["GetSBlock",[],["nothing","main"],["b0"]]],[]]': FailureKind.INVALID_SCHEDULE,
    # The compiler itself segfaults on a decision for an instruction that is not there.
    "[[],[[7,7]]]": FailureKind.CRASH,
}


def test_each_fault_is_told_by_its_kind_and_the_next_candidate_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFARM_PLUGINS", "tests.plugins.faults")
    from tests.plugins.faults import KINDS, FaultySpace
    from tunefarm.search.replay import load_workload
    from tunefarm.search.space import Point

    target = probe()[0].target
    program = import_model(
        ImportRequest(models.matmul(tmp_path / "m.onnx"), tmp_path / "program", target)
    )
    (task,) = program.tasks
    workload = program.workload(task.id)
    protocol = Protocol(run_floor_s=1.0)
    facts = KernelFacts(task.id, task.args, task.flops, tmp_path / "reference.npz")
    builder, runner = Builder(60.0), Runner(2, protocol.memory_bytes)
    try:
        untuned = builder.build(BuildRequest(workload, target, UNTUNED, tmp_path / "u.so")).library
        assert untuned is not None
        good = runner.screen(ScreenRequest(untuned, facts, protocol, None, True))
        assert good.screening is not None
        space = FaultySpace(load_workload(workload))
        libraries = {}
        for index, kind in enumerate(KINDS):
            proposal = space.realise(Point(index, ()), 0)
            assert proposal is not None
            path = tmp_path / f"{kind}.so"
            built = builder.build(BuildRequest(workload, target, proposal.trace, path))
            assert built.library is not None, built.failure
            libraries[kind] = built.library
            outcome = runner.screen(ScreenRequest(built.library, facts, protocol, 1e-6))
            assert outcome.failure is not None
            assert outcome.failure.kind is EXPECTED[kind], outcome.failure
            after = runner.screen(ScreenRequest(untuned, facts, protocol, None))
            assert after.failure is None, "the fault has spoilt the next candidate"
        for trace, kind in TRACES.items():
            bad = builder.build(BuildRequest(workload, target, trace, tmp_path / "x.so"))
            assert bad.failure is not None
            assert bad.failure.kind is kind
        entries = (("good", untuned), ("wrong", libraries["wrong"]))
        raced = runner.race(RaceRequest(((facts, entries),), protocol, 3, 0))
        assert set(raced.samples[task.id]) == {"good"}, "a wrong result must not race"
        assert raced.faults["wrong"].kind is FailureKind.WRONG_RESULT
        entries = (("crash", libraries["crash"]), ("good", untuned), ("also good", untuned))
        kernels = ((facts, entries), (facts, entries[1:]))
        raced = runner.race(RaceRequest(kernels, protocol, 3, 0))
        assert set(raced.samples[task.id]) == {"good", "also good"}, "another's fault is not theirs"
        assert set(raced.faults) == {"crash"}
        assert raced.faults["crash"].kind is FailureKind.CRASH
        raced = runner.race(RaceRequest(((facts, entries[:1]),), protocol, 3, 0))
        assert (raced.samples, set(raced.faults)) == ({task.id: {}}, {"crash"})
    finally:
        builder.close()
        runner.close()


def test_a_compile_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    target = probe()[0].target
    program = import_model(
        ImportRequest(models.cnn(tmp_path / "m.onnx"), tmp_path / "program", target)
    )
    builder = Builder(0.001)
    try:
        request = BuildRequest(
            program.workload(program.tasks[0].id), target, UNTUNED, tmp_path / "u.so"
        )
        outcome = builder.build(request)
        assert outcome.failure is not None
        assert outcome.failure.kind is FailureKind.COMPILE_TIMEOUT
        assert not list(tmp_path.glob("*.so"))
    finally:
        builder.close()
