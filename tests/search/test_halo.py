"""Kernels that store their result with zeros around it, in every family that they have."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.bench import Bench, imported, likeliest_of_each
from tests.spelled import model_of, random
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.space import Point

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory, target):
    """Made by a turn, a product, a Winograd convolution, a grouped one and a sum, two images at
    once, each for a reader that pads it in its own way."""
    nodes, constants, before = [], {}, "x"

    def add(op: str, inputs: list[str], **attributes) -> None:
        nonlocal before
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, [before, *inputs], [name], **attributes))
        before = name

    def convolve(name: str, weights: np.ndarray, **attributes) -> None:
        constants[name] = weights
        add("Conv", [name], **attributes)

    convolve("stem", random(16, 3, 3, 3), pads=[1, 0, 0, 1], strides=[2, 2])
    convolve("grow", random(48, 16, 1, 1))
    add("Relu", [])
    convolve("each", random(48, 1, 3, 3), group=48, pads=[1, 1, 1, 1])
    convolve("few", random(16, 48, 1, 1))
    convolve("three", random(32, 16, 3, 3), pads=[1, 1, 1, 1])
    add("Relu", [])
    convolve("again", random(32, 1, 3, 3), group=32, pads=[0, 1, 2, 1])
    convolve("groups", random(32, 4, 3, 3), group=8, pads=[1, 1, 1, 1])
    convolve("last", random(32, 1, 3, 3), group=32, pads=[1, 1, 1, 1])
    a = before
    add("Sigmoid", [])
    nodes.append(helper.make_node("Mul", [a, before], ["m"]))
    before = "m"
    convolve("tall", random(32, 1, 3, 1), group=32, pads=[1, 0, 1, 0])
    kept = before  # what follows is then a kernel of its own
    add("Relu", [])
    convolve("end", random(8, 32, 3, 3), pads=[1, 1, 0, 1], strides=[2, 2])
    model = model_of(nodes, {"x": np.zeros((2, 3, 48, 50), np.float32)}, [before, kept], constants)
    directory = tmp_path_factory.mktemp("padded")
    (directory / "m.onnx").write_bytes(model.SerializeToString())
    return imported(directory, directory / "m.onnx", target, layout="NHWC")


def test_every_family_stores_its_result_in_its_place(
    padded, target, workers, tmp_path: Path
) -> None:
    """Zeros are compared as well: whoever made no halo would leave there what was before."""
    from tunefarm.search.spaces import design_space

    seen = set()
    tasks = [task for task in padded.tasks if "halo" in task.name]
    assert len(tasks) == 6
    for task in tasks:
        bench = Bench(padded, task, target, workers, tmp_path)
        space = design_space(bench.workload, target)
        best = likeliest_of_each(space)
        if "sketch" not in seen:
            best["sketch"] = Point(0, (None,) * len(space.sketches[0]))
        for family, point in best.items():
            seen.add(family)
            proposal = space.realise(point, 1)
            assert proposal is not None, (task.name, family)
            bench.check(proposal, family)
    assert seen >= {"sketch", "register-tile", "winograd", "elementwise"}


def test_tiles_across_lines_store_in_their_place(padded, target) -> None:
    """Rows that go on in the next line, and the last tile, which overlaps: as the whole kernel."""
    import tvm

    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import with_halo, within

    rng, seen = np.random.default_rng(0), 0
    for task in padded.tasks:
        workload = replay.load_workload(padded.workload(task.id))
        inner, halo = within(workload)
        if halo is None or not task.name.startswith("conv2d"):
            continue
        numbers = [rng.normal(size=spec.shape).astype(np.float32) for spec in task.args[:-1]]
        results = []
        for rows in (0, 5, 7):
            function = workload["main"]
            if rows:
                try:
                    across = replay.rewritten(inner, f"across {rows}")
                except ValueError:  # they divide the rows
                    continue
                function, seen = with_halo(across["main"], halo), seen + 1
                assert function.script().count("T.Select(") >= 2, "a division a row"
            made = tvm.runtime.tensor(np.full(halo.shape, np.nan, np.float32))
            kernel = tvm.compile(function, target=replay.tvm_target(target))
            kernel(*map(tvm.runtime.tensor, numbers), made)
            results.append(made.numpy())
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5)
    assert seen >= 4


def test_elementwise_kernels_tell_places_without_divisions(padded, target) -> None:
    """Lines do not follow each other: were rows and columns one loop, each element's place would
    take a division."""
    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import within
    from tunefarm.search.spaces.elementwise import chain_of, elementwise_space

    names = set()
    for task in padded.tasks:
        inner, halo = within(replay.load_workload(padded.workload(task.id)))
        space = elementwise_space(inner, target) if halo is not None else None
        if halo is None or space is None:
            continue
        chain = chain_of(inner)
        assert chain is not None
        assert not chain.flat
        names.add(task.name)
        width = halo.inner[2]
        for number, one in enumerate(space.ways):
            if halo.inner[0] * halo.inner[1] % one.shares == 0:
                proposal = space.realise(Point(0, (number,)), 0)
                assert proposal is not None
                text = replay.scheduled_function(inner, target, proposal.trace).script()
                assert f"% T.int64({width})" not in text, (task.name, one)
    assert names == {"transpose_halo", "relu_halo"}


def test_what_is_searched_for_is_the_kernel_alone(padded) -> None:
    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import within

    for task in padded.tasks:
        workload = replay.load_workload(padded.workload(task.id))
        inner, halo = within(workload)
        if "halo" not in task.name:
            assert halo is None
            assert inner is workload
            continue
        assert halo is not None
        assert halo.shape == task.args[-1].shape
        result = tuple(int(size) for size in inner["main"].params[-1].ty.shape)
        assert result == halo.inner
        assert prod(result) < prod(halo.shape)
        assert "halo" not in inner["main"].script()


SIDES = {
    "all": ((2, 7, 9, 4), (0, 1, 2, 0), (2, 5, 6, 4)),
    "above": ((2, 7, 6, 4), (0, 2, 0, 0), (2, 5, 6, 4)),
    "below": ((1, 7, 6, 4), (0, 0, 0, 0), (1, 5, 6, 4)),
    "left": ((2, 5, 8, 4), (0, 0, 2, 0), (2, 5, 6, 4)),
    "right": ((1, 5, 8, 4), (0, 0, 0, 0), (1, 5, 6, 4)),
}


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("tasks", [0, 1, 3, 7, 1000])
def test_every_zero_is_stored_once(sides: str, tasks: int, target) -> None:
    """By the loop that the cores share, however many iterations it has, or without one: the zeros
    are counted, and what the kernel stores is left alone."""
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_map

    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import Halo, with_halo

    halo = Halo(*SIDES[sides])
    result = tirx.decl_buffer([tirx.const(n, "int64") for n in halo.inner], "float32", "result")
    body = kernel_storing_one(result, halo.inner, tasks)
    function = tirx.PrimFunc([result], body).with_attr("global_symbol", "main")

    def counted(store):
        if getattr(store.value, "value", None) != 0.0:
            return store
        before = tirx.BufferLoad(store.buffer, store.indices)
        return tirx.BufferStore(store.buffer, before + 1.0, store.indices)

    made = with_halo(function, halo)
    shared = isinstance(made.body.block.body, tirx.For)  # and nothing behind that loop
    assert shared == (tasks > 0)
    made = made.with_body(structural_map(made.body, (tirx.BufferStore, counted)))
    kernel = tvm.compile(made, target=replay.tvm_target(target))
    stored = tvm.runtime.tensor(np.zeros(halo.shape, np.float32))
    kernel(stored)
    wanted = np.ones(halo.shape, np.float32)
    places = zip(halo.starts, halo.inner, strict=True)
    wanted[tuple(slice(start, start + size) for start, size in places)] = 7.0
    np.testing.assert_array_equal(stored.numpy(), wanted)


def kernel_storing_one(result, extents: tuple[int, ...], tasks: int):
    """A kernel's text that stores 7 everywhere: of `tasks` parallel iterations the
    last one does it; 0 for one loop inside of another that nobody shares."""
    from tvm import tirx
    from tvm.s_tir import SBlock, SBlockRealize

    def loop(variable, size, body, kind=tirx.ForKind.SERIAL):
        least = tirx.const(0, str(variable.ty.dtype))
        return tirx.For(variable, least, tirx.const(size, str(variable.ty.dtype)), kind, body)

    def block(name, body):
        return SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], name, body))

    at = [tirx.Var(f"i{axis}", "int64") for axis in range(len(extents))]
    text = tirx.BufferStore(result, tirx.const(7.0, "float32"), at)
    for variable, size in reversed(list(zip(at, extents, strict=True))):
        text = loop(variable, size, text)
    task = tirx.Var("task", "int32")
    if tasks:
        text = block("all", tirx.IfThenElse(task == tasks - 1, text, None))
        return block("root", loop(task, tasks, text, tirx.ForKind.PARALLEL))
    inner = loop(task, 3, block("all", text), tirx.ForKind.PARALLEL)
    return block("root", loop(tirx.Var("again", "int64"), 2, inner))


def test_a_trace_of_the_whole_kernel_applies_as_well(padded, target) -> None:
    """As a tuner has it that knows nothing of this: it schedules the stage that pads, too."""
    from tunefarm.search import replay

    task = next(task for task in padded.tasks if task.name == "transpose_halo")
    workload = replay.load_workload(padded.workload(task.id))
    schedule = replay.new_schedule(workload, seed=1)
    schedule.unroll(schedule.get_loops(schedule.get_sblock("halo"))[-1])
    replay.mark_complete(schedule, "by hand")
    text = replay.scheduled_function(workload, target, replay.trace_json(schedule)).script()
    assert text.count("T.unroll(") == 1
    assert text.count('T.sblock("halo")') == 1


def test_vectors_that_pass_the_caches_by_must_stay_aligned(padded, target) -> None:
    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import stays_aligned, within
    from tunefarm.search.kernels.streaming import KEY

    for task in padded.tasks:
        workload = replay.load_workload(padded.workload(task.id))
        inner, halo = within(workload)
        if halo is None:
            continue
        channels = halo.shape[-1]
        function = replay.scheduled_function(inner, target, UNTUNED)
        assert stays_aligned(function, halo)
        assert stays_aligned(function.with_attr(KEY, channels), halo)
        assert not stays_aligned(function.with_attr(KEY, 2 * channels), halo)


def test_a_convolution_that_is_not_padded_is_filtered_too(target, workers, tmp_path: Path) -> None:
    from tunefarm.search.spaces.winograd import winograd_space

    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    images = {"x": np.zeros((1, 16, 15, 13), np.float32)}
    model = model_of(nodes, images, ["y"], {"w": random(16, 16, 3, 3)})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    program = imported(tmp_path, tmp_path / "m.onnx", target, layout="NHWC")
    task = next(task for task in program.tasks if task.name.startswith("conv2d"))
    bench = Bench(program, task, target, workers, tmp_path)
    space = winograd_space(bench.workload, target)
    assert space is not None
    likeliest = min(space.modelled(), key=lambda one: one.seconds)
    proposal = space.realise(likeliest.point, 0)
    assert proposal is not None
    bench.check(proposal, "likeliest")
