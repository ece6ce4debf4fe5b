"""What a model computes, by ONNX Runtime: on whichever processor, what its operators say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from tests.quantised_models import Quantised
from tunefarm.frontend.dtypes import INT8
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.expected import (
    FATAL,
    WITHOUT_OVERFLOW,
    ExpectedRequest,
    exact_session,
    parity_inputs,
    run_expected,
)
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.onnx_runtime import reference


def large_products(path: Path) -> np.ndarray:
    """Of bytes, of which two and two are more than 16 bits hold; its weights."""
    weights = np.full((64, 8), 127, np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    versions = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=versions, ir_version=9), path)
    return weights


def sums_of(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = np.float32((high - low) / 255)
    bytes_ = np.clip(np.rint(x / scale) + np.rint(-low / scale), 0, 255).astype(np.int64)
    return bytes_ @ weights.astype(np.int64)


def test_products_of_bytes_do_not_overflow(tmp_path: Path) -> None:
    weights = large_products(tmp_path / "m.onnx")
    spec = TensorSpec("x", (4, 64), "float32")
    request = ExpectedRequest(
        tmp_path / "m.onnx", (spec,), 1, (3, 4), tmp_path / "expected.npz", INT8
    )
    run_expected(request)
    with np.load(request.file) as found:
        for seed in request.seeds:
            (x,) = parity_inputs((spec,), seed)
            wanted = sums_of(x, weights)
            assert wanted.max() > 64 * 2**15 / 2, "else nothing could overflow"
            np.testing.assert_allclose(found[f"{seed}/0"], wanted, rtol=0.02)
    subject = Subject(tmp_path / "m.onnx", (spec,), ("y",), 1, tmp_path)
    (x,) = parity_inputs((spec,), 3)
    (outputs, precision, _) = reference(subject, {"x": x})
    assert precision == INT8
    np.testing.assert_allclose(outputs[0], sums_of(x, weights), rtol=0.02)


def weights_of_many(path: Path) -> np.ndarray:
    """Weights that two nodes read, of numbers that need all 8 bits: what they are worth."""
    numbers = np.arange(-128, 128, 4).astype(np.int8)
    scale = np.float32(0.02)
    one = Quantised()
    shared = one.add(
        "DequantizeLinear",
        *(one.constant(part) for part in (numbers, scale, np.int8(0))),
    )
    once = one.add("Mul", one.rounded("x", 1 / 128, 128), shared)
    twice = one.add("Mul", one.rounded(once, 1 / 40, 128), shared)
    one.add("Identity", one.rounded(twice, 1 / 16, 128))
    one.nodes[-1].output[0] = "y"
    onnx.save(one.model([("x", [4, 64])], [("y", [4, 64])]), path)
    return numbers * scale


def test_weights_that_two_nodes_read_are_no_hindrance(tmp_path: Path) -> None:
    """ONNX Runtime, told to let no product overflow, names a copy for each and fails."""
    file = tmp_path / "m.onnx"
    weights = weights_of_many(file)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL
    options.add_session_config_entry(*WITHOUT_OVERFLOW)
    with pytest.raises(Fail):
        onnxruntime.InferenceSession(file, options)
    precision, session = exact_session(file, 1)
    assert precision == INT8
    x = np.random.default_rng(0).uniform(-1, 1, (4, 64)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, x * weights * weights, atol=0.2)
