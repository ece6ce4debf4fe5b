"""Channel shuffles: told from other rearrangements, and moved without a change of the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import models
from tunefarm.frontend.onnx.channel_shuffle import (
    Move,
    shuffle_order,
    shuffled_groups,
    shuffles_after_depthwise,
)
from tunefarm.frontend.onnx.passes import Graph


def moves(shape: tuple[int, ...], groups: int) -> list[Move]:
    """A shuffle of the second axis, as exporters write it."""
    batch, channels, *image = shape
    order = [0, 2, 1, *range(3, len(shape) + 1)]
    apart = [batch, groups, channels // groups, *image]
    return [("reshape", apart), ("transpose", order), ("reshape", shape)]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_a_shuffle_is_told_by_its_groups(batch: int, groups: int, each: int, side: int) -> None:
    shape = (batch, groups * each, side, side + 1)
    wanted = groups if groups > 1 and each > 1 else None  # else nothing moves
    assert shuffled_groups(moves(shape, groups), shape, 1) == wanted


@given(st.integers(2, 6), st.integers(2, 6))
def test_its_order_is_what_the_rearrangement_does(groups: int, each: int) -> None:
    channels = groups * each
    shuffled = np.arange(channels).reshape(groups, each).T.ravel()
    np.testing.assert_array_equal(shuffle_order(channels, groups), shuffled)


@pytest.mark.parametrize(
    "other",
    [
        [],
        [("transpose", [0, 1, 3, 2])],
        [("transpose", None), ("reshape", (2, 6, 4, 4))],
        [("reshape", (2, 6, 16))],
        [("reshape", (2, 3, 2, 16)), ("transpose", [0, 3, 2, 1]), ("reshape", (2, 6, 4, 4))],
    ],
)
def test_what_moves_more_than_channels_is_no_shuffle(other: list[Move]) -> None:
    assert shuffled_groups(other, (2, 6, 4, 4), 1) is None


def test_a_huge_tensor_keeps_its_shuffle() -> None:
    shape = (2**20, 6, 4, 4)
    assert shuffled_groups(moves(shape, 2), shape, 1) is None


def test_a_shuffle_moves_behind_a_depthwise_convolution(tmp_path: Path) -> None:
    model = onnx.load(models.shuffled(tmp_path / "m.onnx"))
    feed = {"x": np.random.default_rng(0).normal(size=(1, 16, 9, 9)).astype(np.float32)}
    wanted = run(model, feed)
    graph = Graph(model)
    shuffles_after_depthwise(graph)
    moved = graph.store()
    onnx.checker.check_model(moved)
    operators = [node.op_type for node in moved.graph.node]
    assert operators[:6] == ["Conv", "Relu", "Conv", "Reshape", "Transpose", "Reshape"]
    np.testing.assert_allclose(run(moved, feed), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("why", ["read twice", "other order", "not depthwise", "an output"])
def test_others_stay_where_they_are(tmp_path: Path, why: str) -> None:
    model = onnx.load(models.shuffled(tmp_path / "m.onnx"))
    nodes = model.graph.node
    if why == "read twice":
        nodes.append(onnx.helper.make_node("Relu", ["s3"], ["z"]))
        model.graph.output.append(
            onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 40, 9, 9])
        )
    elif why == "other order":
        nodes[3].attribute[0].ints[:] = [0, 2, 1, 4, 3]
    elif why == "not depthwise":
        nodes[5].attribute[0].i = 20
        filters = np.ones((40, 2, 3, 3), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(filters, "w5"))
        nodes[5].input[1] = "w5"
    else:
        model.graph.output.append(
            onnx.helper.make_tensor_value_info("c2", onnx.TensorProto.FLOAT, [1, 40, 5, 5])
        )
    before = [node.SerializeToString() for node in nodes]
    graph = Graph(model)
    shuffles_after_depthwise(graph)
    assert [node.SerializeToString() for node in graph.nodes] == before


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
