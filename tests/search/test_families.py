"""Families that write a kernel anew, or add what no schedule primitive makes: each computes the
right result, wherever it fits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from tests import models, odd_models
from tests.bench import Bench, fitting, imported, likeliest_of_each
from tunefarm.frontend.program import Program
from tunefarm.search.space import Point

pytestmark = pytest.mark.tvm


@pytest.mark.long
def test_convolutions_by_minimal_filtering_are_right(target, workers, tmp_path: Path) -> None:
    """With tiles of every size, at the image's edges too, and with what follows them."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.winograd import SIZES, winograd_space

    program = imported(tmp_path, models.convolutions(tmp_path / "convolutions.onnx"), target)
    taps: dict[int, set[int]] = {}
    groups = set()
    for task, bench, space in fitting(program, winograd_space, target, workers, tmp_path):
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


@pytest.mark.long
def test_groups_filled_up_to_whole_vectors_are_right(target, workers, tmp_path: Path) -> None:
    """With and without stages before and after them, wherever those before are computed."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import filled_tile_space
    from tunefarm.search.spaces.tile import Before

    program = imported(tmp_path, models.shuffled(tmp_path / "shuffled.onnx"), target)
    lanes = hardware(target).lanes
    seen: set[tuple[str, str]] = set()
    for task, bench, space in fitting(program, filled_tile_space, target, workers, tmp_path):
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


def test_rows_of_vectors_that_overlap_are_right(target, workers, tmp_path: Path) -> None:
    """Sums have each element once, whatever the row holds; the largest and the least may have it
    twice."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.lapped_rows import lapped_rows_space

    program = imported(tmp_path, odd_models.rows(tmp_path / "odd.onnx"), target)
    seen = set()
    for task, bench, space in fitting(program, lapped_rows_space, target, workers, tmp_path):
        for one in space.modelled():
            proposal = space.realise(one.point, 0)
            assert proposal is not None, (task.name, one.point)
            assert space.locate(proposal.trace) == one.point
            assert (replay.completed_by(proposal.trace) or "").startswith("lapped-rows")
            bench.check(proposal, str(one.point.values[0]))
            seen.add((task.name, task.args[-1].shape[-1]))
    assert seen == {("softmax", 197), ("layer_norm", 45), ("log_softmax", 77)}


@pytest.mark.parametrize(
    ("operator", "name"),
    [("LogSoftmax", "compute"), ("Softmax", "T_softmax_exp"), ("Softmax", "T_softmax_maxelem")],
)
@pytest.mark.parametrize("columns", [80, 77])
def test_arguments_may_be_called_as_what_is_computed(
    target, workers, tmp_path: Path, operator: str, name: str, columns: int
) -> None:
    """Inputs keep their names, and the result of a LogSoftmax has that of its sum: they are rows
    like others."""
    from tunefarm.search.spaces.lapped_rows import lapped_rows_space
    from tunefarm.search.spaces.rowwise import rowwise_space

    nodes = [helper.make_node(operator, [name], ["y"], axis=-1)]
    given, made = [(name, [3, 4, columns])], [("y", [3, 4, columns])]
    model = models.save(tmp_path / "named.onnx", nodes, given, made, [])
    program = imported(tmp_path, model, target)
    (task,) = program.tasks
    bench = Bench(program, task, target, workers, tmp_path)
    space = (rowwise_space if columns == 80 else lapped_rows_space)(bench.workload, target)
    assert space is not None
    proposal = space.realise(space.modelled()[-1].point, 0)
    assert proposal is not None
    bench.check(proposal, "named")


@pytest.mark.parametrize(
    "last",
    [
        lambda t, i, j: t[i, 20 - j],
        lambda t, i, j: t[i, j] - t[i, 20],
        lambda t, i, j: t[j, i],
    ],
    ids=["backwards", "less one", "turned"],
)
def test_rows_that_are_read_elsewhere_are_left_alone(last: Any) -> None:
    """An inner stage's elements lie in the order of the vectors."""
    import tvm
    from tvm import te

    from tunefarm.search.kernels.lapping import lapped

    def kernel(stored: Any) -> Any:
        x = te.placeholder((21, 21), name="x")
        t = te.compute((21, 21), lambda i, j: te.exp(x[i, j]), name="t")
        k = te.reduce_axis((0, 21), name="k")
        s = te.compute((21,), lambda i: te.sum(t[i, k], k), name="s")
        y = te.compute((21, 21), lambda i, j: stored(t, i, j) / s[i], name="y")
        return tvm.IRModule({"main": te.create_prim_func([x, y])})

    assert lapped(kernel(lambda t, i, j: t[i, j]), 8) is not None
    with pytest.raises(ValueError, match="elsewhere"):
        lapped(kernel(last), 8)


