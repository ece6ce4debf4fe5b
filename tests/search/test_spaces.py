"""The conformance suite of design spaces: every point that is built computes the right result."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models, odd_models
from tests.bench import Bench, imported, likeliest_kernel
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.search.space import Point
from tunefarm.search.strategies.tiles import mutate, random_point

pytestmark = pytest.mark.tvm
POINTS = 4
FAMILIES = {
    "matmul": ("register-tile", "filled-tile", "overlapped-tile"),
    "dense": ("register-tile", "filled-tile", "overlapped-tile"),
    "conv2d": ("register-tile", "filled-tile", "overlapped-tile", "spread", "winograd"),
    "max_pool2d": ("register-tile", "windows", "fold"),
    "softmax": ("rowwise", "lapped-rows"),
    "layer_norm": ("rowwise", "lapped-rows"),
    "add": "elementwise",
    "transpose": "elementwise",
    "concatenate": "elementwise",
    "multiply": "elementwise",
    "reshape_transpose": "elementwise",
    "mean": ("rowwise", "lapped-rows"),
}
"""The family that each kind of kernel of `models.kernels` must have, by the start of its name."""


@pytest.mark.long
def test_points_compute_what_the_untuned_kernel_computes(
    program: Program, target, workers, tmp_path: Path
) -> None:
    from tunefarm.search.spaces.generic import GenericSpace

    packed = 0
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = GenericSpace(bench.workload, target)
        rng = random.Random(1)
        points = [random_point(space.sketches, rng) for _ in range(POINTS)]
        points += [mutate(space.sketches[p.sketch], p, rng) for p in points[:1]]
        for number, point in enumerate(points):
            proposal = space.realise(point, number)
            if proposal is not None:
                packed += bool(bench.check(proposal, str(number)).packed)
    assert packed, "no schedule has changed the layout of a weight"


def test_every_family_computes_the_right_result(
    kernels: Program, target, workers, tmp_path: Path
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    seen, packed = set(), 0
    for task in kernels.tasks:
        kind = next((k for k in FAMILIES if task.name.startswith(k)), None)
        if kind is None:
            continue
        bench = Bench(kernels, task, target, workers, tmp_path)
        space = design_space(bench.workload, target)
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        assert known, f"{task.name} has no family of its own"
        picked = [known[0], known[-1], *random.Random(0).sample(known, 3)]
        for number, one in enumerate(picked):
            proposal = space.realise(one.point, number)
            assert proposal is not None, (task.name, one.point)
            assert proposal.point == one.point
            note = replay.completed_by(proposal.trace)
            assert note is not None
            assert note.startswith(FAMILIES[kind])
            assert space.locate(proposal.trace) == one.point
            packed += bench.check(proposal, str(number)).prepack is not None
        seen.add(kind)
    assert seen >= set(FAMILIES) - {"dense"}
    assert packed, "no family has packed a weight"


def test_schedules_fit_the_same_kernel_of_another_network(
    kernels: Program, target, tmp_path: Path
) -> None:
    """Where every tensor has another name: what one job has measured is another one's. So it is in
    journals whose reductions are still called after their own network's tensors."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    same = models.kernels(tmp_path / "same.onnx")
    other = imported(tmp_path, models.renamed(same, tmp_path / "other.onnx"), target)
    assert {task.id for task in other.tasks} == {task.id for task in kernels.tasks}
    different, ahead, renamed = 0, 0, 0
    for task in kernels.tasks:
        workload = replay.load_workload(kernels.workload(task.id))
        elsewhere = replay.load_workload(other.workload(task.id))
        different += workload["main"].script() != elsewhere["main"].script()
        space = design_space(workload, target)
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        rng = random.Random(0)
        points = [one.point for one in (known if len(known) < 20 else rng.sample(known, 4))]
        points += [random_point(space.sketches, rng) for _ in range(2)]
        for point in points:
            proposal = space.realise(point, 0)
            if proposal is None:
                continue
            ahead += "ahead=True" in (replay.completed_by(proposal.trace) or "")
            assert replay.scheduled_function(elsewhere, target, proposal.trace) is not None
            older = proposal.trace.replace('"x_', '"lv7_')
            renamed += older != proposal.trace
            assert replay.scheduled_function(elsewhere, target, older) is not None
    assert renamed
    assert different, "the names are the same"
    assert ahead


