"""What a kernel for a processor holds in registers is in registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.bench import imported, likeliest_kernel
from tunefarm.devices.target import Target, parse_target

pytestmark = pytest.mark.tvm
TARGET = parse_target("llvm:mcpu=skylake-avx512:mtriple=x86_64-linux-gnu:num-cores=2")
ASKED = "TVMBackendAllocWorkspace"


def code(module: Any, how: str) -> str:
    import tvm

    from tunefarm.search import replay

    built = tvm.tirx.build(module, target=replay.tvm_target(TARGET), pipeline=how)
    return str(built.inspect_source("ll"))


def tile(directory: Path, target: Target) -> Any:
    """A product's kernel by the tile that the hardware model likes best."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    model = models.single_matmul(directory / "m.onnx", 96)
    program = imported(directory, model, target)
    (task,) = program.tasks
    workload = replay.load_workload(program.workload(task.id))
    return likeliest_kernel(workload, register_tile_space(workload, target), target)


def test_sums_of_a_tile_are_in_registers(tmp_path: Path) -> None:
    """By TVM's own lowering they are in memory that the runtime is asked for."""
    from tunefarm.measure.lowering import pipeline

    kernel = tile(tmp_path, TARGET)
    plain, ours = code(kernel, "default"), code(kernel, pipeline(TARGET))
    assert ASKED in plain
    assert ASKED not in ours
    assert not [line for line in ours.splitlines() if "alloca" in line and "float" in line]
    assert "phi <16 x float>" in ours, "they go from step to step"


def test_the_same_is_computed(target: Target, tmp_path: Path) -> None:
    import tvm

    from tunefarm.frontend.relax.tir import argument_specs
    from tunefarm.measure.compile import link
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    kernel = tile(tmp_path, target)
    rng = np.random.default_rng(0)
    *given, result = argument_specs(kernel[replay.KERNEL])
    inputs = [rng.standard_normal(one.shape).astype("f4") for one in given]
    made = []
    for how in ("default", pipeline(target)):
        link(
            tvm.tirx.build(kernel, replay.tvm_target(target), pipeline=how), tmp_path / f"{how}.so"
        )
        arguments = [tvm.runtime.tensor(one) for one in (*inputs, np.zeros(result.shape, "f4"))]
        tvm.runtime.load_module(str(tmp_path / f"{how}.so"))[replay.KERNEL](*arguments)
        made.append(arguments[-1].numpy())
    assert np.abs(made[0]).min() > 0
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize(
    ("elements", "scope", "kept"),
    [(16, "local", True), (1024, "local", True), (1025, "local", False), (1024, "global", False)],
)
def test_what_is_large_or_somebody_elses_stays_where_it_was(
    elements: int, scope: str, kept: bool
) -> None:
    from tvm.script import from_source

    from tunefarm.measure.lowering import pipeline

    module = from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer(({elements},), "float32"), b: T.Buffer(({elements},), "float32")) -> None:
    T.func_attr({{"global_symbol": "main"}})
    held = T.sblock_alloc_buffer(({elements},), scope="{scope}")
    for i in T.serial({elements}):
        with T.sblock("in"):
            v = T.axis.spatial({elements}, i)
            held[v] = a[v] * T.float32(2)
    for i in T.serial({elements}):
        with T.sblock("out"):
            v = T.axis.spatial({elements}, i)
            b[v] = held[{elements - 1} - v]
"""
    )
    assert (ASKED not in code(module, pipeline(TARGET))) == kept


def narrowing(value: str, dtype: str = "uint8", of: str = "float32") -> Any:
    """A kernel of one stage that makes `value` of each element v of a, in vectors."""
    from tvm.script import from_source

    return from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer((64,), "{of}"), b: T.Buffer((64,), "{dtype}")) -> None:
    T.func_attr({{"global_symbol": "main"}})
    for i in T.vectorized(64):
        with T.sblock("narrow"):
            v = T.axis.spatial(64, i)
            b[v] = {value}
"""
    )


AT_ONCE, ROUNDING = "@llvm.lrint.v", "@llvm.nearbyint.v"


def test_a_number_is_rounded_and_made_an_integer_at_once() -> None:
    """In vectors; by TVM's own lowering it is rounded as a number first."""
    from tunefarm.measure.lowering import pipeline

    module = narrowing('T.Cast("uint8", T.nearbyint(T.max(a[v], T.float32(0))))')
    plain, ours = code(module, "default"), code(module, pipeline(TARGET))
    assert ROUNDING in plain
    assert AT_ONCE not in plain
    assert AT_ONCE in ours
    assert ROUNDING not in ours


@pytest.mark.parametrize(
    ("value", "dtype", "of"),
    [
        ('T.Cast("int64", T.nearbyint(a[v]))', "int64", "float32"),
        ('T.Cast("uint8", T.nearbyint(a[v]))', "uint8", "float64"),
        ('T.Cast("uint8", T.floor(a[v]))', "uint8", "float32"),
        ("T.nearbyint(a[v])", "float32", "float32"),
    ],
)
def test_what_is_rounded_otherwise_is_as_it_was(value: str, dtype: str, of: str) -> None:
    from tunefarm.measure.lowering import pipeline

    assert "@llvm.lrint" not in code(narrowing(value, dtype, of), pipeline(TARGET))


def test_other_processors_round_in_vectors_too() -> None:
    """And call no library for it."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    cross = parse_target("llvm:mcpu=cortex-a76:mtriple=aarch64-linux-gnu:num-cores=2")
    module = narrowing('T.Cast("uint8", T.nearbyint(T.max(a[v], T.float32(0))))')
    built = tvm.tirx.build(module, target=replay.tvm_target(cross), pipeline=pipeline(cross))
    text = str(built.inspect_source("asm"))
    assert "lrintf" not in text
    assert ".4s" in text


@pytest.mark.parametrize("rounding", ["nearbyint", "round"])
@pytest.mark.parametrize("kind", ["float32", "int32", "int8"])
def test_half_a_step_comes_to_the_even_number(rounding: str, kind: str) -> None:
    """Whatever the rounding is called, and whether its result is made an integer or not."""
    import tvm

    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    host = parse_target("llvm:mcpu=x86-64:num-cores=2")
    value = f"T.{rounding}(a[v])"
    module = narrowing(value if kind == "float32" else f'T.Cast("{kind}", {value})', kind)
    built = tvm.tirx.build(module, target=replay.tvm_target(host), pipeline=pipeline(host))
    halves = np.arange(64, dtype=np.float32) - 31.5
    numbers = tvm.runtime.tensor(halves)
    result = tvm.runtime.tensor(np.zeros(64, kind))
    built["main"](numbers, result)
    np.testing.assert_array_equal(result.numpy(), np.rint(halves).astype(kind))


def test_a_rounding_inside_is_in_vectors_as_wide_as_others() -> None:
    """Of single numbers LLVM makes vectors of half that width for this processor."""
    from tunefarm.measure.lowering import pipeline

    module = narrowing("T.nearbyint(a[v]) * T.float32(2)", "float32")
    assert "@llvm.nearbyint.v64f32" in code(module, pipeline(TARGET))
    assert "@llvm.nearbyint.v64f32" not in code(module, "default")
