"""Chains on numbers of 8 bits, looked up: what they compute, and what is no such chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.bench import likeliest_kernel, needs
from tunefarm.devices.target import Target, parse_target

pytestmark = pytest.mark.tvm

ROWS, COLUMNS = 6, 351
"""Of which no share is a whole number of vectors, and four are no shares."""
IN_REGISTERS = parse_target("llvm:mcpu=icelake-server:num-cores=2")
IN_MEMORY = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")


def workload(
    kind: str = "uint8", made: str = "int8", value: str = "", extra: str = "", place: str = "v, w"
) -> Any:
    """A kernel of two stages, and a number that is the same everywhere."""
    import tvm
    from tvm.script import from_source

    value = value or "T.exp(held[v, w] * scale[0] - T.float32(1)) * T.float32(40)"
    sizes = f"(T.int64({ROWS}), T.int64({COLUMNS}))"
    function = from_source(
        f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer({sizes}, "{kind}"),
    scale: T.Buffer((T.int64(1),), "float32"),
    {extra}
    y: T.Buffer({sizes}, "{made}"),
) -> None:
    T.func_attr({{"tirx.noalias": True}})
    held = T.sblock_alloc_buffer({sizes}, "float32")
    for i, j in T.grid(T.int64({ROWS}), T.int64({COLUMNS})):
        with T.sblock("number"):
            v, w = T.axis.remap("SS", [i, j])
            held[v, w] = T.Cast("float32", x[{place}])
    for i, j in T.grid(T.int64({ROWS}), T.int64({COLUMNS})):
        with T.sblock("made"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = T.Cast("{made}", T.nearbyint(
                T.min(T.max({value}, T.float32(-100)), T.float32(100))
            ))
"""
    )
    return tvm.IRModule({"main": function})


def run(function: Any, target: Target, kind: str, made: str) -> np.ndarray:
    """What the kernel makes of every number."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    kernel, _, _ = replay.kernel_module(function)
    built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
    numbers = np.resize(np.arange(256, dtype=np.uint8).view(kind), (ROWS, COLUMNS))
    given = (numbers, np.array([1 / 90], np.float32), np.full((ROWS, COLUMNS), 77, made))
    arrays = [tvm.runtime.tensor(one) for one in given]
    built[replay.KERNEL](*arrays)
    result: np.ndarray = arrays[-1].numpy()
    return result


@pytest.mark.parametrize(("target", "feature"), [(IN_REGISTERS, "avx512vbmi"), (IN_MEMORY, "avx2")])
@pytest.mark.parametrize(("kind", "made"), [("uint8", "int8"), ("int8", "uint8")])
def test_every_number_is_looked_up(target: Target, feature: str, kind: str, made: str) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces.table import table_space

    needs(feature)
    module = workload(kind, made)
    expected = run(module["main"], target, kind, made)
    assert len(np.unique(expected)) > 40
    space = table_space(module, target)
    assert space is not None
    assert len(space.ways) == 2
    for number, one in enumerate(space.modelled()):
        proposal = space.realise(one.point, number)
        assert proposal is not None
        assert space.locate(proposal.trace) == one.point
        function = replay.scheduled_function(module, target, proposal.trace)
        np.testing.assert_array_equal(run(function, target, kind, made), expected)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "value",
    [
        "held[v, w] * scale[0] * T.float32(30) * T.exp(held[v, w] * scale[0])",
        "T.Cast('float32', T.max(T.Cast('int32', x[v, w]) + 5, 0))",
        "T.if_then_else(held[v, w] < T.float32(0), held[v, w] * T.float32(0.1), held[v, w])",
        "T.Select(x[v, w] < T.Cast('{kind}', 9), T.float32(-3), held[v, w] + held[v, w])",
    ],
)
def test_whatever_is_made_of_a_number(value: str, kind: str) -> None:
    """Read more than once, as an integer, or to decide by."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.table import table_space

    needs("avx2")
    module = workload(kind, "int8", value.replace("{kind}", kind))
    expected = run(module["main"], IN_MEMORY, kind, "int8")
    space = table_space(module, IN_MEMORY)
    assert space is not None
    proposal = space.realise(space.modelled()[0].point, 0)
    assert proposal is not None
    function = replay.scheduled_function(module, IN_MEMORY, proposal.trace)
    np.testing.assert_array_equal(run(function, IN_MEMORY, kind, "int8"), expected)


@pytest.mark.parametrize("change", ["too many", "strided", "outer"])
def test_a_trace_that_marks_another_loop_is_refused(change: str) -> None:
    """It would read and write elsewhere."""
    from tunefarm.search import replay
    from tunefarm.search.kernels.tables import ENTRIES, LOOK_UP, look_up, tabled

    module = workload()
    schedule = replay.new_schedule(tabled(module, ENTRIES), seed=1)
    loops = schedule.get_loops(schedule.get_sblock(LOOK_UP))
    if change == "outer":
        look_up(schedule, loops[0])
    else:
        factors = [4, None] if change == "too many" else [None, 2]
        outer, inner = schedule.split(schedule.fuse(*loops), factors)
        if change == "strided":
            schedule.reorder(inner, outer)
        look_up(schedule, outer if change == "strided" else inner)
    replay.mark_algorithm(schedule, f"table {ENTRIES}")
    replay.mark_complete(schedule, "table shares=1")
    with pytest.raises(replay.InvalidTrace, match="no loop over elements that lie together"):
        replay.scheduled_function(module, IN_MEMORY, replay.trace_json(schedule))


