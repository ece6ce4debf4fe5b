"""Resizes, and transforms: products with matrices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper

from tests.spelled import IMAGE, KNOWN, MOST, check, model_of, operators, random
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import expand


def resized(**settings):
    """By what is a constant: scales, or sizes."""
    scales, sizes = settings.pop("scales", None), settings.pop("sizes", None)
    names = ["x", "", "scales"] if scales else ["x", "", "", "sizes"]
    constants = {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes)}
    node = helper.make_node("Resize", names, ["y"], **settings)
    return node, {"x": IMAGE}, constants


@pytest.mark.parametrize(
    "settings",
    [
        {"sizes": [1, 2, 4, 3], "mode": "linear", "antialias": 1},
        {"sizes": [1, 2, 4, 5], "mode": "cubic", "antialias": 1},
        {"scales": [1, 1, 0.6, 1.3], "mode": "linear"},
        {"scales": [1, 1, 0.6, 1.3], "mode": "cubic"},
        {"scales": [1, 1, 0.6, 1.3], "mode": "nearest"},
        {"scales": [1, 1, 2, 2], "mode": "cubic", "exclude_outside": 1},
        {"sizes": [18, 20], "axes": [2, 3], "mode": "linear"},
        {"sizes": [12, 12], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        {
            "sizes": [12, 12],
            "axes": [2, 3],
            "mode": "linear",
            "keep_aspect_ratio_policy": "not_larger",
        },
        {"sizes": [12, 12], "axes": [3, 2], "keep_aspect_ratio_policy": "not_smaller"},
    ],
    ids=str,
)
def test_resizes(settings):
    node, inputs, constants = resized(**settings)
    check(model_of([node], inputs, ["y"], constants, opset=19), inputs, 2e-5)


def test_a_resize_that_the_importer_knows_stays():
    node, inputs, constants = resized(scales=[1, 1, 2, 2], mode="linear")
    model = model_of([node], inputs, ["y"], constants, opset=19)
    assert expand(model, KNOWN, MOST) is model


@pytest.mark.parametrize(("mode", "scales"), [("nearest", [1, 1, 2, 3]), ("linear", [1, 1, 2, 2])])
def test_what_resizes_were_before(mode, scales):
    node = helper.make_node("Upsample", ["x", "scales"], ["y"], mode=mode)
    constants = {"scales": np.array(scales, np.float32)}
    model = model_of([node], {"x": IMAGE}, ["y"], constants, opset=9)
    assert "Upsample" not in operators(check(model, {"x": IMAGE}))


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize(
    ("parts", "how"),  # of complex numbers there is no half
    [*itertools.product((1, 2), ({}, {"inverse": 1})), (1, {"onesided": 1})],
    ids=str,
)
def test_a_transform_is_a_product(parts, axis, length, how):
    inputs = {"x": random(2, 8, 6, parts)}
    constants = {"axis": np.array(axis)} | ({"n": np.array(length)} if length else {})
    names = ["x", "n" if length else "", "axis"]
    node = helper.make_node("DFT", names, ["y"], **how)
    check(model_of([node], inputs, ["y"], constants, opset=20), inputs, 2e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
def test_frames_of_a_signal_are_a_convolution(onesided, window):
    inputs = {"x": random(2, 100, 1)}
    constants = {"step": np.array(10), "length": np.array(16)}
    constants |= {"window": np.hanning(16).astype(np.float32)} if window else {}
    names = ["x", "step", "window" if window else "", "length"]
    node = helper.make_node("STFT", names, ["y"], onesided=onesided)
    spelled = check(model_of([node], inputs, ["y"], constants), inputs, 2e-5)
    assert "STFT" not in operators(spelled)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"sizes": [1, 6], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
            "how it is rounded",
        ),
        ({"scales": [1, 1, 0.7, 1], "mode": "linear"}, "how it is rounded"),
        ({"scales": [1, 1, 600, 1], "mode": "cubic", "exclude_outside": 1}, "nor small"),
        (
            {"scales": [1, 1, 0.6, 1], "coordinate_transformation_mode": "tf_half_pixel_for_nn"},
            "cannot be computed",
        ),
    ],
    ids=str,
)
def test_what_no_matrix_says_is_refused(settings, why):
    node, _, constants = resized(**settings)
    image = {"x": random(1, 2, 10 if "rounded" in why else 9 if "small" not in why else 200, 7)}
    opset = 11 if "computed" in why else 19
    with pytest.raises(UnsupportedModel, match=f"Resize.*{why}"):
        expand(model_of([node], image, ["y"], constants, opset=opset), KNOWN, MOST)


def test_a_product_of_whole_numbers_is_refused():
    image = {"x": np.arange(126, dtype=np.uint8).reshape(1, 2, 9, 7)}
    node, _, constants = resized(sizes=[1, 2, 4, 3], mode="linear", antialias=1)
    with pytest.raises(UnsupportedModel, match="uint8"):
        expand(model_of([node], image, ["y"], constants, opset=19), KNOWN, MOST)


def test_sides_that_keep_their_ratio():
    node, inputs, constants = resized(
        sizes=[18, 20], axes=[2, 3], keep_aspect_ratio_policy="not_larger", mode="linear"
    )
    check(model_of([node], inputs, ["y"], constants, opset=19), inputs, 2e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_a_resize_before_it_said_where(mode):
    constants = {"scales": np.float32([1, 1, 2, 2])}
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
    model = model_of([node], {"x": IMAGE}, ["y"], constants, opset=10)
    assert "Resize" not in operators(check(model, {"x": IMAGE}))
    node = helper.make_node("Upsample", ["x"], ["y"], mode=mode, scales=[1.0, 1.0, 2.0, 3.0])
    assert "Upsample" not in operators(
        check(model_of([node], {"x": IMAGE}, ["y"], opset=7), {"x": IMAGE})
    )
