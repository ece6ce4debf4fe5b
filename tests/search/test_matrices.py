"""Products of 8 bits in matrix registers: what they compute, where they are, and where not."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import fitting, imported, likeliest_kernel, needs
from tests.float_network import network
from tests.quantised_models import Quantised
from tunefarm.devices.target import Target, parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

MATRICES = parse_target("llvm:mcpu=sapphirerapids:num-cores=2")
ROUNDING = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
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


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """One of float32 whose factors may be rounded."""
    directory = tmp_path_factory.mktemp("rounded")
    return imported(directory, network(directory / "m.onnx"), ROUNDING)


def _spaces() -> dict[str, Callable[[Any, Any], Any]]:
    from tunefarm.search.spaces.matrix_tile import matrix_tile_space, overlapped_matrix_tile_space

    return {"matrix": matrix_tile_space, "overlapped": overlapped_matrix_tile_space}


@pytest.mark.parametrize(
    ("of", "target", "feature", "family", "kernels"),
    [
        ("program", MATRICES, "amx_int8", "matrix", 3),
        ("program", MATRICES, "amx_int8", "overlapped", 1),
        ("rounded", ROUNDING, "amx_bf16", "matrix", 6),
        ("rounded", ROUNDING, "amx_bf16", "overlapped", 1),
    ],
)
def test_points_compute_what_the_untuned_kernel_computes(
    of: str,
    target: Target,
    feature: str,
    family: str,
    kernels: int,
    workers,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    needs(feature)
    program = request.getfixturevalue(of)
    found = list(fitting(program, _spaces()[family], target, workers, tmp_path))
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

    tasks = [task for task in program.tasks if "fours" in task.name or "halves" in task.name]
    return [replay.load_workload(program.workload(task.id)) for task in tasks]


@pytest.mark.parametrize("family", ["matrix", "overlapped"])
@pytest.mark.parametrize(
    ("of", "target", "instruction"),
    [("program", MATRICES, "tdpbusd"), ("rounded", ROUNDING, "tdpbf16ps")],
)
def test_every_point_is_of_registers_that_are_there(
    of: str, target: Target, instruction: str, family: str, request: pytest.FixtureRequest
) -> None:
    """None is refused; each register has one size, and all that are named fit."""
    from tunefarm.search import replay

    for workload in _kernels(request.getfixturevalue(of)):
        space = _spaces()[family](workload, target)
        for number, one in enumerate(space.modelled() if space is not None else ()):
            proposal = space.realise(one.point, number)
            assert proposal is not None
            text = _script(replay.scheduled_function(workload, target, proposal.trace))
            way = space.ways[number]
            multiplied = re.findall(MULTIPLIED.format(instruction), text)
            assert len(multiplied) == way.rows * way.planes * way.columns
            sums, numbers, weights = (set(map(int, one)) for one in zip(*multiplied, strict=True))
            assert len(sums) == len(multiplied), "each has a register of its own"
            assert not sums & (numbers | weights)
            assert not numbers & weights
            high, wide = _configuration(text)
            assert {(high[one], wide[one]) for one in sums} == {(way.high, 64)}
            (terms,) = {high[one] for one in weights}
            assert {(high[one], wide[one]) for one in numbers} == {(way.high, 4 * terms)}
            assert {wide[one] for one in weights} == {64}
            assert 0 < way.high <= 16
            assert 0 < terms <= 16


MULTIPLIED = r'"llvm.x86.{}", T.int8\((\d)\), T.int8\((\d)\), T.int8\((\d)\)'


def _script(function: Any) -> str:
    return str(function.script())


def _configuration(text: str) -> tuple[bytes, list[int]]:
    """What LDTILECFG is given: rows and bytes of a row, by register."""
    stored = re.findall(r"matrix_sizes\[T.int64\((\d+)\)\] = (\d+)", text)
    words = np.zeros(16, "<u4")
    for place, word in stored:
        words[int(place)] = int(word)
    told = words.tobytes()
    assert told[:16] == bytes([1, *[0] * 15])
    assert told[32:48] == bytes(16)
    assert told[56:] == bytes(8)
    return told[48:56], np.frombuffer(told[16:32], "<u2").tolist()


def test_columns_that_are_no_whole_registers_have_no_tiles(program: Program) -> None:
    columns = {
        workload["main"].params[-1].ty.shape[-1].value: _spaces()["matrix"](workload, MATRICES)
        for workload in _kernels(program)
    }
    assert {size for size, space in columns.items() if space is None} == {24}


def product(
    rows: str = "T.int64(32)",
    depth: int = 16,
    weight: str = "w[j, k, f]",
    sizes: str = "(T.int64(32), T.int64({depth}), T.int64(4))",
) -> Any:
    """A product of 32 rows, with 32 columns, written by hand."""
    import tvm
    from tvm.script import from_source

    held = sizes.format(depth=depth)
    text = f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((T.int64(32), T.int64({4 * depth})), "uint8"),
    w: T.Buffer({held}, "int8"),
    y: T.Buffer((T.int64(32), T.int64(32)), "int32"),
) -> None:
    T.func_attr({{"tirx.noalias": True, "layout_free_buffers": [1]}})
    for i0, j0, k0, f0 in T.grid({rows}, T.int64(32), T.int64({depth}), T.int64(4)):
        with T.sblock("product"):
            i, j, k, f = T.axis.remap("SSRR", [i0, j0, k0, f0])
            with T.init():
                y[i, j] = 0
            y[i, j] = y[i, j] + T.Cast("int32", x[i, k * T.int64(4) + f]) * T.Cast(
                "int32", {weight}
            )
"""
    return tvm.IRModule({"main": from_source(text)})


