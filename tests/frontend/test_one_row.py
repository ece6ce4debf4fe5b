"""One-dimensional convolutions as those of images: the same result, reshapes at the ends alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.spelled import after, model_of, random, run
from tunefarm.frontend.onnx.one_row import rows_as_images

LONG, CHANNELS = 23, 6


def as_images(model: onnx.ModelProto, inputs: dict) -> tuple[onnx.ModelProto, Counter[str]]:
    """The model after the pass, once it was seen to compute the same, and its operators."""
    made = after(rows_as_images, model)
    for want, got in zip(run(model, inputs), run(made, inputs), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    return made, Counter(node.op_type for node in made.graph.node)


def weights(*shape, seed=0):
    """Of a convolution whose results are as large as what it reads."""
    return random(*shape, seed=seed) / np.float32(np.prod(shape[1:])) ** 0.5


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


def test_from_one_convolution_to_the_next_nothing_is_reshaped() -> None:
    """Over a bias, a norm, an activation in parts, pooling, and a sum with what was before."""
    nodes = [
        node("Conv", ["x", "w1", "b"], "c1", pads=[1, 1], dilations=[1], kernel_shape=[3]),
        node("BatchNormalization", ["c1", "s", "b", "m", "v"], "n1"),
        node("Div", ["n1", "two"], "d"),
        node("Erf", ["d"], "e"),
        node("Mul", ["e", "n1"], "g"),
        node("Add", ["g", "each"], "a"),
        node("MaxPool", ["a"], "p", kernel_shape=[2], strides=[2], pads=[0, 1]),
        node("Conv", ["p", "w2"], "c2", auto_pad="SAME_UPPER", group=2),
        node("Add", ["c2", "p"], "y"),
    ]
    constants = {
        "w1": random(8, CHANNELS, 3),
        "b": random(8),
        "s": random(8),
        "m": random(8),
        "v": np.abs(random(8)),
        "two": np.float32(2),
        "each": random(8, 1),
        "w2": weights(8, 4, 5),
    }
    inputs = {"x": random(2, CHANNELS, LONG)}
    _, count = as_images(model_of(nodes, inputs, ["y"], constants), inputs)
    assert count["Reshape"] == 2


def test_what_others_read_is_made_once() -> None:
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("Relu", ["c"], "r"),
        node("Transpose", ["r"], "t", perm=[0, 2, 1]),
        node("Softmax", ["r"], "s", axis=1),
        node("Concat", ["r", "s"], "whole", axis=-1),
        node("Concat", ["r", "c"], "both", axis=1),
    ]
    inputs = {"x": random(1, CHANNELS, LONG)}
    model = model_of(nodes, inputs, ["t", "whole", "both", "r"], {"w": weights(4, CHANNELS, 2)})
    _, count = as_images(model, inputs)
    # x; r for those who need it as it was; s as an image; and the two that are concatenated.
    assert count["Reshape"] == 5


def test_what_a_convolution_shares_with_others_leaves_those_as_they_are() -> None:
    """A factor of both; between a product and its bias nothing is reshaped."""
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("Mul", ["c", "half"], "y"),
        node("MatMul", ["x", "m"], "p"),
        node("Mul", ["p", "half"], "h"),
        node("Add", ["h", "bias"], "z"),
    ]
    constants = {"w": weights(4, CHANNELS, 3), "half": np.full((1, 1, 1), 0.5, np.float32)}
    constants |= {"m": random(LONG, 5), "bias": random(5)}
    inputs = {"x": random(1, CHANNELS, LONG)}
    made, count = as_images(model_of(nodes, inputs, ["y", "z"], constants), inputs)
    assert count["Reshape"] == 2
    assert [list(one.input) for one in made.graph.node if one.op_type == "Add"] == [["h", "bias"]]


def test_nothing_of_no_length_is_reshaped() -> None:
    """A stream's cache before its first piece: in a reshape nought would say another thing."""
    nodes = [
        node("Slice", ["x", "from", "to", "axis"], "none"),
        node("Conv", ["x", "w"], "c"),
        node("Concat", ["none", "c"], "y", axis=2),
    ]
    constants = {"from": np.array([0]), "to": np.array([0]), "axis": np.array([2])}
    inputs = {"x": random(1, CHANNELS, LONG)}
    constants["w"] = weights(CHANNELS, CHANNELS, 3)
    as_images(model_of(nodes, inputs, ["y"], constants), inputs)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        # Weights that are computed may be anything; those of images stay as they are.
        ([node("Conv", ["x", "w"], "y")], {}),
        ([node("Conv", ["picture", "of"], "y")], {"of": random(4, 3, 2, 2)}),
        ([node("Relu", ["x"], "y")], {}),
    ],
)
def test_others_stay(nodes, constants) -> None:
    inputs = {"x": random(1, CHANNELS, LONG), "w": random(4, CHANNELS, 3)}
    inputs["picture"] = random(1, 3, 5, 5)
    used = {name for one in nodes for name in one.input}
    inputs = {name: array for name, array in inputs.items() if name in used}
    made, count = as_images(model_of(nodes, inputs, ["y"], constants), inputs)
    assert not count["Reshape"]
    assert list(made.graph.node) == nodes


