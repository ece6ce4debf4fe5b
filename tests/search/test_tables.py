"""Chains on numbers of 8 bits, looked up: what they compute, and what is no such chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunefarm.devices.cpu import cpu_features
from tunefarm.devices.target import Target, parse_target

pytestmark = pytest.mark.tvm

ROWS, COLUMNS = 6, 350
"""Of which no share is a whole number of vectors."""
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

    if feature not in cpu_features():
        pytest.skip(f"kernels with {feature} are built here, but run where a processor has it")
    module = workload(kind, made)
    expected = run(module["main"], target, kind, made)
    assert len(np.unique(expected)) > 40
    space = table_space(module, target)
    assert space is not None
    assert len(space.ways) == 3
    for number, one in enumerate(space.modelled()):
        proposal = space.realise(one.point, number)
        assert proposal is not None
        assert space.locate(proposal.trace) == one.point
        function = replay.scheduled_function(module, target, proposal.trace)
        np.testing.assert_array_equal(run(function, target, kind, made), expected)


@pytest.mark.parametrize(("target", "there"), [(IN_REGISTERS, True), (IN_MEMORY, False)])
def test_the_table_is_in_registers_where_a_processor_can(target: Target, there: bool) -> None:
    import tvm

    from tests.bench import likeliest_kernel
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


def test_no_other_table_is_known() -> None:
    from tunefarm.search import replay

    with pytest.raises(ValueError, match="table of 128"):
        replay.rewritten(workload(), "table 128")