def test_rows_that_no_vector_divides_have_odd_ones(kernels: Program, target) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.hardware import hardware

    shuffle = next(task for task in kernels.tasks if task.args[-1].shape == (12, 14))
    space = elementwise_space(replay.load_workload(kernels.workload(shuffle.id)), target)
    assert space is not None
    # Rows of 14: whole in wide registers, in halves elsewhere.
    assert min(space.ways, key=space.estimate).lanes == (14 if hardware(target).lanes >= 14 else 7)


def test_one_long_row_is_shared_out(target, workers, tmp_path: Path) -> None:
    """Too large for one thread alone, and with no second axis to share."""
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.hardware import hardware

    program = imported(tmp_path, models.flattened(tmp_path / "flattened.onnx"), target)
    (task,) = program.tasks
    bench = Bench(program, task, target, workers, tmp_path)
    space = elementwise_space(bench.workload, target)
    assert space is not None
    cores = hardware(target).cores
    assert {one.shares for one in space.ways} == {cores, 8 * cores}
    for number, one in enumerate(space.modelled()[::3]):
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        bench.check(proposal, str(number))


def test_heads_that_are_joined_move_in_vectors(target, workers, tmp_path: Path) -> None:
    """A row is contiguous by parts: no vector is longer than those, and none crosses their ends."""
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.hardware import hardware

    program = imported(tmp_path, models.joined_heads(tmp_path / "heads.onnx"), target)
    (task,) = program.tasks
    bench = Bench(program, task, target, workers, tmp_path)
    space = elementwise_space(bench.workload, target)
    assert space is not None
    assert {24 % one.lanes for one in space.ways} == {0}
    widest = max(width for width in hardware(target).widths() if 24 % width == 0)
    assert min(space.ways, key=space.estimate).lanes == widest
    for number, one in enumerate(space.modelled()):
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        bench.check(proposal, str(number))


@pytest.mark.long
def test_products_of_odd_sizes_are_filled_up(target, workers, tmp_path: Path) -> None:
    """Rows, columns or both; in every order of the loops; what is cut off again inside them, or
    where much follows the product, in a pass of its own."""
    from tunefarm.search.spaces.register_tile import RegisterTileSpace, register_tile_space

    program = imported(tmp_path, odd_models.products(tmp_path / "odd.onnx"), target)
    near, filled = set(), dict[int, set[tuple[int, ...]]]()
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = register_tile_space(bench.workload, target)
        assert isinstance(space, RegisterTileSpace)
        ways: dict[tuple[Any, ...], Point] = {}
        for one in sorted(space.modelled(), key=lambda one: one.seconds):
            tile = space._tile(one.point.values)
            assert tile is not None
            if pads := tile.pads(space._form):
                order = (tile.columns_first, tile.flat, tile.pack)
                ways.setdefault((tuple(pads), *order), one.point)
                near.add((task.args[-1].shape, tile.flat, tile.cuts_near(space._form)))
        filled.setdefault(len(task.args[-1].shape), set()).update(pads for pads, *_ in ways)
        for number, point in enumerate(ways.values()):
            proposal = space.realise(point, 0)
            assert proposal is not None
            bench.check(proposal, str(number))
    assert filled == {2: {(0,), (1,), (1, 0)}, 3: {(1,), (2,), (2, 1)}}
    cut_near = {(29, 37): True, (29, 35): True, (29, 39): False, (1, 29, 48): True}
    assert near == {
        (s, flat, n and not flat) for s, n in cut_near.items() for flat in (True, False)
    }


@pytest.mark.long
def test_padding_is_right_wherever_it_is_computed(
    kernels: Program, target, workers, tmp_path: Path
) -> None:
    """In a pass of its own, where it is read, or inside the tile; in every order of the loops."""
    from tunefarm.search.spaces.register_tile import register_tile_space

    checked = set()
    for task in kernels.tasks:
        bench = Bench(kernels, task, target, workers, tmp_path)
        space = register_tile_space(bench.workload, target)
        if space is None or ("conv2d" not in task.name and "pool" not in task.name):
            continue
        ways: dict[tuple[str, bool, bool], Point] = {}
        for one in sorted(space.modelled(), key=lambda one: one.seconds):
            tile = space._tile(one.point.values)
            assert tile is not None
            ways.setdefault((tile.before.value, tile.columns_first, tile.flat), one.point)
        for number, ((before, *_), point) in enumerate(ways.items()):
            proposal = space.realise(point, 0)
            assert proposal is not None
            bench.check(proposal, str(number))
            checked.add((task.name, before))
    assert {before for _, before in checked} == {"apart", "inline", "local"}


