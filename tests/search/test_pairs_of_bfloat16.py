"""Products of bfloat16 in vectors: what they compute, where they are, and where not."""

from __future__ import annotations

import dataclasses
import random
from math import prod
from pathlib import Path

import pytest

from tests.bench import Bench, imported, likeliest_kernel, needs
from tests.float_network import Network, network
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program, TuningTask

pytestmark = pytest.mark.tvm

VECTORS = parse_target("llvm:mcpu=znver4:num-cores=2:precision=bfloat16")
BOTH = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
NEITHER = parse_target("llvm:mcpu=icelake-server:num-cores=2")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    directory = tmp_path_factory.mktemp("pairs")
    return imported(directory, network(directory / "m.onnx"), VECTORS)


def _tasks(program: Program) -> list[TuningTask]:
    return [task for task in program.tasks if "halves" in task.name]


def test_every_product_but_that_of_single_channels_is_of_bfloat16(program: Program) -> None:
    """Also that of a single row, and that of few columns, which no zeros are put beside."""
    results = sorted((prod(t.args[-1].shape[:-1]), t.args[-1].shape[-1]) for t in _tasks(program))
    assert results == [(1, 32), (16, 24), (16, 64), (16, 72), (49, 64), (196, 32), (196, 32)]


def test_points_compute_what_the_untuned_kernel_computes(
    program: Program, workers, tmp_path: Path
) -> None:
    from tunefarm.search.spaces.register_tile import register_tile_space

    needs("avx512_bf16")
    lanes, streams = set(), set()
    for task in _tasks(program):
        bench = Bench(program, task, VECTORS, workers, tmp_path)
        space = register_tile_space(bench.workload, VECTORS)
        assert space is not None, task.name
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        picked = [known[0], known[-1], *random.Random(0).sample(known, 2)]
        picked += [one for one in known if space._tile(one.point.values).streams][:1]
        for number, one in enumerate(picked):
            proposal = space.realise(one.point, number)
            assert proposal is not None, (task.name, one.point)
            assert space.locate(proposal.trace) == one.point
            tile = space._tile(one.point.values)
            lanes.add(tile.lanes)
            streams.add(tile.streams)
            bench.check(proposal, str(number))
    assert lanes == {4, 8, 16}
    assert streams == {False, True}


@pytest.mark.parametrize(("columns", "register"), [(64, "zmm"), (24, "ymm")])
def test_the_instruction_is_there(program: Program, columns: int, register: str) -> None:
    """In vectors as wide as the columns allow; and not as a call."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    task = next(one for one in _tasks(program) if one.args[-1].shape[-1] == columns)
    workload = replay.load_workload(program.workload(task.id))
    kernel = likeliest_kernel(workload, register_tile_space(workload, VECTORS), VECTORS)
    built = tvm.tirx.build(kernel, replay.tvm_target(VECTORS), pipeline=pipeline(VECTORS))
    text = built.inspect_source("asm")
    assert any("vdpbf16ps" in line and register in line for line in text.splitlines())
    assert "tunefarm_pairs_of_bfloat16" not in text


def test_rows_that_no_tile_divides_have_tiles_that_overlap(workers, tmp_path: Path) -> None:
    from tunefarm.search.spaces.register_tile import overlapped_tile_space

    one = Network()
    one.add("Relu", one.add("Conv", "x", one.constant(64, 32, 1, 1)))
    model = one.write(tmp_path / "m.onnx", [1, 32, 37, 37], [1, 64, 37, 37])
    program = imported(tmp_path, model, VECTORS)
    (task,) = _tasks(program)
    bench = Bench(program, task, VECTORS, workers, tmp_path)
    space = overlapped_tile_space(bench.workload, VECTORS)
    assert space is not None
    proposal = space.realise(min(space.modelled(), key=lambda one: one.seconds).point, 0)
    needs("avx512_bf16")
    bench.check(proposal, "overlapped")


def test_columns_are_in_vectors_that_there_are_instructions_for(tmp_path: Path) -> None:
    """Also where longer ones divide them, that floats would have."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    one = Network()
    one.add("Relu", one.add("MatMul", "x", one.constant(32, 20)))
    program = imported(tmp_path, one.write(tmp_path / "m.onnx", [8, 32], [8, 20]), VECTORS)
    (task,) = _tasks(program)
    space = register_tile_space(replay.load_workload(program.workload(task.id)), VECTORS)
    assert space is not None
    tiles = [space._tile(one.point.values) for one in space.modelled()]
    assert {(tile.vectors, tile.lanes) for tile in tiles} == {(1, 4), (5, 4)}


def test_what_is_held_inside_a_kernel_has_no_such_tiles(program: Program) -> None:
    """TVM's lowering makes float32 of it, which the instruction does not read."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.neighbours import computed_by, sums_of

    task = _tasks(program)[0]
    form = sums_of(replay.load_workload(program.workload(task.id)), beyond=True)
    assert form is not None
    assert computed_by(VECTORS, form)
    assert not computed_by(VECTORS, dataclasses.replace(form, before=(form.block,)))


def test_a_processor_without_the_instruction_has_no_such_tiles(program: Program) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import overlapped_tile_space, register_tile_space

    for task in _tasks(program):
        workload = replay.load_workload(program.workload(task.id))
        for family in (register_tile_space, overlapped_tile_space):
            assert family(workload, NEITHER) is None, task.name


def test_beside_matrix_registers_few_columns_and_single_rows_are_in_vectors(
    program: Program,
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.matrix_tile import matrix_tile_space
    from tunefarm.search.spaces.register_tile import register_tile_space

    for task in _tasks(program):
        workload = replay.load_workload(program.workload(task.id))
        assert register_tile_space(workload, BOTH) is not None, task.name
        rows, columns = prod(task.args[-1].shape[:-1]), task.args[-1].shape[-1]
        in_matrices = rows > 1 and columns != 24
        assert (matrix_tile_space(workload, BOTH) is not None) == in_matrices, task.name
