"""Resizing as products with matrices, where the importer has not what is asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunefarm.frontend.onnx_passes import Array, Shape
from tunefarm.frontend.spelled.site import Site

_OPSET = 19
_MOST_TAPS = 2**24
"""Elements of a matrix that stands for a resize along one axis."""
_OF_TAPS = frozenset(
    {
        *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
        *("mode", "nearest_mode"),
    }
)
"""Settings of a resize that make its matrix."""


def resize(site: Site) -> bool:
    """What the importer has not is along each axis a product with a matrix, which ONNX's own
    evaluator makes of the identity's, or a choice. Where a picture's sides are to keep their ratio,
    or only some axes are named, it is what comes of that for all of them."""
    shape, plain = site.shape(0), _plain_sizes(site)
    where = site.attribute("coordinate_transformation_mode", b"half_pixel")
    if shape is None or plain is None or where == b"tf_crop_and_resize":
        return False
    if _is_by_matrix(site, shape, plain):
        value = site.input(0)
        for axis, (size, scale) in enumerate(plain):
            if (size, scale) != (shape[axis], 1.0):
                if size * shape[axis] > _MOST_TAPS:
                    return False
                value = _along(site, value, axis, len(shape), _taps(site, shape[axis], size, scale))
        site.give(0, value)
        return True
    policy = site.attribute("keep_aspect_ratio_policy", b"stretch")
    if policy == b"stretch" and not site.attribute("axes", []):
        return False
    given = {
        a.name: helper.get_attribute_value(a)
        for a in site.node.attribute
        if a.name not in ("keep_aspect_ratio_policy", "axes")
    }
    sizes = site.sizes(*(size for size, _ in plain))
    site.again("Resize", site.input(0), "", "", sizes, **given)
    return True


def _is_by_matrix(site: Site, shape: Shape, plain: list[tuple[int, float]]) -> bool:
    """With a filter, with cubes that leave out what lies outside, symmetric about the middle, or by
    a scale that is not the ratio of the sizes, which is the only one that the importer knows."""
    uneven = any(size != old * scale for (size, scale), old in zip(plain, shape, strict=True))
    return bool(
        site.attribute("antialias", 0)
        or site.attribute("exclude_outside", 0)
        or site.attribute("coordinate_transformation_mode", b"") == b"half_pixel_symmetric"
        or (site.input(2) and uneven)
    )


def _plain_sizes(site: Site) -> list[tuple[int, float]] | None:
    """Of each axis its new size, and its scale."""
    shape, scales, sizes = site.shape(0), site.value(2), site.value(3)
    if shape is None or (scales is None and sizes is None):
        return None
    axes = [axis % len(shape) for axis in site.attribute("axes", range(len(shape)))]
    found = [(size, 1.0) for size in shape]
    if scales is not None and scales.size:
        for axis, scale in zip(axes, scales.tolist(), strict=True):
            found[axis] = (math.floor(shape[axis] * scale), scale)
        return found
    if sizes is None:
        return None
    wanted = [int(size) for size in sizes]
    ratios = [size / shape[axis] for axis, size in zip(axes, wanted, strict=True)]
    policy = site.attribute("keep_aspect_ratio_policy", b"stretch")
    for axis, size, ratio in zip(axes, wanted, ratios, strict=True):
        if policy != b"stretch":
            ratio = min(ratios) if policy == b"not_larger" else max(ratios)
            size = math.floor(ratio * shape[axis] + 0.5)
        found[axis] = (size, ratio)
    return found


def upsample(site: Site) -> bool:
    """What became Resize: nearest below, or linear, from where the first element lies."""
    shape, scales = site.shape(0), site.value(1)
    if shape is None or scales is None:
        return False
    mode = site.attribute("mode", b"nearest").decode()
    given = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    value = site.input(0)
    for axis, scale in enumerate(scales.tolist()):
        if scale != 1:
            taps = matrix(shape[axis], None, scale, **given)
            value = _along(site, value, axis, len(shape), taps)
    site.give(0, value)
    return True


def _taps(site: Site, size: int, wanted: int, scale: float) -> Array:
    given = {
        a.name: helper.get_attribute_value(a) for a in site.node.attribute if a.name in _OF_TAPS
    }
    return matrix(size, wanted if site.input(3) else None, scale, **given)


def matrix(size: int, wanted: int | None, scale: float, **settings: Any) -> Array:
    """(size, wanted): what a resize of one axis to a size, or else by a scale, does, as a product
    from the right."""
    feeds = {"x": np.eye(size, dtype=np.float32)}
    if wanted is not None:
        inputs, last = ["x", "", "", "s"], np.array([size, wanted], np.int64)
    else:
        inputs, last = ["x", "", "s"], np.array([1, scale], np.float32)
    node = helper.make_node("Resize", inputs, ["y"], **settings)
    graph = helper.make_graph(
        [node],
        "matrix",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(last, "s")],
    )
    one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    return np.asarray(ReferenceEvaluator(one).run(None, feeds)[0])


def _along(site: Site, value: str, axis: int, rank: int, taps: Array) -> str:
    """The product along an axis of (..., size, ...); of ones and zeros, a choice."""
    if site.attribute("mode", b"nearest") == b"nearest":
        return site.emit("Gather", value, site.sizes(*taps.argmax(0).tolist()), axis=axis)
    dtype = site.dtype(0)
    from_right = site.constant(taps, dtype)
    if axis == rank - 1:
        return site.emit("MatMul", value, from_right)
    if axis == rank - 2:
        return site.emit("MatMul", site.constant(taps.T, dtype), value)
    order = [k for k in range(rank) if k != axis]
    turned = site.emit("Transpose", value, perm=[*order, axis])
    back = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return site.emit("Transpose", site.emit("MatMul", turned, from_right), perm=back)
