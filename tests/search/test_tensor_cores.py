"""Sketches for tensor cores, and how what they make is lowered."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tunefarm.devices.gpu import completed
from tunefarm.devices.target import parse_target

pytestmark = pytest.mark.tvm

TARGET = completed(parse_target("cuda:arch=sm_80"))


def product(dtype: str) -> Any:
    import tvm
    from tvm import te, topi

    a, b = (te.placeholder((256, 256), dtype, name) for name in "ab")
    c = topi.cast(topi.nn.matmul(a, b, out_dtype="float32"), dtype)
    return _module(tvm, te, [a, b, c])


def convolution(dtype: str) -> Any:
    import tvm
    from tvm import te, topi

    x = te.placeholder((1, 14, 14, 64), dtype, "x")
    w = te.placeholder((3, 3, 64, 64), dtype, "w")
    y = topi.cast(topi.nn.conv2d_nhwc(x, w, 1, 1, 1, out_dtype="float32"), dtype)
    return _module(tvm, te, [x, w, y])


def _module(tvm: Any, te: Any, arguments: list[Any]) -> Any:
    function = te.create_prim_func(arguments).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


def first(space: Any) -> Any:
    points = sorted(space.modelled(), key=lambda one: one.seconds)
    return next(made for one in points if (made := space.realise(one.point, 1)) is not None)


def test_bfloat16_is_multiplied_as_float16_is() -> None:
    """By the intrinsics of its own type, on rows that begin in different banks."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.generic import tensor_core_space

    used = {}
    for dtype, short in (("float16", "f16"), ("bfloat16", "bf16")):
        workload = product(dtype)
        space = tensor_core_space(workload, TARGET)
        assert space is not None
        made = first(space)
        assert replay.rules_of(made.trace) == replay.TENSOR_CORES
        assert space.locate(made.trace) == made.point
        replayed = replay.scheduled_function(workload, TARGET, made.trace).script()
        assert '"wmma.matrix_a"' in replayed
        assert "tvm_mma_sync" in replayed
        aligned = re.findall(r"buffer_dim_align[^\n]*\[\[0, \d+, 32, 8\]\]", replayed)
        shapes = "".join(space._shapes)
        names = set(re.findall(r"(?<=\")wmma_\w+", shapes))
        used[dtype] = ({name.replace(short, "f16") for name in names}, len(aligned))
    assert used["bfloat16"] == used["float16"]
    assert used["float16"][1] == 2


@pytest.mark.long
def test_operands_may_be_on_their_way_while_others_are_multiplied() -> None:
    """From sm_80 on; past the registers, as the code says."""
    import tvm

    from tunefarm.measure import compile  # noqa: F401  (the compiler without a CUDA runtime)
    from tunefarm.measure.cuda.cubin import device_modules
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.generic import tensor_core_space

    workload = product("float16")
    old = tensor_core_space(workload, completed(parse_target("cuda:arch=sm_75")))
    new = tensor_core_space(workload, TARGET)
    assert old is not None
    assert new is not None
    assert len(new.sketches) == 3 * len(old.sketches)
    seen = set()
    for one in sorted(new.modelled(), key=lambda one: one.seconds):
        made = new.realise(one.point, 1) if one.point.sketch not in seen else None
        if made is None:
            continue
        seen.add(one.point.sketch)
        function = replay.scheduled_function(workload, TARGET, made.trace)
        kernel = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
        built = tvm.tirx.build(kernel, replay.tvm_target(TARGET), pipeline=pipeline(TARGET))
        code = device_modules(built)[0].inspect_source()
        stages = {"[0, 0, 2]": 3, "[0, 0, 3]": 4}
        depth = next((n for note, n in stages.items() if note in made.trace.replace(",", ", ")), 1)
        assert ("cp.async.commit_group" in code) == (depth > 1)
        if depth > 1:
            assert f"async_wait_group_{depth - 1}" in code, "that many are under way"
    assert len(seen) == len(new.sketches)


def test_single_precision_and_older_gpus_have_none() -> None:
    from tunefarm.search.spaces.generic import tensor_core_space

    assert tensor_core_space(product("float32"), TARGET) is None
    turing = completed(parse_target("cuda:arch=sm_75"))
    assert tensor_core_space(product("bfloat16"), turing) is None
    assert tensor_core_space(product("float16"), turing) is not None


def test_sums_and_operands_are_kept_apart() -> None:
    """TVM's own way stops at a kernel that adds in another type than it reads."""
    import tvm

    from tunefarm.measure import compile  # noqa: F401  (the compiler without a CUDA runtime)
    from tunefarm.measure.cuda.cubin import device_modules
    from tunefarm.measure.lowering import asks_for_shared, pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.generic import GenericSpace, tensor_core_space

    workload = convolution("float16")
    target = replay.tvm_target(TARGET)
    functions = {}
    for name, space in (
        ("tensor", tensor_core_space(workload, TARGET)),
        ("plain", GenericSpace(workload, TARGET)),
    ):
        function = replay.scheduled_function(workload, TARGET, first(space).trace)
        assert asks_for_shared(function) == (name == "tensor")
        functions[name] = function.with_attr("global_symbol", name)
    with pytest.raises(Exception, match="element type must match"):
        tvm.tirx.build(tvm.IRModule({"tensor": functions["tensor"]}), target)
    built = tvm.tirx.build(tvm.IRModule(functions), target, pipeline=pipeline(TARGET))
    (code,) = {one.inspect_source() for one in device_modules(built)}
    assert "plain_kernel" in code
    assert "tensor_kernel" in code


def test_a_draw_that_stops_tvm_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm.s_tir.schedule import ScheduleError

    from tunefarm.search import replay
    from tunefarm.search.spaces.generic import tensor_core_space

    workload = convolution("float16")
    wanted = tensor_core_space(workload, TARGET)
    assert wanted is not None
    seeds = []
    real = replay.make_context

    def counted(*args: Any) -> Any:
        seeds.append(args[-1])
        return real(*args)

    monkeypatch.setattr(replay, "make_context", counted)
    stopped = 0
    for first in range(1, 25):
        context = real(workload, TARGET, replay.TENSOR_CORES, first)
        try:
            context.generate_design_space()
        except ScheduleError:
            stopped += 1
            monkeypatch.setattr(
                replay, "make_context", lambda *a, n=first: counted(*a[:-1], a[-1] + n - 1)
            )
            again = tensor_core_space(workload, TARGET)
            assert again is not None
            assert again._shapes == wanted._shapes
            assert len(seeds) > 1
            break
    assert stopped, "TVM can apply every draw now: there is no need to draw again"