def test_four_terms_are_enough() -> None:
    from tunefarm.search import replay

    workload = product(depth=1)
    space = _spaces()["matrix"](workload, MATRICES)
    proposal = space.realise(space.modelled()[0].point, 0)
    function = replay.scheduled_function(workload, MATRICES, proposal.trace)
    assert re.findall(MULTIPLIED.format("tdpbusd"), _script(function))


def test_weights_that_are_others_for_each_row_have_no_tiles() -> None:
    workload = product(
        weight="w[i, j, k, f]", sizes="(T.int64(32), T.int64(32), T.int64({depth}), T.int64(4))"
    )
    assert _spaces()["matrix"](workload, MATRICES) is None


def test_weights_that_are_the_same_for_several_terms_have_no_tiles() -> None:
    workload = product(weight="w[j, f]", sizes="(T.int64(32), T.int64(4))")
    assert _spaces()["matrix"](workload, MATRICES) is None


@pytest.mark.parametrize(
    ("of", "target", "instruction"),
    [("program", MATRICES, "tdpbusd"), ("rounded", ROUNDING, "tdpbf16ps")],
)
def test_the_instructions_are_there(
    of: str, target: Target, instruction: str, request: pytest.FixtureRequest
) -> None:
    """And the right to them is asked for before the loop that threads share."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    for workload in _kernels(request.getfixturevalue(of)):
        space = _spaces()["matrix"](workload, target)
        if space is None:
            continue
        kernel = likeliest_kernel(workload, space, target)
        text = _script(kernel[replay.KERNEL])
        asked, told = text.index("tunefarm_allow_matrices"), text.index("ldtilecfg")
        assert asked < told < text.index("tilezero")
        assert text[asked:told].count("T.parallel") == 1
        assert text.rindex("tilestored") < text.index("tilerelease")
        built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
        assembled = built.inspect_source("asm")
        for one in ("ldtilecfg", "tileloadd", instruction, "tilestored", "tilerelease", "syscall"):
            assert one in assembled


def test_other_processors_have_none(program: Program) -> None:
    for workload in _kernels(program):
        for space in _spaces().values():
            assert space(workload, WITHOUT) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((0, "32"), (0, "0"), (0, "1"), (0, "x"), (1, "7"), (1, "2"), (2, "0"), (2, "9")),
        *((3, "9"), (3, ""), (3, "1"), (3, "3"), (3, "2,2"), (4, "32"), (4, "5"), (4, "0")),
    ],
)
def test_a_trace_that_says_something_else_is_refused(field: int, value: str) -> None:
    """It may come from anywhere."""
    from tunefarm.search import replay

    workload = product()
    space = _spaces()["matrix"](workload, MATRICES)
    (point,) = (
        one.point
        for one, way in zip(space.modelled(), space.ways, strict=True)
        if (way.high, way.rows, way.columns, way.columns_first, way.flat) == (16, 1, 2, 0, 0)
    )
    proposal = space.realise(point, 0)
    assert proposal is not None
    replay.scheduled_function(workload, MATRICES, proposal.trace)
    (words,) = re.findall(r'"(16 0 1 2 16)\\*"', proposal.trace)
    said = words.split(" ")
    said[field] = value
    other = proposal.trace.replace(words, " ".join(said))
    with pytest.raises(replay.InvalidTrace):
        replay.scheduled_function(workload, MATRICES, other)


def test_a_trace_of_another_target_or_without_tasks_is_refused() -> None:
    """What would end the compiler's process, or the kernel's."""
    from tunefarm.search import replay

    workload = product()
    space = _spaces()["matrix"](workload, MATRICES)
    proposal = space.realise(space.modelled()[0].point, 0)
    assert proposal is not None
    with pytest.raises(replay.InvalidTrace, match="no matrix registers"):
        replay.scheduled_function(workload, WITHOUT, proposal.trace)
    steps, rest = json.loads(proposal.trace)
    alone = [step for step in steps if step[0] != "Parallel"]
    with pytest.raises(replay.InvalidTrace, match="outside of a loop of tasks"):
        replay.scheduled_function(workload, MATRICES, json.dumps([alone, rest]))


def test_the_loop_that_threads_share_stays_where_others_look_for_it() -> None:
    """As what puts zeros around a result does (`search.kernels.halo`)."""
    import tvm

    from tunefarm.search import replay

    workload = product()
    space = _spaces()["matrix"](workload, MATRICES)
    proposal = space.realise(space.modelled()[0].point, 0)
    assert proposal is not None
    *_, last = replay.scheduled_function(workload, MATRICES, proposal.trace).body.block.body.seq
    assert isinstance(last, tvm.tirx.For)
    assert last.kind == tvm.tirx.ForKind.PARALLEL
