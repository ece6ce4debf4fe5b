"""Single operators, in others' terms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

from tests.spelled import IMAGE, INT64, KNOWN, MOST, check, model_of, operators, random, run
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


def test_new_names_are_nobody_elses():
    """As TensorFlow's, which end in numbers, too."""
    inputs = {"x": np.array([[0, 1], [2, 3]]), "i": np.arange(3)}
    hot = helper.make_node("OneHot", ["x", "depth", "values"], ["y"], axis=1)
    for number in range(20):
        constants = {"depth": np.array(4), "values": np.float32([0, 1])}
        constants[f"y/{number}"] = np.array(100)
        nodes = [hot, helper.make_node("Add", ["i", f"y/{number}"], ["z"])]
        check(model_of(nodes, inputs, ["y", "z"], constants), inputs)


def test_neither_infinity_is_looked_for():
    inputs = {"x": np.float32([1, np.inf, -np.inf])}
    node = helper.make_node("IsInf", ["x"], ["y"], detect_negative=0, detect_positive=0)
    (found,) = run(expand(model_of([node], inputs, ["y"]), KNOWN, MOST), inputs)
    assert not found.any()


@pytest.mark.parametrize("opset", [9, 10])
def test_an_old_mask_is_of_numbers(opset):
    inputs = {"x": random(3, 4)}
    node = helper.make_node("Dropout", ["x"], ["y", "kept"])
    spelled = expand(model_of([node], inputs, ["y", "kept"], opset=opset), KNOWN, MOST)
    kept = run(spelled, inputs)[1]
    assert kept.dtype == (bool if opset >= 10 else np.float32)
    assert kept.all()


def test_one_slope_for_each_channel():
    inputs = {"x": random(2, 3, 4, 4)}
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    slope = np.float32([0.1, 0.2, 0.3])
    spelled = expand(model_of([node], inputs, ["y"], {"slope": slope}, opset=6), KNOWN, MOST)
    spelled.opset_import[0].version = 9  # as the rule leaves it, for one who knows no 6
    (found,) = run(spelled, inputs)
    x = inputs["x"]
    np.testing.assert_allclose(found, np.where(x < 0, x * slope[:, None, None], x), rtol=1e-6)


def test_nothing_enormous_is_folded():
    inputs = {"x": random(3)}
    node = helper.make_node("Tile", ["a", "times"], ["t"])
    nodes = [node, helper.make_node("Gather", ["t", "x1"], ["g"]), one_dropout()]
    constants = {"a": np.float32([1]), "times": np.array([2**40]), "x1": np.array([0, 5])}
    model = model_of(nodes, inputs, ["g", "y", "kept"], constants)
    assert "Tile" in operators(expand(model, KNOWN, MOST))


def one_dropout():
    return helper.make_node("Dropout", ["x"], ["y", "kept"])
