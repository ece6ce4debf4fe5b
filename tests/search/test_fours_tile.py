"""Register tiles of integers: what they compute, where they are, and where they are not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.bench import Bench, imported, likeliest_kernel
from tests.quantised_models import network
from tunefarm.devices.cpu import cpu_features
from tunefarm.devices.target import Target, parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

WIDE = parse_target("llvm:mcpu=cascadelake:num-cores=2")
NARROW = parse_target("llvm:mcpu=alderlake:num-cores=2")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    directory = tmp_path_factory.mktemp("quantised")
    return imported(directory, network(directory / "m.onnx"), WIDE)


def _tasks(program: Program):
    return [task for task in program.tasks if "fours" in task.name]


def test_every_product_but_that_of_single_channels_is_of_integers(program: Program) -> None:
    assert program.precision == "int8"
    names = [task.name for task in program.tasks]
    assert sum("conv2d_fours" in name for name in names) == 4
    assert sum("matmul_fours" in name for name in names) == 1
    assert sum(name.startswith("conv2d_") and "fours" not in name for name in names) == 1
    for task in _tasks(program):
        types = [arg.dtype for arg in task.args]
        assert types.count("int8") == 1
        assert "uint8" in types
        assert task.fewest_flops == task.flops / 4


def test_points_compute_what_the_untuned_kernel_computes(
    program: Program, workers, tmp_path: Path
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.fours_tile import FOURS, fours_tile_space

    if "avx512_vnni" not in cpu_features():
        pytest.skip("what they compute is not checked: this processor lacks AVX-512 VNNI")
    lanes, befores = set(), set()
    for task in _tasks(program):
        bench = Bench(program, task, WIDE, workers, tmp_path)
        with np.load(bench.facts.reference) as made:
            assert len(np.unique(made["out1"])) > 20, "nothing could be told from fewer"
        space = fours_tile_space(bench.workload, WIDE)
        assert space is not None, task.name
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        picked = [known[0], known[-1], *random.Random(0).sample(known, 3)]
        for number, one in enumerate(picked):
            proposal = space.realise(one.point, number)
            assert proposal is not None, (task.name, one.point)
            assert replay.completed_by(proposal.trace).startswith(FOURS)
            assert space.locate(proposal.trace) == one.point
            tile = space._tile(one.point.values)
            lanes.add(tile.lanes)
            befores.add(tile.before)
            assert bench.check(proposal, str(number)).prepack is not None
    assert lanes >= {8, 16}
    assert len(befores) == 2


def test_a_residue_is_read_where_it_is_added(program: Program) -> None:
    """What is made of another tensor for the end of a kernel is no stage before its beginning."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.fours_tile import fours_of

    (task,) = (one for one in _tasks(program) if one.name.endswith("multiply_add_quantize"))
    form = fours_of(replay.load_workload(program.workload(task.id)))
    assert form is not None
    assert [stage.name for stage in form.before] == ["pad_temp"]
    assert form.copies


def test_what_goes_on_in_floating_point_is_not_narrowed_between(program: Program) -> None:
    """Quantised, and again in another scale for the concatenation: one of both is stored."""
    from tunefarm.search import replay

    (task,) = (one for one in _tasks(program) if one.args[-1].shape[-1] == 16)
    text = replay.load_workload(program.workload(task.id))["main"].script()
    assert text.count('T.Cast("uint8"') == 1
    assert text.count("nearbyint") == 2


@pytest.mark.parametrize(("target", "register"), [(WIDE, "zmm"), (NARROW, "ymm")])
def test_the_instruction_is_there(
    program: Program, target: Target, register: str, tmp_path: Path
) -> None:
    """In vectors as wide as the processor has them."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.fours_tile import fours_tile_space

    task = next(one for one in _tasks(program) if one.args[-1].shape[-1] == 64)
    workload = replay.load_workload(program.workload(task.id))
    kernel = likeliest_kernel(workload, fours_tile_space(workload, target), target)
    built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
    text = built.inspect_source("asm")
    assert any("vpdpbusd" in line and register in line for line in text.splitlines())


def test_kernels_that_round_inside_say_so(program: Program) -> None:
    assert {task.rounds for task in program.tasks if "_quantize" in task.name} == {True}
    assert not any(task.rounds for task in program.tasks if "quantize" not in task.name)


def test_processors_without_it_compute_in_floating_point(tmp_path: Path) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.fours_tile import fours_tile_space

    older = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")
    program = imported(tmp_path, network(tmp_path / "m.onnx"), older)
    assert not _tasks(program)
    assert sum("conv2d" in task.name for task in program.tasks) == 5
    for task in program.tasks:
        assert fours_tile_space(replay.load_workload(program.workload(task.id)), older) is None


def test_weights_lie_in_fours() -> None:
    from tunefarm.frontend.relax.integer_products import in_fours

    weights = np.arange(2 * 6 * 8, dtype=np.int8).reshape(2, 6, 8)
    fours = in_fours(weights)
    assert fours.shape == (2, 2, 8, 4)
    assert fours[1, 0, 5].tolist() == weights[1, :4, 5].tolist()
    assert fours[1, 1, 5].tolist() == [*weights[1, 4:, 5], 0, 0]
