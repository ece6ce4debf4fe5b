"""Products of 8 bits in matrix registers: what they compute, where they are, and where not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import fitting, imported, likeliest_kernel
from tests.quantised_models import Quantised
from tunefarm.devices.cpu import cpu_features
from tunefarm.devices.matrices import REGISTERS
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

MATRICES = parse_target("llvm:mcpu=sapphirerapids:num-cores=2")
WITHOUT = parse_target("llvm:mcpu=icelake-server:num-cores=2")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Windows whose lines lie together in memory, in steps, and rows that no register divides."""
    directory, one = tmp_path_factory.mktemp("matrices"), Quantised(seed=5)
    x = one.rounded("x", 1 / 100, 120)
    x = one.add("Conv", x, one.weights(64, 32, 3, 3), one.bias(64), pads=[1, 1, 1, 1])
    x = one.rounded(one.add("Relu", x), 1 / 60)
    x = one.add("Conv", x, one.weights(64, 64, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    x = one.rounded(one.add("Relu", x), 1 / 40)
    x = one.rounded(one.add("Relu", one.add("Conv", x, one.weights(96, 64, 1, 1))), 1 / 40)
    one.add("Conv", x, one.weights(24, 96, 1, 1))
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 32, 14, 14])], [("y", [1, 24, 7, 7])])
    path = directory / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return imported(directory, path, MATRICES)


def _spaces() -> dict[str, Callable[[Any, Any], Any]]:
    from tunefarm.search.spaces.matrix_tile import matrix_tile_space, overlapped_matrix_tile_space

    return {"matrix": matrix_tile_space, "overlapped": overlapped_matrix_tile_space}


@pytest.mark.parametrize(("family", "kernels"), [("matrix", 3), ("overlapped", 1)])
def test_points_compute_what_the_untuned_kernel_computes(
    family: str, kernels: int, program: Program, workers, tmp_path: Path
) -> None:
    if "amx_int8" not in cpu_features():
        pytest.skip("kernels with amx_int8 are built here, but run where a processor has it")
    found = list(fitting(program, _spaces()[family], MATRICES, workers, tmp_path))
    assert len(found) == kernels
    for _task, bench, space in found:
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        for number, one in enumerate([known[0], known[-1], *random.Random(1).sample(known, 3)]):
            proposal = space.realise(one.point, number)
            assert proposal is not None
            assert space.locate(proposal.trace) == one.point
            assert bench.check(proposal, f"{family}-{number}").prepack is not None


def _kernels(program: Program) -> list[Any]:
    from tunefarm.search import replay

    tasks = [task for task in program.tasks if "fours" in task.name]
    return [replay.load_workload(program.workload(task.id)) for task in tasks]


@pytest.mark.parametrize("family", ["matrix", "overlapped"])
def test_every_point_fits_the_registers(family: str, program: Program) -> None:
    spaces = [_spaces()[family](workload, MATRICES) for workload in _kernels(program)]
    ways = [way for space in spaces if space is not None for way in space.ways]
    assert ways
    for way in ways:
        tall = way.rows * way.planes
        assert tall * way.columns + min(tall, way.columns) < REGISTERS
        assert way.high <= 16


def test_columns_that_are_no_whole_registers_have_no_tiles(program: Program) -> None:
    spaces = [_spaces()["matrix"](workload, MATRICES) for workload in _kernels(program)]
    assert sum(space is None for space in spaces) == 1


def test_the_instructions_are_there(program: Program) -> None:
    """And the right to them is asked for where they are, once before the threads begin."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    for workload in _kernels(program):
        space = _spaces()["matrix"](workload, MATRICES)
        if space is None:
            continue
        kernel = likeliest_kernel(workload, space, MATRICES)
        built = tvm.tirx.build(kernel, replay.tvm_target(MATRICES), pipeline=pipeline(MATRICES))
        text = built.inspect_source("asm")
        for one in ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease", "syscall"):
            assert one in text


def test_other_processors_have_none(program: Program) -> None:
    for workload in _kernels(program):
        for space in _spaces().values():
            assert space(workload, WITHOUT) is None


def test_a_tile_of_too_many_registers_is_refused(program: Program) -> None:
    """A trace may come from anywhere."""
    from tunefarm.search import replay

    workload = _kernels(program)[0]
    space = _spaces()["matrix"](workload, MATRICES)
    widest = max(space.ways, key=lambda way: way.columns)
    proposal = space.realise(space.modelled()[space.ways.index(widest)].point, 0)
    assert proposal is not None
    taller = proposal.trace.replace(f'"{widest.high} ', '"1 ')
    assert taller != proposal.trace
    with pytest.raises(replay.InvalidTrace, match="matrix registers"):
        replay.scheduled_function(workload, MATRICES, taller)