@pytest.mark.parametrize(
    ("source", "result", "place"),
    [
        ((196, 8), (14, 14, 8), "a * T.int64(14) + b, c"),
        ((14, 14, 8), (196, 8), "a % T.int64(196) // T.int64(14), a % T.int64(14), b"),
        ((14, 14, 8), (14, 14, 8), "a, b, c"),
    ],
)
def test_shares_end_within_rows_of_images(
    source: tuple[int, ...], result: tuple[int, ...], place: str
) -> None:
    """And what one reads is written otherwise: rows of an image as rows of a matrix."""
    import tvm
    from tvm.script import from_source

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.table import table_space

    needs("avx2")
    given, made = (", ".join(f"T.int64({one})" for one in sizes) for sizes in (source, result))
    axes = "a, b, c"[: 3 * len(result) - 2]
    function = from_source(
        f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer(({given}), "uint8"), y: T.Buffer(({made}), "uint8")) -> None:
    T.func_attr({{"tirx.noalias": True}})
    for {axes.replace(", ", "_, ")}_ in T.grid({made}):
        with T.sblock("made"):
            {axes} = T.axis.remap("{"S" * len(result)}", [{axes.replace(", ", "_, ")}_])
            y[{axes}] = T.max(x[{place}], T.uint8(9))
"""
    )
    module = tvm.IRModule({"main": function})
    space = table_space(module, IN_MEMORY)
    assert space is not None
    shares = {way.shares for way in space.ways}
    assert max(shares) == 8, "a share ends within a row"
    numbers = np.random.default_rng(0).integers(0, 256, source, dtype=np.uint8)
    for one in space.modelled():
        proposal = space.realise(one.point, 0)
        assert proposal is not None
        text = replay.scheduled_function(module, IN_MEMORY, proposal.trace)
        kernel, _, _ = replay.kernel_module(text)
        built = tvm.tirx.build(kernel, replay.tvm_target(IN_MEMORY), pipeline=pipeline(IN_MEMORY))
        arrays = [tvm.runtime.tensor(a) for a in (numbers, np.zeros(result, np.uint8))]
        built[replay.KERNEL](*arrays)
        np.testing.assert_array_equal(arrays[1].numpy(), np.maximum(numbers, 9).reshape(result))


@pytest.mark.parametrize(("target", "there"), [(IN_REGISTERS, True), (IN_MEMORY, False)])
def test_the_table_is_in_registers_where_a_processor_can(target: Target, there: bool) -> None:
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.spaces.table import table_space

    module = workload()
    kernel = likeliest_kernel(module, table_space(module, target), target)
    built = tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=pipeline(target))
    text = built.inspect_source("asm")
    assert any(one in text for one in ("vpermi2b", "vpermt2b")) == there


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "float32"},
        {"made": "float32"},
        {"made": "int16"},
        {"place": f"v, T.int64({COLUMNS - 1}) - w"},
        {"value": "held[v, w] * T.Cast('float32', w)"},
        {
            "extra": f'z: T.Buffer((T.int64({ROWS}), T.int64({COLUMNS})), "uint8"),',
            "value": "held[v, w] * T.Cast('float32', z[v, w])",
        },
        {
            "extra": f'z: T.Buffer((T.int64({COLUMNS}),), "float32"),',
            "value": "held[v, w] * z[w]",
        },
    ],
)
def test_what_depends_on_more_than_one_number_of_8_bits_has_no_table(other: dict[str, str]) -> None:
    from tunefarm.search.spaces.table import table_space

    assert table_space(workload(**other), IN_REGISTERS) is None


def test_what_is_only_copied_has_no_table() -> None:
    import tvm
    from tvm.script import from_source

    from tunefarm.search.spaces.table import table_space

    sizes = f"(T.int64({ROWS}), T.int64({COLUMNS}))"
    function = from_source(
        f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer({sizes}, "int8"), y: T.Buffer({sizes}, "int8")) -> None:
    T.func_attr({{"tirx.noalias": True}})
    for i, j in T.grid(T.int64({ROWS}), T.int64({COLUMNS})):
        with T.sblock("copied"):
            v, w = T.axis.remap("SS", [i, j])
            y[v, w] = x[v, w]
"""
    )
    assert table_space(tvm.IRModule({"main": function}), IN_MEMORY) is None


def test_no_other_table_is_known() -> None:
    from tunefarm.search import replay

    with pytest.raises(ValueError, match="table of 128"):
        replay.rewritten(workload(), "table 128")
