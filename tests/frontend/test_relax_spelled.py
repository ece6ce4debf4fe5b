"""What quantises a tensor, and does the contrary, as arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.bench import imported
from tests.quantised_models import outputs_of
from tunefarm.devices.target import Target

pytestmark = pytest.mark.tvm


def model(kind: str, scale: float, zero: int, back: int, alone: bool) -> onnx.ModelProto:
    """Quantised, and back with a zero of its own; the numbers are an output, too, where what makes
    them floats is not alone to read them."""
    given = {"s": np.float32(scale), "z": np.array(zero, kind), "b": np.array(back, kind)}
    outputs = {"q": getattr(TensorProto, kind.upper()), "y": TensorProto.FLOAT}
    if alone:
        del outputs["q"]
    made = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "b"], ["y"]),
        ],
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 600])],
        [helper.make_tensor_value_info(name, type_, [2, 600]) for name, type_ in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def outputs(directory: Path, made: onnx.ModelProto, target: Target, x: np.ndarray) -> list:
    """By the program that is tuned, lowered as candidates are."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    path = directory / "m.onnx"
    path.write_bytes(made.SerializeToString())
    module = load_program_module(imported(directory, path, target).module)
    how = {"tir_pipeline": pipeline(target)}
    built = relax.build(module, replay.tvm_target(target), **how)
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return [one.numpy() for one in (got if len(made.graph.output) > 1 else [got])]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("above", "other"), [(0, 0), (0, 3), (90, 90), (90, 7), (128, 128), (255, 255)]
)
def test_numbers_are_exactly_onnxs(
    tmp_path: Path, target: Target, kind: str, above: int, other: int, alone: bool
) -> None:
    """Halves of steps among them, and what is beyond both ends: far beyond, what an integer of 32
    bits holds, and infinity. By a scale that can be multiplied by as exactly as divided by."""
    shift = 0 if kind == "uint8" else 128
    made = model(kind, 1 / 8, above - shift, other - shift, alone)
    x = np.concatenate([np.arange(-590, 590) / 16, [-1e12, -1e6, -0.0, 1e6, 1e12] * 4])
    x = x.astype(np.float32).reshape(2, 600)
    x[0, 0], x[0, 1] = np.inf, -np.inf
    got, want = outputs(tmp_path, made, target, x), outputs_of(made, {"x": x})
    assert len(np.unique(want[0])) == 256
    for one, expected in zip(got, want, strict=True):
        assert one.dtype == expected.dtype
        np.testing.assert_array_equal(one, expected)


def test_by_another_scale_a_half_may_fall_otherwise(tmp_path: Path, target: Target) -> None:
    """By a step, and seldom: a product by 10 is no quotient by 0.1."""
    x = np.random.default_rng(0).uniform(-9, 9, (2, 600)).astype(np.float32)
    made = model("uint8", 0.1, 100, 100, False)
    got, want = outputs(tmp_path, made, target, x), outputs_of(made, {"x": x})
    steps = np.abs(got[0].astype(int) - want[0].astype(int))
    assert steps.max() <= 1
    assert steps.mean() < 0.01


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_what_is_asked_of_bfloat16_is_asked_of_single_precision(name: str) -> None:
    """The compiler refuses to ask the narrow number."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.relax.spelled import Spelled

    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        narrow = builder.emit(relax.op.astype(x, "bfloat16"))
        builder.emit_func_output(builder.emit(getattr(relax.op, name)(narrow)))
    machine = relax.VirtualMachine(relax.build(Spelled()(builder.get()), "llvm"), tvm.cpu())
    numbers = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    got = machine["main"](tvm.runtime.tensor(numbers)).numpy()
    np.testing.assert_array_equal(got.astype(bool), getattr(np, name)(numbers))
