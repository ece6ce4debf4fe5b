"""Quantised models: what they are spelled as computes what they compute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.quantised_models import Quantised, copied, network, outputs_of, spelled_as
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.quantised import passes as quantised


def first_output(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return outputs_of(model, {"x": x})[0]


def _loaded(path: Path) -> onnx.ModelProto:
    return onnx.load(path)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_the_spelled_network_computes_the_same(tmp_path: Path, kind: str, target: str) -> None:
    model = network(tmp_path / "m.onnx", kind)
    graph = spelled_as(_loaded(model), target)
    counts = Counter(node.op_type for node in graph.nodes)
    # Pool, concatenation and flattening are of 8 bits, each product of whole numbers.
    makers = {name: node for node in graph.nodes for name in node.output}
    for node in graph.nodes:
        if node.op_type in ("MaxPool", "Flatten", "Concat"):
            assert all(makers[name].op_type in ("QuantizeLinear", "MaxPool") for name in node.input)
        if node.op_type in ("Conv", "MatMul") and not any(
            a.name == "group" for a in node.attribute
        ):
            weights = graph.constants[node.input[1]]
            assert np.array_equal(weights, np.clip(np.rint(weights), -128, 127))
            data = makers[node.input[0]]
            assert data.op_type == "DequantizeLinear"
            assert graph.constants[data.input[1]] == 1.0
    assert counts["Gemm"] == 0
    wanted = "uint8" if target == "llvm" else "int8"
    zeros = {graph.constants[n.input[2]].dtype.name for n in graph.nodes if "Quantize" in n.op_type}
    assert zeros == {wanted}
    store = graph.store()
    for seed in range(4):
        x = np.random.default_rng(seed).uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32)
        got, want = first_output(store, x), first_output(_loaded(model), x)
        assert want.std() > 0.1
        # A step of one of 64 numbers, times a weight, is what a flipped half would make.
        assert np.abs(got - want).max() < 0.05 * want.std()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    zero=st.integers(0, 255),
    kind=st.sampled_from(["uint8", "int8"]),
    target=st.sampled_from(["llvm", "cuda"]),
    relu=st.booleans(),
    biased=st.booleans(),
    pads=st.sampled_from([[0] * 4, [1, 0, 2, 1]]),
    strides=st.sampled_from([[1, 1], [2, 1]]),
    channels=st.integers(1, 5),
    last=st.integers(0, 255),
    seed=st.integers(0, 99),
)
def test_a_convolution_of_any_zero_and_padding(
    zero, kind, target, relu, biased, pads, strides, channels, last, seed
) -> None:
    one = Quantised(kind, seed)
    x = one.rounded("x", 1 / 90, zero)
    bias = [one.bias(6)] if biased else []
    y = one.add("Conv", x, one.weights(6, channels, 3, 2), *bias, pads=pads, strides=strides)
    y = one.rounded(one.add("Relu", y) if relu else y, 1 / 40, last)
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, channels, 7, 6])], [("y", ["n", "c", "h", "w"])])
    kept = copied(model)
    spelled = spelled_as(model, target)
    (product,) = (n for n in spelled.nodes if n.op_type == "Conv")
    assert product.input[1] in spelled.constants
    x = np.random.default_rng(seed).uniform(-1.5, 1.5, (1, channels, 7, 6)).astype(np.float32)
    steps = (first_output(spelled.store(), x) - first_output(kept, x)) * 40
    # Halves are rounded up or down as the last bit of a sum has it: a step, and seldom.
    assert np.abs(steps).max() < 1.5
    assert (np.abs(steps) > 0.5).mean() <= 0.02


def test_products_in_one_node_are_spelled_too() -> None:
    """Of ONNX's older form, with a bias of whole numbers."""
    draw = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.02),
        "xz": np.uint8(7),
        "w": draw.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8),
        "ws": draw.uniform(0.001, 0.002, 8).astype(np.float32),
        "wz": np.zeros(8, np.int8),
        "ys": np.float32(0.03),
        "yz": np.uint8(100),
        "b": draw.integers(-9999, 9999, 8).astype(np.int32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node(
            "QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["p"], pads=[1] * 4
        ),
        helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    model = _model(nodes, constants, (1, 4, 9, 9), (1, 8, 9, 9))
    x = draw.uniform(-1, 5, (1, 4, 9, 9)).astype(np.float32)
    _spelled_apart(model, x, 0.03, "Conv")


def test_products_of_matrices_in_one_node_are_spelled_too() -> None:
    """A scale for each column; the weights' zero is none of zero."""
    draw = np.random.default_rng(1)
    constants = {
        "xs": np.float32(0.02),
        "xz": np.uint8(121),
        "w": draw.integers(0, 120, (12, 8)).astype(np.uint8),
        "ws": draw.uniform(0.001, 0.002, 8).astype(np.float32),
        "wz": np.full(8, 50, np.uint8),
        "ys": np.float32(0.01),
        "yz": np.uint8(131),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    model = _model(nodes, constants, (5, 12), (5, 8))
    _spelled_apart(model, draw.uniform(-2, 2, (5, 12)).astype(np.float32), 0.01, "MatMul")


def _spelled_apart(model: onnx.ModelProto, x: np.ndarray, step: float, product: str) -> None:
    """That a product in one node becomes one of whole numbers, and computes the same: but for
    halves, which are rounded up or down as the last bit of a sum has it."""
    kept = copied(model)
    spelled = spelled_as(model, "llvm")
    assert not {node.op_type for node in spelled.nodes} & set(quantised.WHOLE)
    (made,) = (node for node in spelled.nodes if node.op_type == product)
    weights = spelled.constants[made.input[1]]
    assert np.array_equal(weights, np.rint(weights))
    steps = (first_output(spelled.store(), x) - first_output(kept, x)) / step
    assert np.abs(steps).max() < 1.5
    assert (np.abs(steps) > 0.5).mean() <= 0.02


def test_a_bias_for_each_element_stays_with_its_product() -> None:
    draw = np.random.default_rng(2)
    constants = {
        "xs": np.float32(0.02),
        "xz": np.uint8(0),
        "w": draw.integers(-127, 128, (12, 8)).astype(np.int8),
        "ws": np.float32(0.01),
        "wz": np.int8(0),
        "b": draw.normal(size=(5, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["v"]),
        helper.make_node("Gemm", ["d", "v", "b"], ["y"]),
    ]
    model = _model(nodes, constants, (5, 12), (5, 8))
    kept = copied(model)
    spelled = spelled_as(model, "llvm")
    assert any(node.op_type == "Gemm" for node in spelled.nodes)
    x = draw.uniform(0, 4, (5, 12)).astype(np.float32)
    np.testing.assert_allclose(first_output(spelled.store(), x), first_output(kept, x), rtol=1e-5)


def _model(nodes, constants, given, made) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def test_what_is_not_known_before_the_run_stays(tmp_path: Path) -> None:
    """Scales that are inputs, one for each channel of an image, numbers of 16 bits."""
    float32 = TensorProto.FLOAT
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("QuantizeLinear", ["d", "many", "zeros"], ["p"], axis=1),
        helper.make_node("DequantizeLinear", ["p", "many", "zeros"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", float32, [2, 3]),
            helper.make_tensor_value_info("s", float32, []),
        ],
        [helper.make_tensor_value_info("y", float32, [2, 3])],
        [
            numpy_helper.from_array(np.uint8(3), "z"),
            numpy_helper.from_array(np.ones(3, np.float32), "many"),
            numpy_helper.from_array(np.zeros(3, np.int8), "zeros"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    spelled = spelled_as(model, "cuda")
    assert [node.op_type for node in spelled.nodes] == [node.op_type for node in nodes]
    assert [list(node.input) for node in spelled.nodes] == [list(node.input) for node in nodes]


def test_a_model_without_any_is_left_alone(tmp_path: Path) -> None:
    from tests import models

    model = _loaded(models.cnn(tmp_path / "m.onnx"))
    assert not quantised.is_quantised(model)
    graph = Graph(model)
    before = [node.SerializeToString() for node in graph.nodes]
    quantised.for_unsigned(graph)
    assert [node.SerializeToString() for node in graph.nodes] == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_the_zoo_has_quantised_networks(tmp_path: Path, kind: str) -> None:
    from tunefarm.frontend.zoo.networks import write_zoo_model

    path = write_zoo_model("shufflenet", tmp_path / "m.onnx", dtype=kind)
    model = _loaded(path)
    assert quantised.is_quantised(model)
    graph = Graph(model)
    zeros = [graph.constants[n.input[2]] for n in graph.nodes if n.op_type == "QuantizeLinear"]
    assert {zero.dtype.name for zero in zeros} == {kind}


@pytest.mark.long
@pytest.mark.tvm
def test_a_transformers_products_are_all_of_integers(tmp_path: Path) -> None:
    """Also those that an exporter wrote with reshapes around them."""
    from tests.bench import imported
    from tunefarm.devices.target import parse_target
    from tunefarm.frontend.zoo.networks import write_zoo_model

    model = write_zoo_model("encoder", tmp_path / "m.onnx", dtype="uint8")
    assert "Reshape" in {node.op_type for node in _loaded(model).graph.node}
    target = parse_target("llvm:mcpu=cascadelake:num-cores=2")
    program = imported(tmp_path, model, target)
    by_constants = [one for one in program.tasks if "matmul" in one.name and one.flops > 1e8]
    assert len(by_constants) >= 4
    for task in by_constants:
        assert "matmul_fours" in task.name, task.name
        assert {"uint8", "int8"} <= {spec.dtype for spec in task.args}


def test_networks_of_whole_numbers_are_quantised() -> None:
    """Their ranges are found with numbers that are places in any table."""
    from tunefarm.frontend.zoo.quantiser import quantised as by_the_tool

    generator = np.random.default_rng(0)
    table = numpy_helper.from_array(generator.normal(size=(2, 8)).astype(np.float32), "table")
    weights = numpy_helper.from_array(generator.normal(size=(8, 8)).astype(np.float32), "weights")
    words = helper.make_tensor_value_info("words", TensorProto.INT64, [1, 4])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, [1, 4, 8])
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "weights"], ["result"]),
    ]
    graph = helper.make_graph(nodes, "words", [words], [result], [table, weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert quantised.is_quantised(by_the_tool(model, "uint8"))
