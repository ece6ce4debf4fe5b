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


def model(kind: str, scale: float, zero: int) -> onnx.ModelProto:
    """Quantised, as one output; and back."""
    given = [np.float32(scale), np.array(zero, kind)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    made = helper.make_graph(
        nodes,
        "steps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 600])],
        [
            helper.make_tensor_value_info("q", getattr(TensorProto, kind.upper()), [2, 600]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 600]),
        ],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in zip("sz", given, strict=True)
        ],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("above", [0, 1, 128, 255])
def test_numbers_are_exactly_onnxs(tmp_path: Path, target: Target, kind: str, above: int) -> None:
    """Halves of steps among them, and what is beyond both ends: far beyond, what an integer of 32
    bits holds, and infinity."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    made = model(kind, 1 / 8, above - (0 if kind == "uint8" else 128))
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    program = imported(tmp_path, path, target)
    x = np.concatenate([np.arange(-590, 590) / 16, [-1e12, -1e6, -0.0, 1e6, 1e12] * 4])
    x = x.astype(np.float32).reshape(2, 600)
    x[0, 0], x[0, 1] = np.inf, -np.inf
    machine = relax.VirtualMachine(
        relax.build(
            load_program_module(program.module),
            replay.tvm_target(target),
            tir_pipeline=pipeline(target),
        ),
        tvm.cpu(),
    )
    got = [one.numpy() for one in machine["main"](tvm.runtime.tensor(x))]
    want = outputs_of(made, {"x": x})
    assert len(np.unique(want[0])) == 256
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