def test_what_rows_begin_with_is_looked_at() -> None:
    """And inner results that leave the kernel."""
    import tvm
    from tvm import te, tirx

    from tunefarm.search.kernels.lapping import lapped

    def kernel(first: float, outputs: int) -> Any:
        x = te.placeholder((3, 21), name="x")
        t = te.compute((3, 21), lambda i, j: x[i, j] * x[i, j], name="t")
        most = te.comm_reducer(
            lambda a, b: tirx.max(a, b), lambda kind: tirx.const(first, kind), name="most"
        )
        k = te.reduce_axis((0, 21), name="k")
        m = te.compute((3,), lambda i: most(t[i, k], axis=k), name="m")
        y = te.compute((3, 21), lambda i, j: t[i, j] - m[i], name="y")
        return tvm.IRModule({"main": te.create_prim_func([x, *[t][:outputs], y])})

    least = te.min_value("float32").value
    assert lapped(kernel(least, 0), 8) is not None
    with pytest.raises(ValueError, match="begins"):
        lapped(kernel(0.0, 0), 8)
    with pytest.raises(ValueError, match="another result"):
        lapped(kernel(least, 1), 8)


@pytest.mark.long
def test_groups_spread_over_vectors_are_right(target, workers, tmp_path: Path) -> None:
    """Strips of some rows and of all, with what follows them and without, at the image's edges."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.spread import spread_space

    if hardware(target).lanes < 8:
        return  # a group of four fills a vector of four
    program = imported(tmp_path, models.narrow_groups(tmp_path / "narrow.onnx"), target)
    seen = []
    for task, bench, space in fitting(program, spread_space, target, workers, tmp_path):
        count = len(space.ways)  # few where registers are
        numbers = random.Random(0).sample(range(count), min(6, count))
        best = min(range(count), key=lambda n: space.estimate(space.ways[n]))
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


@pytest.mark.parametrize(
    ("network", "kernel", "families"),
    [
        (models.activated, "conv2d_add_tir_sigmoid_multiply", {"register-tile", "winograd"}),
        (models.halved_first, "matmul_add", {"register-tile"}),
        (models.scaled, "conv2d_add_tir_sigmoid_multiply", {"register-tile"}),
        (models.scaled, "mean_subtract_multiply", {"register-tile"}),
    ],
)
def test_what_follows_may_read_results_in_any_order(
    network: Callable[[Path], Path],
    kernel: str,
    families: set[str],
    target,
    workers,
    tmp_path: Path,
) -> None:
    """An activation made of many operations stays in the kernel before it, in every family that
    fits the kernel, and so does what a result of another shape scales or shifts."""
    from tunefarm.search.spaces import design_space

    program = imported(tmp_path, network(tmp_path / "activated.onnx"), target)
    (task,) = (one for one in program.tasks if one.name.startswith(kernel))
    bench = Bench(program, task, target, workers, tmp_path)
    space = design_space(bench.workload, target)
    best = likeliest_of_each(space)
    assert set(best) == families
    for number, point in enumerate(best.values()):
        proposal = space.realise(point, 0)
        assert proposal is not None
        bench.check(proposal, str(number))


def test_rows_of_which_one_number_is_kept_are_right(target, workers, tmp_path: Path) -> None:
    """Means and roots that keep their axis, which is no column then."""
    from tunefarm.search.spaces.rowwise import rowwise_space

    program = imported(tmp_path, models.normalised_by_parts(tmp_path / "parts.onnx"), target)
    tasks = [task for task in program.tasks if task.name.startswith("mean")]
    assert len(tasks) == 2
    for task in tasks:
        bench = Bench(program, task, target, workers, tmp_path)
        space = rowwise_space(bench.workload, target)
        assert space is not None
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        for number, one in enumerate([known[0], known[-1], *random.Random(0).sample(known, 3)]):
            proposal = space.realise(one.point, 0)
            assert proposal is not None
            bench.check(proposal, str(number))


@pytest.mark.long
def test_windows_whose_rows_are_folded_are_right(target, workers, tmp_path: Path) -> None:
    """Of every kind, in vectors that divide the rows and that do not; what something follows, and
    sums, are not folded."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.fold import fold_space

    seen: list[int] = []
    for make in (models.windows, models.pools):
        program = imported(
            tmp_path / make.__name__, make(tmp_path / f"{make.__name__}.onnx"), target
        )
        for task in program.tasks:
            bench = Bench(program, task, target, workers, tmp_path)
            space = fold_space(bench.workload, target)
            assert (space is None) == ("sigmoid" in task.name), task.name
            for number, one in enumerate(space.ways if space is not None else ()):
                proposal = space.realise(Point(0, (number,)), 0)
                assert proposal is not None, (task.name, one)
                assert space.locate(proposal.trace) == Point(0, (number,))
                assert (replay.completed_by(proposal.trace) or "").startswith("fold")
                bench.check(proposal, str(number))
                seen.append(one.lanes)
    assert len(set(seen)) > 1
    assert len(seen) >= 8


def test_the_next_row_is_asked_for_where_a_point_says_so(
    kernels: Program, target, workers, tmp_path: Path
) -> None:
    import tvm
    from tvm.ir.expr import TensorLoad, Var
    from tvm.sym import Analyzer
    from tvm_ffi import structural_map, structural_walk

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.rowwise import rowwise_space

    task = next(t for t in kernels.tasks if t.name.startswith("softmax"))
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
        built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
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

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.kernels import streaming
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.rowwise import rowwise_space

    families = {
        "softmax": rowwise_space,
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
            built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
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