@pytest.mark.parametrize(
    ("text", "lanes"),
    [
        ("llvm:mcpu=haswell:mtriple=x86_64-linux-gnu:num-cores=2", 8),
        ("llvm:mcpu=cortex-a76:mtriple=aarch64-linux-gnu:num-cores=2", 4),
    ],
)
def test_other_processors_follow_by_parameters(
    kernels: Program, text: str, lanes: int, tmp_path: Path
) -> None:
    """Cross-compiled to an object: nothing is linked or run."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import register_tile_space

    cross = parse_target(text)
    assert hardware(cross).lanes == lanes
    task = next(t for t in kernels.tasks if t.args[-1].shape == (1, 7, 7, 24))
    workload = replay.load_workload(kernels.workload(task.id))
    kernel = likeliest_kernel(workload, register_tile_space(workload, cross), cross)
    built = tvm.tirx.build(kernel, replay.tvm_target(cross), pipeline=pipeline(cross))
    built.write_to_file(str(tmp_path / "kernel.o"))
    assert (tmp_path / "kernel.o").stat().st_size > 1000
    assert f"<{lanes} x float>" in built.inspect_source("ll")


def test_columns_that_no_vector_divides_take_two_registers(tmp_path: Path) -> None:
    """Images of 9x9, channels first, where a register holds eight."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.form import reduction_of
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import register_tiles

    cross = parse_target("llvm:mcpu=haswell:mtriple=x86_64-linux-gnu:num-cores=2")
    program = imported(tmp_path, models.branches(tmp_path / "branches.onnx"), cross)
    images = [task for task in program.tasks if "conv2d" in task.name]
    assert images
    for task in images:
        form = reduction_of(replay.load_workload(program.workload(task.id)))
        assert form is not None
        tiles = register_tiles(form, hardware(cross))
        assert {lanes for *_, lanes in tiles} == {9}
        assert max(rows * planes * vectors for rows, planes, vectors, _ in tiles) <= 6


def test_products_fill_sixteen_registers(workers, tmp_path: Path) -> None:
    """Processors of eight lanes and sixteen registers want twelve sums, whatever the sizes: six
    rows by two vectors, or four by three with every register taken."""
    from tunefarm.devices.cpu import cpu_features
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    narrow = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")
    program = imported(tmp_path, models.single_matmul(tmp_path / "square.onnx", 64), narrow)
    (task,) = program.tasks
    space = register_tile_space(replay.load_workload(program.workload(task.id)), narrow)
    assert space is not None
    twelve = {}
    for one in space.modelled():
        tile = space._tile(one.point.values)
        assert tile is not None
        if tile.accumulators == 12:
            twelve.setdefault((tile.rows, tile.vectors), []).append(one)
    assert set(twelve) >= {(4, 3), (6, 2)}
    assert {space._tile(one.point.values).unroll for one in twelve[4, 3]} == {1}
    if "avx2" not in cpu_features():
        pytest.skip("what they compute is not checked: this processor lacks AVX2, which they use")
    bench = Bench(program, task, narrow, workers, tmp_path)
    for number, shape in enumerate(((4, 3), (6, 2))):
        best = min(twelve[shape], key=lambda one: one.seconds)
        proposal = space.realise(best.point, 0)
        assert proposal is not None
        bench.check(proposal, str(number))


def test_no_point_needs_more_registers_than_there_are(kernels: Program, target) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.form import reduction_of
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import register_tiles

    machine = hardware(target)
    tiles = 0
    for task in kernels.tasks:
        form = reduction_of(replay.load_workload(kernels.workload(task.id)))
        if form is None:
            continue
        for rows, planes, vectors, lanes in register_tiles(form, machine):
            tiles += 1
            assert 4 <= lanes <= 2 * machine.lanes
            held = vectors * machine.registers_of(lanes)
            loaded = held + 1 if form.product else 0  # and one register free
            assert rows * planes * held + loaded <= machine.registers
    assert tiles > 100


@pytest.mark.parametrize(
    ("mcpu", "fma"), [("znver4", 1.0), ("znver5", 2.0), ("sapphirerapids", 2.0), ("haswell", 2.0)]
)
def test_a_processor_is_known_by_its_name(mcpu: str, fma: float) -> None:
    from tunefarm.search.spaces.hardware import hardware

    machine = hardware(parse_target(f"llvm:mcpu={mcpu}:mtriple=x86_64-linux-gnu:num-cores=3"))
    assert machine.fma == fma
    assert machine.lanes == (8 if mcpu == "haswell" else 16)
    assert machine.cores == 3


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
        np.testing.assert_array_equal(first.features, again.features)
        assert space.locate("[[],[]]") is None
