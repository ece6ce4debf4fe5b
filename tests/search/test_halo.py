"""Kernels that store their result with zeros around it, in every family that they have."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.bench import Bench, imported
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
    convolve("end", random(32, 1, 3, 3), group=32, pads=[1, 1, 0, 1], strides=[2, 2])
    model = model_of(nodes, {"x": np.zeros((2, 3, 48, 50), np.float32)}, [before], constants)
    directory = tmp_path_factory.mktemp("padded")
    (directory / "m.onnx").write_bytes(model.SerializeToString())
    return imported(directory, directory / "m.onnx", target)


def test_every_family_stores_its_result_in_its_place(
    padded, target, workers, tmp_path: Path
) -> None:
    """Zeros are compared as well: whoever made no halo would leave there what was before."""
    from tunefarm.search.spaces import design_space

    seen = set()
    tasks = [task for task in padded.tasks if "halo" in task.name]
    assert len(tasks) == 5
    for task in tasks:
        bench = Bench(padded, task, target, workers, tmp_path)
        space = design_space(bench.workload, target)
        best: dict[tuple[str, int], Point] = {}
        for one in sorted(space.modelled(), key=lambda one: one.seconds):
            about = space.describe(one.point)
            assert about is not None
            for number in range(2):  # the two that the model likes best
                if best.setdefault((about.family, number), one.point) == one.point:
                    break
        best["sketch", 0] = Point(0, (None,) * len(space.sketches[0]))
        for number, ((family, _), point) in enumerate(best.items()):
            seen.add(family)
            proposal = space.realise(point, 1)
            assert proposal is not None, (task.name, family)
            bench.check(proposal, str(number))
    assert seen >= {"sketch", "register-tile", "winograd", "elementwise"}


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


def test_zeros_are_shared_by_the_cores(padded, target) -> None:
    """Each task of the loop that they share stores some: all of them together, each once."""
    import tvm
    from tvm import tirx

    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import with_halo, within

    task = next(task for task in padded.tasks if "halo" in task.name)
    workload = replay.load_workload(padded.workload(task.id))
    inner, halo = within(workload)
    assert halo is not None
    result = inner["main"].params[-1]
    for tasks in (0, 1, 3, 7, 1000):
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        block = tvm.s_tir.SBlock([], [], [], "nothing", nothing)
        body = tvm.s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        if tasks:
            loop, count = tirx.Var("i", "int64"), tirx.const(tasks, "int64")
            kind = tirx.ForKind.PARALLEL
            body = tirx.For(loop, tirx.const(0, "int64"), count, kind, body)
        root = tvm.s_tir.SBlock([], [], [], "root", body)
        realize = tvm.s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        function = tirx.PrimFunc([result], realize).with_attr("global_symbol", "main")
        kernel = tvm.compile(with_halo(function, halo), target=replay.tvm_target(target))
        made = tvm.runtime.tensor(np.full(halo.shape, np.nan, np.float32))
        kernel(made)
        wanted = np.zeros(halo.shape, np.float32)
        places = zip(halo.starts, halo.inner, strict=True)
        wanted[tuple(slice(start, start + size) for start, size in places)] = np.nan
        np.testing.assert_array_equal(made.numpy(), wanted)


def test_vectors_that_pass_the_caches_by_must_stay_aligned(padded, target) -> None:
    from tunefarm.search import replay
    from tunefarm.search.kernels.halo import with_halo, within
    from tunefarm.search.kernels.streaming import KEY

    for task in padded.tasks:
        workload = replay.load_workload(padded.workload(task.id))
        inner, halo = within(workload)
        if halo is None:
            continue
        channels = halo.shape[-1]
        function = replay.scheduled_function(inner, target, UNTUNED)
        assert with_halo(function.with_attr(KEY, 1), halo) is not None
        with pytest.raises(ValueError, match="not be aligned"):
            with_halo(function.with_attr(KEY, 2 * channels), halo)


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
    seen = set()
    for number, one in enumerate(space.ways):
        if one.size not in seen:
            seen.add(one.size)
            proposal = space.realise(Point(0, (number,)), 0)
            assert proposal is not None
            bench.check(proposal, str(number))
    assert seen == {2, 4, 6}
