"""The conformance suite of design spaces: every point that is built computes the right result."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests import models
from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import Runner, ScreenRequest
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.space import Point
from tunefarm.search.tiles import mutate, random_point

pytestmark = pytest.mark.tvm
PROTOCOL = Protocol()
POINTS = 4


@pytest.fixture(scope="module")
def target():
    return probe()[0].target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, target) -> Program:
    directory = tmp_path_factory.mktemp("spaces")
    model = models.cnn(directory / "cnn.onnx")
    return import_model(ImportRequest(model, directory / "program", target))


@pytest.fixture(scope="module")
def workers():
    builder, runner = Builder(60.0), Runner(2, PROTOCOL.memory_bytes)
    yield builder, runner
    builder.close()
    runner.close()


def test_points_compute_what_the_untuned_kernel_computes(
    program: Program, target, workers, tmp_path: Path
) -> None:
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces import design_space

    builder, runner = workers
    packed = 0
    for task in program.tasks:
        facts = KernelFacts(task.id, task.args, task.flops, tmp_path / f"{task.id}.npz")
        request = BuildRequest(
            program.workload(task.id), target, UNTUNED, tmp_path / f"{task.id}.so"
        )
        untuned = builder.build(request).library
        assert untuned is not None
        screened = runner.screen(ScreenRequest(untuned, facts, PROTOCOL, None, True))
        assert screened.failure is None
        space = design_space(load_workload(program.workload(task.id)), target)
        rng = random.Random(1)
        points = [random_point(space.sketches, rng) for _ in range(POINTS)]
        points += [mutate(space.sketches[p.sketch], p, rng) for p in points[:1]]
        for number, point in enumerate(points):
            proposal = space.realise(point, number)
            if proposal is None:
                continue
            library = tmp_path / f"{task.id}-{number}.so"
            built = builder.build(
                BuildRequest(program.workload(task.id), target, proposal.trace, library)
            )
            assert built.library is not None, built.failure
            packed += bool(built.library.packed)
            outcome = runner.screen(ScreenRequest(built.library, facts, PROTOCOL, None))
            assert outcome.failure is None, (task.name, proposal.point, outcome.failure)
            assert outcome.screening is not None
            assert min(outcome.screening.samples) > 0
    assert packed, "no schedule has changed the layout of a weight"


def test_a_trace_is_replayed_to_the_same_bytes(
    program: Program, target, workers, tmp_path: Path
) -> None:
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces import design_space

    task = program.tasks[0]
    space = design_space(load_workload(program.workload(task.id)), target)
    point = random_point(space.sketches, random.Random(2))
    proposal = space.realise(point, 5)
    assert proposal is not None
    located = space.locate(proposal.trace)
    assert located == proposal.point
    again = space.realise(located, 99)
    assert again is not None
    assert again.trace == proposal.trace
    libraries = []
    for name in ("one.so", "two.so"):
        with_builder = Builder(60.0)
        built = with_builder.build(
            BuildRequest(program.workload(task.id), target, proposal.trace, tmp_path / name)
        )
        with_builder.close()
        assert built.library is not None
        libraries.append(built.library.path.read_bytes())
    assert libraries[0] == libraries[1]


def test_points_are_deterministic_in_their_seed(program: Program, target) -> None:
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces import design_space

    task = program.tasks[0]
    space = design_space(load_workload(program.workload(task.id)), target)
    for sketch, knobs in enumerate(space.sketches):
        point = Point(sketch, (None,) * len(knobs))
        first, again = space.realise(point, 7), space.realise(point, 7)
        assert first is not None
        assert again is not None
        assert first.trace == again.trace
        assert (first.features == again.features).all()
        assert space.locate("[[],[]]") is None