def test_a_graph_with_branches_stays() -> None:
    """They may read what would be an image."""
    branch = helper.make_graph(
        [node("Identity", ["c"], "out")],
        "branch",
        [],
        [helper.make_empty_tensor_value_info("out")],
    )
    nodes = [
        node("Conv", ["x", "w"], "c"),
        node("If", ["which"], "y", then_branch=branch, else_branch=branch),
    ]
    inputs = {"x": random(1, CHANNELS, LONG), "which": np.array(True)}
    _, count = as_images(model_of(nodes, inputs, ["y"], {"w": random(4, CHANNELS, 3)}), inputs)
    assert not count["Reshape"]


STEPS = st.sampled_from(
    ["conv", "strided", "depthwise", "relu", "scale", "rows", "sum", "pool", "mean", "softmax"]
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=7))
def test_whatever_follows_whatever(steps: list[str]) -> None:
    """Chains of convolutions and of what may or may not go on with an image."""
    nodes, constants, last, long = [], {}, "x", 61
    for number, step in enumerate(steps):
        made = f"t{number}"
        if step in ("conv", "strided", "depthwise"):
            group = CHANNELS if step == "depthwise" else 1
            stride = 2 if step == "strided" else 1
            constants[f"w{number}"] = weights(CHANNELS, CHANNELS // group, 3, seed=number)
            how = {"pads": [1, 1], "strides": [stride], "group": group}
            nodes.append(node("Conv", [last, f"w{number}"], made, **how))
            long = (long - 1) // stride + 1
        elif step == "relu":
            nodes.append(node("Relu", [last], made))
        elif step == "scale":
            constants[f"s{number}"] = random(1, CHANNELS, 1, seed=number)
            nodes.append(node("Mul", [last, f"s{number}"], made))
        elif step == "rows":
            constants[f"r{number}"] = random(long, seed=number)
            nodes.append(node("Sub", [f"r{number}", last], made))
        elif step == "sum":
            nodes += [node("Add", [last, last], f"d{number}"), node("Tanh", [f"d{number}"], made)]
        elif step == "pool":
            nodes.append(
                node("AveragePool", [last], made, kernel_shape=[3], pads=[1, 1], strides=[1])
            )
        elif step == "mean":
            nodes += [node("GlobalAveragePool", [last], f"g{number}")]
            nodes += [node("Mul", [last, f"g{number}"], made)]
        else:
            nodes.append(node("Softmax", [last], made, axis=-1))
        last = made
    inputs = {"x": random(1, CHANNELS, 61)}
    as_images(model_of(nodes, inputs, [last], constants), inputs)
