"""One kernel with its reference made: for tests that build points and check what they compute."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tunefarm.devices.cpu import cpu_features
from tunefarm.devices.target import Target
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, TuningTask, load_program
from tunefarm.measure.build import Builder, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.space import Point, Proposal, Space

PROTOCOL = Protocol(screen_samples=1, screen_s=1e-6, sample_s=1e-6)
"""What is computed counts here, how fast does not."""


@contextmanager
def pair_of_workers() -> Iterator[tuple[Builder, Runner]]:
    """One that builds, and one that runs what it has built."""
    builder, runner = Builder(60.0), Runner(2, PROTOCOL.memory_bytes)
    try:
        yield builder, runner
    finally:
        builder.close()
        runner.close()


def needs(feature: str) -> None:
    """Kernels are built for any processor, and run on one that has what they are built for."""
    if feature not in cpu_features():
        pytest.skip(f"kernels with {feature} are built here, but run where a processor has it")


def imported(directory: Path, model: Path, target, layout: str | None = None) -> Program:
    return program_of(ImportRequest(model, directory / "program", target, layout=layout))


def program_of(request: ImportRequest) -> Program:
    """Here, not in a process of its own, which would load the compiler first."""
    run_import(request)
    return load_program(request.directory)


def whole_answer(
    program: Program, target: Target, traces: dict[str, str], library: Path, inputs: list[Any]
) -> list[Any]:
    """What a network computes with these traces of its kernels, by task; the others untuned."""
    from tunefarm.measure.assemble import AssembleRequest, run_assemble
    from tunefarm.measure.model import CompiledModel

    functions = [(f, task.id) for task in program.tasks for f in task.functions]
    scheduled = [(f, task) for f, task in functions if task in traces]
    workloads = tuple((f, program.workload(task)) for f, task in scheduled)
    chosen = tuple((f, traces[task]) for f, task in scheduled)
    run_assemble(AssembleRequest(program.module, workloads, chosen, target, library))
    return CompiledModel(library)(inputs)


def likeliest_kernel(workload: Any, space: Space | None, target: Target) -> Any:
    """The kernel of the point that the hardware model likes best, to be built."""
    from tunefarm.search import replay

    assert space is not None
    best = min(space.modelled(), key=lambda one: one.seconds)
    proposal = space.realise(best.point, 0)
    assert proposal is not None
    kernel, _, _ = replay.kernel_module(replay.scheduled_function(workload, target, proposal.trace))
    return kernel


def likeliest_of_each(space: Space) -> dict[str, Point]:
    """Of every family in a design space the point that the hardware model likes best."""
    best: dict[str, Point] = {}
    for one in sorted(space.modelled(), key=lambda one: one.seconds):
        about = space.describe(one.point)
        assert about is not None
        best.setdefault(about.family, one.point)
    return best


class Bench:
    """One kernel with its reference made: builds points and checks what they compute."""

    def __init__(self, program: Program, task: TuningTask, target, workers, tmp_path: Path) -> None:
        from tunefarm.search.replay import load_workload

        self.builder, self.runner = workers
        self.path, self.target, self.directory = program.workload(task.id), target, tmp_path
        self.workload = load_workload(self.path)
        self.name = task.name
        self.facts = KernelFacts(task.id, task.args, task.flops, tmp_path / f"{task.id}.npz")
        untuned = self.build(UNTUNED, "untuned")
        screened = self.runner.screen(ScreenRequest(untuned, self.facts, PROTOCOL, None, True))
        assert screened.failure is None

    def build(self, trace: str, name: str) -> Library:
        library = self.directory / f"{self.facts.task}-{name}.so"
        built = self.builder.build(BuildRequest(self.path, self.target, trace, library))
        assert built.library is not None, (self.name, built.failure)
        return built.library

    def check(self, proposal: Proposal, name: str) -> Library:
        """Build it, and compare what it computes with what the untuned kernel computes."""
        library = self.build(proposal.trace, name)
        outcome = self.runner.screen(ScreenRequest(library, self.facts, PROTOCOL, None))
        assert outcome.failure is None, (self.name, proposal.trace[-300:], outcome.failure)
        assert outcome.screening is not None
        assert min(outcome.screening.samples) > 0
        return library

    def check_some(self, space: Space, family: str) -> None:
        """The likeliest point, the one that is least so, and two others; all are the family's."""
        from tunefarm.search.replay import completed_by

        known = sorted(space.modelled(), key=lambda one: one.seconds)
        assert known, "else there were TVM's sketches alone"
        for place, one in enumerate([known[0], known[-1], *random.Random(0).sample(known, 2)]):
            proposal = space.realise(one.point, 0)
            assert proposal is not None
            assert space.locate(proposal.trace) == one.point
            assert (completed_by(proposal.trace) or "").startswith(family)
            self.check(proposal, str(place))


def fitting(
    program: Program, family: Any, target, workers, tmp_path: Path
) -> Iterator[tuple[TuningTask, Bench, Any]]:
    """The kernels that a family of schedules has a space for."""
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = family(bench.workload, target)
        if space is not None:
            yield task, bench, space
