"""The conformance suite of design spaces: every point that is built computes the right result."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tunefarm.devices.probe import probe
from tunefarm.devices.target import parse_target
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.measure.build import Builder, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import Runner, ScreenRequest
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.space import Point, Proposal
from tunefarm.search.tiles import mutate, random_point

pytestmark = pytest.mark.tvm
PROTOCOL = Protocol()
POINTS = 4
FAMILIES = {
    "matmul": ("register-tile", "filled-tile"),
    "dense": ("register-tile", "filled-tile"),
    "conv2d": ("register-tile", "filled-tile", "spread", "winograd"),
    "max_pool2d": ("register-tile", "windows"),
    "fast_softmax": "rowwise",
    "layer_norm": "rowwise",
    "add": "elementwise",
    "transpose": "elementwise",
    "concatenate": "elementwise",
    "multiply": "elementwise",
    "reshape_transpose": "elementwise",
}
"""The family that each kind of kernel of `models.kernels` must have, by the start of its name."""


@pytest.fixture(scope="module")
def target():
    return probe()[0].target


def imported(directory: Path, model: Path, target) -> Program:
    return import_model(ImportRequest(model, directory / "program", target))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, target) -> Program:
    directory = tmp_path_factory.mktemp("spaces")
    return imported(directory, models.cnn(directory / "cnn.onnx"), target)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, target) -> Program:
    directory = tmp_path_factory.mktemp("kernels")
    return imported(directory, models.kernels(directory / "kernels.onnx"), target)


@pytest.fixture(scope="module")
def workers():
    builder, runner = Builder(60.0), Runner(2, PROTOCOL.memory_bytes)
    yield builder, runner
    builder.close()
    runner.close()


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


def test_convolutions_by_minimal_filtering_are_right(target, workers, tmp_path: Path) -> None:
    """With tiles of every size, at the image's edges too, and with what follows them."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.winograd import SIZES, winograd_space

    program = imported(tmp_path, models.convolutions(tmp_path / "convolutions.onnx"), target)
    taps: dict[int, set[int]] = {}
    groups = set()
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = winograd_space(bench.workload, target)
        if space is None:
            continue
        seen = taps.setdefault(task.args[1].shape[0], set())
        groups.add(task.args[0].shape[3] // task.args[1].shape[2])
        for size in sorted({way.size for way in space.ways}):
            seen.add(size)
            numbers = [i for i, way in enumerate(space.ways) if way.size == size]
            for number in (numbers[0], numbers[-1]):
                proposal = space.realise(Point(0, (number,)), 0)
                assert proposal is not None, (task.name, space.ways[number])
                assert space.locate(proposal.trace) == Point(0, (number,))
                assert (replay.completed_by(proposal.trace) or "").startswith("winograd")
                library = bench.check(proposal, str(number))
                assert library.prepack is not None, "filters are transformed when they are packed"
    assert taps == {3: set(SIZES), 5: {2, 4}}
    assert groups == {1, 2}


def test_groups_filled_up_to_whole_vectors_are_right(target, workers, tmp_path: Path) -> None:
    """With and without stages before and after them, wherever those before are computed."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import filled_tile_space
    from tunefarm.search.spaces.tile import Before

    program = imported(tmp_path, models.shuffled(tmp_path / "shuffled.onnx"), target)
    lanes = hardware(target).lanes
    seen: set[tuple[str, str]] = set()
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = filled_tile_space(bench.workload, target)
        if space is None:
            continue
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        picked = [known[0], known[-1], *random.Random(0).sample(known, 6)]
        for number, one in enumerate(picked):
            proposal = space.realise(one.point, number)
            assert proposal is not None, (task.name, one.point)
            assert space.locate(proposal.trace) == one.point
            note = replay.completed_by(proposal.trace) or ""
            assert note.startswith("filled-tile")
            library = bench.check(proposal, str(number))
            assert library.prepack is not None, "weights are filled up when they are packed"
            seen.add((task.name, note.rpartition("before=")[2]))
    if lanes > 4:  # vectors of four divide 20 and 36
        assert {name for name, _ in seen} >= {"conv2d_add_relu", "shuffle_conv2d"}
        assert {before for _, before in seen} == {*Before}


def test_groups_spread_over_vectors_are_right(target, workers, tmp_path: Path) -> None:
    """Strips of some rows and of all, with what follows them and without, at the image's edges."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.spread import spread_space

    if hardware(target).lanes < 8:
        return  # a group of four fills a vector of four
    program = imported(tmp_path, models.narrow_groups(tmp_path / "narrow.onnx"), target)
    seen = []
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = spread_space(bench.workload, target)
        if space is None:
            continue
        numbers = random.Random(0).sample(range(len(space.ways)), 6)
        best = min(range(len(space.ways)), key=lambda n: space.estimate(space.ways[n]))
        for number in (best, *numbers):
            proposal = space.realise(Point(0, (number,)), 0)
            assert proposal is not None, (task.name, space.ways[number])
            assert space.locate(proposal.trace) == Point(0, (number,))
            assert (replay.completed_by(proposal.trace) or "").startswith("spread")
            bench.check(proposal, str(number))
        seen.append(task.name)
    assert len(seen) == 3
    assert "conv2d_add_relu" in seen


def test_windows_that_slide_along_rows_are_right(target, workers, tmp_path: Path) -> None:
    """Wherever their padding is computed, with what follows them and without."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.windows import Padded, windows_space

    program = imported(tmp_path, models.pools(tmp_path / "pools.onnx"), target)
    seen: set[tuple[str, Padded]] = set()
    for task in program.tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = windows_space(bench.workload, target)
        assert space is not None, task.name
        for number in range(1, len(space.ways), 3):  # of each place, local and not
            proposal = space.realise(Point(0, (number,)), 0)
            assert proposal is not None, (task.name, space.ways[number])
            assert space.locate(proposal.trace) == Point(0, (number,))
            assert (replay.completed_by(proposal.trace) or "").startswith("windows")
            bench.check(proposal, str(number))
            seen.add((task.name, space.ways[number].padded))
    assert {place for _, place in seen} == {*Padded}
    assert {name for name, _ in seen} == {"max_pool2d", "avg_pool2d_tir_sigmoid"}


def test_rows_that_no_vector_divides_have_odd_ones(kernels: Program, target) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.elementwise import elementwise_space

    shuffle = next(task for task in kernels.tasks if task.args[-1].shape == (12, 14))
    space = elementwise_space(replay.load_workload(kernels.workload(shuffle.id)), target)
    assert space is not None
    assert min(space.ways, key=space.estimate).lanes == 14


def test_the_next_row_is_asked_for_where_a_point_says_so(
    kernels: Program, target, workers, tmp_path: Path
) -> None:
    import tvm
    from tvm.ir.expr import TensorLoad, Var
    from tvm.sym import Analyzer
    from tvm_ffi import structural_map, structural_walk

    from tunefarm.search import replay
    from tunefarm.search.spaces.rowwise import rowwise_space

    task = next(t for t in kernels.tasks if t.name.startswith("fast_softmax"))
    workload = replay.load_workload(kernels.workload(task.id))
    space = rowwise_space(workload, target)
    assert space is not None
    assert {way.ahead for way in space.ways} == {False, True}
    for ahead in (False, True):
        number = next(i for i, way in enumerate(space.ways) if way.ahead == ahead)
        proposal = space.realise(Point(0, (number,)), 0)
        assert proposal is not None
        function = replay.scheduled_function(workload, target, proposal.trace)
        kernel, _, _ = replay.kernel_module(function)
        built = tvm.tirx.build(kernel, target=replay.tvm_target(target))
        assert ("llvm.prefetch" in built.inspect_source("ll")) == ahead
        requests: list[tvm.tirx.Evaluate] = []
        structural_walk(function.body, (tvm.tirx.Evaluate, requests.append))
        assert bool(requests) == ahead
        for request in requests:
            loads: list[TensorLoad] = []
            structural_walk(request, (TensorLoad, loads.append))
            (load,) = loads
            zero = [
                structural_map(index, (Var, lambda v: tvm.tirx.const(0, str(v.ty))))
                for index in load.indices
            ]
            assert load.source.same_as(function.params[0])
            assert [int(Analyzer().simplify(index)) for index in zero] == [0, 48]  # a row on
        Bench(kernels, task, target, workers, tmp_path).check(proposal, f"ahead{ahead}")


def test_large_results_pass_the_caches_by(
    kernels: Program, target, workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one row and by all of them in one, with one vector in the text and with several; and a
    result is large from a size on."""
    import tvm

    from tunefarm.search import replay, streaming
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.rowwise import rowwise_space

    families = {
        "fast_softmax": rowwise_space,
        "add": elementwise_space,
        "multiply": elementwise_space,
    }
    seen = []
    for task in kernels.tasks:
        made = next((s for name, s in families.items() if task.name.startswith(name)), None)
        if made is None:
            continue
        workload = replay.load_workload(kernels.workload(task.id))
        monkeypatch.undo()
        small = made(workload, target)
        assert small is not None
        assert not any(way.stream for way in small.ways)
        monkeypatch.setattr(streaming, "LARGE", 1)
        space = made(workload, target)
        assert space is not None
        assert {way.stream for way in space.ways} == {False, True}
        bench = Bench(kernels, task, target, workers, tmp_path)
        streamed = [i for i, way in enumerate(space.ways) if way.stream]
        for number in (streamed[0], streamed[-1]):
            proposal = space.realise(Point(0, (number,)), 0)
            assert proposal is not None
            assert space.locate(proposal.trace) == Point(0, (number,))
            function = replay.scheduled_function(workload, target, proposal.trace)
            assert streaming.streams(function) == space.ways[number].lanes
            kernel, _, _ = replay.kernel_module(function)
            built = tvm.tirx.build(kernel, target=replay.tvm_target(target))
            assert "!nontemporal" in built.inspect_source("ll")
            bench.check(proposal, f"streamed{number}")
        seen.append(task.name)
    assert len(seen) >= 3


def test_an_algorithm_that_is_not_known_is_an_invalid_trace(program: Program) -> None:
    from tunefarm.search import replay

    workload = replay.load_workload(program.workload(program.tasks[0].id))
    for algorithm in ("fourier 4", "winograd", "winograd 99"):
        schedule = replay.new_schedule(workload, seed=1)
        replay.mark_algorithm(schedule, algorithm)
        with pytest.raises(replay.InvalidTrace):
            replay.apply_trace(workload, replay.trace_json(schedule))


def test_sizes_without_divisors_are_padded(
    kernels: Program, target, workers, tmp_path: Path
) -> None:
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import RegisterTileSpace, register_tile_space

    odd = next(t for t in kernels.tasks if t.args[-1].shape == (29, 37))
    bench = Bench(kernels, odd, target, workers, tmp_path)
    space = register_tile_space(bench.workload, target)
    assert isinstance(space, RegisterTileSpace)
    known = sorted(space.modelled(), key=lambda one: one.seconds)
    lanes = hardware(target).lanes
    padded = [one for one in known if f"lanes={lanes} " in _note_of(space, one.point)]
    assert padded, "37 columns are no multiple of a vector"
    for number, one in enumerate(padded[:: max(1, len(padded) // 6)]):
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        bench.check(proposal, str(number))


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


def _note_of(space, point: Point) -> str:
    from tunefarm.search import replay

    proposal = space.realise(point, 0)
    return (replay.completed_by(proposal.trace) or "") + " "


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

    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import register_tile_space

    cross = parse_target(text)
    assert hardware(cross).lanes == lanes
    task = next(t for t in kernels.tasks if t.args[-1].shape == (1, 7, 7, 24))
    workload = replay.load_workload(kernels.workload(task.id))
    space = register_tile_space(workload, cross)
    assert space is not None
    best = min(space.modelled(), key=lambda one: one.seconds)
    proposal = space.realise(best.point, 0)
    assert proposal is not None
    function = replay.scheduled_function(workload, cross, proposal.trace)
    kernel, _, _ = replay.kernel_module(function)
    built = tvm.tirx.build(kernel, target=replay.tvm_target(cross))
    built.write_to_file(str(tmp_path / "kernel.o"))
    assert (tmp_path / "kernel.o").stat().st_size > 1000
    assert f"<{lanes} x float>" in built.inspect_source("ll")


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
            assert 4 <= lanes <= machine.lanes
            loaded = vectors + 1 if form.product else 0  # and one register free
            assert rows * planes * vectors + loaded <= machine.registers
    assert tiles > 100


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
