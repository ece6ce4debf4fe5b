"""Activations before what quantises: left out where, and only where, nothing is changed by it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.quantised_models import copied, outputs_of
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.quantised.bounds import drop_bounds

ENDS = {"uint8": (0, 255), "int8": (-128, 127)}


def model(
    kind: str, scale: float, zero: int, ends: tuple[float | None, ...], opset: int = 13
) -> onnx.ModelProto:
    """x, bounded (by a Relu where no ends are given), and quantised."""
    constants = {"s": np.float32(scale), "z": np.array(zero, kind)}
    names = ["b"]
    attributes = {}
    for name, end in zip(("min", "max"), ends, strict=False):
        if opset < 11 and end is not None:
            attributes[name] = end
        elif opset >= 11:
            names.append("" if end is None else name)
            if end is not None:
                constants[name] = np.float32(end)
    bound = helper.make_node("Clip", ["x", *names[1:]], ["b"], **attributes)
    nodes = [
        bound if ends else helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bounded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", getattr(TensorProto, kind.upper()), ["n"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(made)
    return made


def left(made: onnx.ModelProto) -> Graph:
    graph = Graph(copied(made))
    drop_bounds(graph)
    return graph


@pytest.mark.slow
@given(
    kind=st.sampled_from(["uint8", "int8"]),
    scale=st.sampled_from([1 / 128, 6 / 255, 0.3]),
    place=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    ends=st.sampled_from(
        [(), (0.0, 6.0), (None, 6.0), (-1.0, 1.0), (0.0, None), (-np.inf, np.inf)]
    ),
)
def test_what_is_left_out_changes_nothing_and_what_is_left_does(kind, scale, place, ends) -> None:
    low, high = ENDS[kind]
    made = model(kind, scale, low + round(place * (high - low)), ends)
    graph = left(made)
    x = np.concatenate([np.linspace(-90, 90, 4001), np.linspace(-8, 8, 4001)]).astype(np.float32)
    (before,), (without,) = outputs_of(made, {"x": x}), outputs_of(_unbounded(made), {"x": x})
    gone = len(graph.nodes) == 1
    assert gone == np.array_equal(before, without)
    (after,) = outputs_of(graph.store(), {"x": x})
    np.testing.assert_array_equal(after, before)


def _unbounded(made: onnx.ModelProto) -> onnx.ModelProto:
    plain = copied(made)
    plain.graph.node[1].input[0] = "x"
    del plain.graph.node[0]
    return plain


@pytest.mark.parametrize("opset", [10, 13])
def test_a_network_for_small_devices_loses_its_bounds(opset: int) -> None:
    """Six is where its numbers end."""
    (node,) = left(model("uint8", 6 / 255, 0, (0.0, 6.0), opset)).nodes
    assert list(node.input)[:1] == ["x"]


def test_what_somebody_else_reads_is_left() -> None:
    for read in ("by another node", "as an output"):
        made = model("uint8", 6 / 255, 0, ())
        if read == "as an output":
            name, shape = "b", made.graph.output[0].type.tensor_type.shape
        else:
            made.graph.node.append(helper.make_node("Neg", ["b"], ["n"]))
            name, shape = "n", made.graph.output[0].type.tensor_type.shape
        output = made.graph.output.add()
        output.name = name
        output.type.tensor_type.elem_type = TensorProto.FLOAT
        output.type.tensor_type.shape.CopyFrom(shape)
        assert "Relu" in [node.op_type for node in left(made).nodes]


def test_of_two_both_are_left_out() -> None:
    made = model("uint8", 6 / 255, 0, (0.0, 6.0))
    made.graph.node[0].input[0] = "r"
    made.graph.node.insert(0, helper.make_node("Relu", ["x"], ["r"]))
    (node,) = left(made).nodes
    assert node.input[0] == "x"


@pytest.mark.parametrize("scale", [0.0, -0.1])
def test_what_falls_or_is_no_scale_is_left(scale: float) -> None:
    assert len(left(model("uint8", scale, 0, (0.0, 6.0))).nodes) == 2


def test_bounds_that_are_not_known_are_left() -> None:
    made = model("uint8", 6 / 255, 0, (0.0, 6.0))
    made.graph.node[0].input[2] = "most"
    made.graph.input.append(helper.make_tensor_value_info("most", TensorProto.FLOAT, []))
    assert len(left(made).nodes) == 2
