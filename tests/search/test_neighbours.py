"""Register tiles of integers: what they compute, where they are, and where they are not."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path

import numpy as np
import pytest

from tests.bench import Bench, fitting, imported, likeliest_kernel, needs
from tests.quantised_models import Quantised, network
from tunefarm.devices.neighbours import steps_of
from tunefarm.devices.target import Target, parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

WIDE = parse_target("llvm:mcpu=cascadelake:num-cores=2")
NARROW = parse_target("llvm:mcpu=alderlake:num-cores=2")
OLDER = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")
"""Without an instruction for fours."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Of a processor that multiplies fours."""
    directory = tmp_path_factory.mktemp("quantised")
    return imported(directory, network(directory / "m.onnx"), WIDE)


@pytest.fixture(scope="module")
def in_pairs(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Of one that multiplies pairs."""
    directory = tmp_path_factory.mktemp("pairs")
    return imported(directory, network(directory / "m.onnx"), OLDER)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Of that one, with weights of 7 bits."""
    directory = tmp_path_factory.mktemp("narrow")
    return imported(directory, network(directory / "m.onnx", most=63), OLDER)


def _tasks(program: Program):
    kinds = ("fours", "pairs", "narrow")
    return [task for task in program.tasks if any(kind in task.name for kind in kinds)]


@pytest.mark.parametrize(
    ("of", "name", "types", "times"),
    [
        ("program", "fours", ("uint8", "int8"), 4),
        ("in_pairs", "pairs", ("int16", "int16"), 2),
        ("narrow", "narrow", ("uint8", "int8"), 4),
    ],
)
def test_every_product_but_that_of_single_channels_is_of_integers(
    of: str, name: str, types: tuple[str, str], times: int, request: pytest.FixtureRequest
) -> None:
    program: Program = request.getfixturevalue(of)
    assert program.precision == "int8"
    names = [task.name for task in program.tasks]
    assert sum(f"conv2d_{name}" in one for one in names) == 4
    assert sum(f"matmul_{name}" in one for one in names) == 1
    assert sum(one.startswith("conv2d_") and name not in one for one in names) == 1
    for task in _tasks(program):
        found = [arg.dtype for arg in task.args]
        for one in types:
            assert found.count(one) >= types.count(one)
        shapes = [arg.shape for arg in task.args if len(arg.shape) > 4]
        filtered = name != "fours" and any(shape[0] == 3 for shape in shapes)
        assert task.fewest_flops() == task.flops / (6 if filtered else times)


def test_numbers_of_8_bits_are_stored_in_16_for_products_by_whatever_makes_them(
    in_pairs: Program,
) -> None:
    """But what is also read one channel at a time: that is in 8, and made wider on its own."""
    reading = [task.name for task in in_pairs.tasks if task.args[0].dtype == "uint8"]
    assert sorted(reading) == ["cast", "conv2d_add_quantize"]
    making = [task for task in in_pairs.tasks if task.args[-1].dtype == "uint8"]
    assert len(making) == 1
    (pool,) = (task for task in in_pairs.tasks if task.name.startswith("max_pool"))
    assert {arg.dtype for arg in pool.args} == {"int16"}


@pytest.mark.parametrize(
    ("of", "target", "feature", "widths"),
    [
        ("program", WIDE, "avx512_vnni", {8, 16}),
        ("in_pairs", OLDER, "avx2", {4, 8}),
        ("narrow", OLDER, "avx2", {4, 8}),
    ],
)
def test_points_compute_what_the_untuned_kernel_computes(
    of: str,
    target: Target,
    feature: str,
    widths: set[int],
    workers,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import TILES, register_tile_space

    needs(feature)
    program: Program = request.getfixturevalue(of)
    lanes, befores = set(), set()
    for task in _tasks(program):
        bench = Bench(program, task, target, workers, tmp_path)
        with np.load(bench.facts.reference) as made:
            assert len(np.unique(made["out1"])) > 20, "nothing could be told from fewer"
        space = register_tile_space(bench.workload, target)
        assert space is not None, task.name
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        picked = [known[0], known[-1], *random.Random(0).sample(known, 1)]
        for number, one in enumerate(picked):
            proposal = space.realise(one.point, number)
            assert proposal is not None, (task.name, one.point)
            assert replay.completed_by(proposal.trace).startswith(TILES)
            assert space.locate(proposal.trace) == one.point
            tile = space._tile(one.point.values)
            lanes.add(tile.lanes)
            befores.add(tile.before)
            assert bench.check(proposal, str(number)).prepack is not None
    assert lanes >= widths
    assert len(befores) == 2


def test_a_residue_is_read_where_it_is_added(program: Program) -> None:
    """What is made of another tensor for the end of a kernel is no stage before its beginning."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.neighbours import sums_of

    (task,) = (one for one in _tasks(program) if one.name.endswith("multiply_add_quantize"))
    form = sums_of(replay.load_workload(program.workload(task.id)))
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


@pytest.mark.parametrize(
    ("of", "cpu", "instruction", "register"),
    [
        ("program", "cascadelake", "vpdpbusd", "zmm"),
        ("program", "alderlake", "vpdpbusd", "ymm"),
        ("in_pairs", "skylake-avx512", "vpmaddwd", "zmm"),
        ("in_pairs", "knl", "vpmaddwd", "ymm"),
        ("in_pairs", "x86-64-v3", "vpmaddwd", "ymm"),
        ("in_pairs", "x86-64", "pmaddwd", "xmm"),
        ("narrow", "skylake-avx512", "vpmaddubsw", "zmm"),
        ("narrow", "x86-64-v3", "vpmaddubsw", "ymm"),
        ("narrow", "x86-64-v2", "pmaddubsw", "xmm"),
    ],
)
def test_the_instruction_is_there(
    of: str, cpu: str, instruction: str, register: str, request: pytest.FixtureRequest
) -> None:
    """In vectors as wide as the processor has them."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    target = parse_target(f"llvm:mcpu={cpu}:num-cores=2")
    program: Program = request.getfixturevalue(of)
    task = next(one for one in _tasks(program) if one.args[-1].shape[-1] == 64)
    workload = replay.load_workload(program.workload(task.id))
    kernel = likeliest_kernel(workload, register_tile_space(workload, target), target)
    built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
    text = built.inspect_source("asm")
    assert any(instruction in line and register in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("of", "target"),
    [
        *(("program", OLDER), ("in_pairs", WIDE), ("narrow", WIDE)),
        ("narrow", parse_target("llvm:mcpu=x86-64:num-cores=2")),
    ],
)
def test_other_neighbours_than_the_processor_multiplies_have_no_tiles(
    of: str, target: Target, request: pytest.FixtureRequest
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    program: Program = request.getfixturevalue(of)
    for task in _tasks(program):
        assert register_tile_space(replay.load_workload(program.workload(task.id)), target) is None


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Of a network whose rows no good tile divides: 7x7 of them."""
    directory, one = tmp_path_factory.mktemp("odd"), Quantised(seed=3)
    x = one.rounded("x", 1 / 100, 120)
    x = one.add("Conv", x, one.weights(32, 16, 3, 3), one.bias(32), pads=[1, 1, 1, 1])
    x = one.rounded(one.add("Relu", x), 1 / 60)
    x = one.rounded(one.add("Relu", one.add("Conv", x, one.weights(64, 32, 1, 1))), 1 / 40)
    one.add("Conv", x, one.weights(16, 64, 1, 1))
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 16, 7, 7])], [("y", [1, 16, 7, 7])])
    path = directory / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return imported(directory, path, OLDER)


@pytest.mark.parametrize("family", ["overlapped", "winograd"])
def test_pairs_are_done_as_floats_are(family: str, odd: Program, workers, tmp_path: Path) -> None:
    """In tiles that overlap, and by minimal filtering, whose results are rounded to whole ones."""
    from tunefarm.search.spaces.register_tile import overlapped_tile_space
    from tunefarm.search.spaces.winograd import winograd_space

    needs("avx2")
    factory, kernels = {
        "overlapped": (overlapped_tile_space, 2),
        "winograd": (winograd_space, 1),
    }[family]
    found = list(fitting(odd, factory, OLDER, workers, tmp_path))
    assert len(found) >= kernels
    for task, bench, space in found:
        assert "pairs" in task.name
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        for number, one in enumerate([known[0], random.Random(0).choice(known)]):
            proposal = space.realise(one.point, number)
            assert proposal is not None
            assert space.locate(proposal.trace) == one.point
            bench.check(proposal, str(number))


def test_fours_are_not_filtered(program: Program) -> None:
    """Their instruction does four times what one of floats does."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.winograd import winograd_space

    for task in _tasks(program):
        assert winograd_space(replay.load_workload(program.workload(task.id)), WIDE) is None


def test_kernels_that_round_inside_say_so(program: Program) -> None:
    assert {task.rounds for task in program.tasks if "_quantize" in task.name} == {True}
    assert not any(task.rounds for task in program.tasks if "quantize" not in task.name)


@pytest.mark.parametrize("groups", [(2,), (4,), (2, 2)])
def test_weights_lie_in_groups(groups: tuple[int, ...]) -> None:
    from tunefarm.frontend.relax.integer_products import Instructions

    together = prod(groups)
    weights = np.arange(2 * 6 * 8, dtype=np.int8).reshape(2, 6, 8)
    stored = "int16" if together == 2 else ""
    packed = Instructions("name", "uint8", stored, 4, groups, together).packed(weights)
    assert packed.dtype == (stored or "int8")
    assert packed.shape == (2, -(-6 // together), 8, *groups)
    assert packed[1, 0, 5].ravel().tolist() == weights[1, :together, 5].tolist()
    left = weights[1, 6 - (6 % together or together) :, 5]
    assert packed[1, -1, 5].ravel().tolist() == [*left, *([0] * (-6 % together))]


@pytest.mark.parametrize(
    ("pair", "fits"),
    [
        *(((64, 64), True), ((65, 64), False), ((127, 1), True), ((127, 2), False)),
        *(((127, -127), True), ((-64, -64), True), ((-65, -64), False), ((-128, 0), True)),
    ],
)
def test_pairs_of_bytes_are_for_weights_whose_sums_16_bits_hold(
    pair: tuple[int, int], fits: bool
) -> None:
    from tunefarm.frontend.relax.integer_products import instructions_of

    weights = np.zeros((3, 7, 8), np.int8)
    weights[1, 2:4, 5] = pair
    weights[1, 5:7, 5] = 127, 127  # which are no pair, but the ends of two
    assert next(one for one in instructions_of(OLDER) if one.take(weights)).name == (
        "narrow" if fits else "pairs"
    )


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize(
    ("groups", "ends"), [((2,), (-128, 127)), ((2, 2), (-64, 64)), ((4,), (-128, 127))]
)
def test_sums_are_exact_at_the_ends(
    groups: tuple[int, ...], ends: tuple[int, int], lanes: int
) -> None:
    """Where all numbers are the largest, or the smallest."""
    import tvm
    from tvm import te

    from tunefarm.search import replay
    from tunefarm.search.kernels.neighbours import name_of, register_neighbours

    needs("avx512_vnni" if groups == (4,) else "avx2")
    register_neighbours()
    terms, steps = prod(groups), 3
    kinds = ("int16", "int16") if groups == (2,) else ("uint8", "int8")
    x = te.placeholder((steps * terms,), kinds[0], "x")
    w = te.placeholder((steps, lanes, *groups), kinds[1], "w")
    step = te.reduce_axis((0, steps), "step")
    inner = [te.reduce_axis((0, size), "inner") for size in groups]

    def sums(column):
        place = step * terms
        for step_inside, axis in zip(steps_of(groups), inner, strict=True):
            place += axis * step_inside
        number, weight = x[place], w(step, column, *inner)
        return te.sum(number.astype("int32") * weight.astype("int32"), [step, *inner])

    schedule = replay.new_schedule(
        tvm.IRModule({"main": te.create_prim_func([x, w, te.compute((lanes,), sums, "y")])}), seed=1
    )
    block = schedule.get_sblock("y")
    schedule.cache_write(block, 0, "local")
    column, along, *rest = schedule.get_loops(block)
    schedule.reorder(along, column, *rest)
    schedule.decompose_reduction(block, along)
    schedule.tensorize(column, name_of(groups, lanes))
    target = WIDE if groups == (4,) else OLDER
    built = tvm.tirx.build(schedule.mod, replay.tvm_target(target))
    for number in (0, 255):
        for weight in ends:
            data = np.full(steps * terms, number, kinds[0])
            weights = np.full((steps, lanes, *groups), weight, kinds[1])
            made = tvm.runtime.tensor(np.zeros(lanes, np.int32))
            built["main"](*(tvm.runtime.tensor(one) for one in (data, weights)), made)
            assert made.numpy().tolist() == [steps * terms * number * weight] * lanes
