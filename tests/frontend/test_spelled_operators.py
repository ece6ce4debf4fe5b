"""Single operators, in others' terms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

from tests.spelled import (
    IMAGE,
    INT64,
    KNOWN,
    MOST,
    check,
    model_of,
    operators,
    random,
)
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import expand


def test_a_decoder_without_a_past():
    inputs = {"past": random(2, 0, 3), "new": random(2, 4, 3)}
    model = model_of([helper.make_node("Concat", ["past", "new"], ["y"], axis=1)], inputs, ["y"])
    assert "Concat" not in operators(check(model, inputs))


WEIGHTS = random(2, 3, 3, 3)


@pytest.mark.parametrize(
    ("padding", "wanted"),
    [
        *itertools.product(("NOTSET", "SAME_UPPER", "SAME_LOWER"), ([17, 14], [18, 16])),
        ("NOTSET", [20, 15]),  # with room: ONNX Runtime has that without SAME alone
    ],
)
def test_a_transposed_convolution_of_a_size(wanted, padding):
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=wanted, auto_pad=padding
    )
    inputs = {"x": IMAGE}
    check(model_of([node], inputs, ["y"], {"w": WEIGHTS}), inputs)


OTHERS = {
    "power of two types": ("Pow", {"x": np.abs(random(3, 4)), "e": np.array([2, 1, 0, 3])}, {}, {}),
    "power of whole numbers": ("Pow", {"x": np.arange(6), "e": np.array(3)}, {}, {}),
    "infinities above": (
        "IsInf", {"x": np.float32([1, np.inf, -np.inf])}, {}, {"detect_negative": 0},
    ),
    "infinities below": (
        "IsInf", {"x": np.float32([1, np.inf, -np.inf])}, {}, {"detect_positive": 0},
    ),
    "lengths of one": ("LpNormalization", {"x": random(3, 4)}, {}, {"p": 2, "axis": 0}),
    "sums of one": ("LpNormalization", {"x": random(3, 4)}, {}, {"p": 1}),
    "ones where": (
        "OneHot", {"x": np.array([[1, -1], [0, 3]])},
        {"depth": np.array(4), "values": np.float32([0.5, 2])}, {"axis": 1},
    ),
    "as another": ("CastLike", {"x": random(3), "like": np.array([1])}, {}, {}),
    "an identity's matrix": ("EyeLike", {"x": random(3, 4)}, {}, {"k": 1, "dtype": INT64}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_others(case):
    operator, inputs, constants, attributes = OTHERS[case]
    node = helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)
    check(model_of([node], inputs, ["y"], constants), inputs)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("places", [1, -1, [0], [1, 2], [-2, -1]], ids=str)
def test_a_part_is_cut_out(places, opset):
    inputs = {"x": random(2, 3, 4)}
    node = helper.make_node("Gather", ["x", "places"], ["y"], axis=1)
    model = model_of([node], inputs, ["y"], {"places": np.array(places)}, opset=opset)
    assert "Slice" in operators(check(model, inputs))


@pytest.mark.parametrize("places", [[2, 1], [0, 2], [[0, 1]], [1, 1]], ids=str)
def test_what_is_no_part_is_gathered(places):
    inputs = {"x": random(2, 3, 4)}
    node = helper.make_node("Gather", ["x", "places"], ["y"], axis=1)
    model = model_of([node], inputs, ["y"], {"places": np.array(places)})
    assert expand(model, KNOWN, MOST) is model


def test_the_mask_of_what_drops_nothing():
    inputs = {"x": random(3, 4)}
    model = model_of([helper.make_node("Dropout", ["x"], ["y", "kept"])], inputs, ["y", "kept"])
    assert "Dropout" not in operators(check(model, inputs))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truths(operator):
    inputs = {"x": random(3, 4) > 0}
    node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
    model = model_of([node], inputs, ["y"], {"axes": np.array([1])}, opset=20)
    check(model, inputs)


def test_training_is_refused():
    inputs = {"x": random(2, 3, 4)}
    names = [*"sbmv"]
    ones = {name: np.ones(3, np.float32) for name in names}
    node = helper.make_node("BatchNormalization", ["x", *names], ["y", "a", "b"], training_mode=1)
    with pytest.raises(UnsupportedModel, match="training mode"):
        expand(model_of([node], inputs, ["y"], ones), KNOWN, MOST)
    node = helper.make_node("Dropout", ["x", "", "training"], ["y"])
    with pytest.raises(UnsupportedModel, match="training mode"):
        expand(model_of([node], inputs, ["y"], {"training": np.array(True)}), KNOWN, MOST)


def test_largest_samples_of_regions_are_refused():
    inputs = {"x": IMAGE, "regions": np.float32([[0, 0, 4, 4]]), "of": np.array([0])}
    node = helper.make_node("RoiAlign", list(inputs), ["y"], mode="max")
    with pytest.raises(UnsupportedModel, match="RoiAlign"):
        expand(model_of([node], inputs, ["y"]), KNOWN, MOST)
