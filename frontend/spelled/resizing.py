"""Resizing as products with matrices, where the importer has not what is asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunefarm.frontend.dtypes import is_float
from tunefarm.frontend.onnx.passes import Array
from tunefarm.frontend.spelled.site import Site

_OPSET = 19
NEAREST_MODES = 11
"""The opset since which a resize says where its elements lie."""
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
    if site.opset < NEAREST_MODES:
        return _as_it_was(site, site.value(1), "ceil")
    shape, plain = site.shape(0), _plain_sizes(site)
    where = site.attribute("coordinate_transformation_mode", b"half_pixel")
    if shape is None or plain is None or where == b"tf_crop_and_resize":
        return False
    policy = site.attribute("keep_aspect_ratio_policy", b"stretch")
    even = all(size == old * ratio for (size, ratio), old in zip(plain, shape, strict=True))
    keeps = policy != b"stretch" and not even
    if keeps or _is_by_matrix(site, even):
        given = {
            a.name: helper.get_attribute_value(a) for a in site.node.attribute if a.name in _OF_TAPS
        }
        _by_matrices(site, plain, bool(site.input(3)) and not keeps, **given)
        return True
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


def upsample(site: Site) -> bool:
    """What became Resize."""
    if site.opset < 9:
        return _as_it_was(site, np.array(site.attribute("scales", []), np.float32), "floor")
    return _as_it_was(site, site.value(1), "floor")


def _as_it_was(site: Site, scales: Array | None, below: str) -> bool:
    """Nearest, or linear, from where the first element lies; nearest is the one before, or, where
    there are to be fewer, `below`'s."""
    shape = site.shape(0)
    if shape is None or scales is None or len(shape) != scales.size:
        return False
    ratios = [float(one) for one in scales.reshape(-1).tolist()]
    given = {
        "mode": site.attribute("mode", b"nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": below if min(ratios) < 1 else "floor",
    }
    plain = [(_scaled(old, ratio), ratio) for old, ratio in zip(shape, ratios, strict=True)]
    _by_matrices(site, plain, False, **given)
    return True


def _scaled(size: int, ratio: float) -> int:
    """As runtimes have it, in single precision."""
    return int(np.floor(np.float32(size) * np.float32(ratio)))


def _is_by_matrix(site: Site, even: bool) -> bool:
    """With a filter, with cubes that leave out what lies outside, symmetric about the middle, or by
    a scale that is not the ratio of the sizes, which is the only one that the importer knows."""
    return bool(
        site.attribute("antialias", 0)
        or site.attribute("exclude_outside", 0)
        or site.attribute("coordinate_transformation_mode", b"") == b"half_pixel_symmetric"
        or (site.input(2) and not even)
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
            found[axis] = (_scaled(shape[axis], scale), scale)
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


def _by_matrices(
    site: Site, plain: Sequence[tuple[int, float]], by_size: bool, **given: Any
) -> None:
    """One axis after another, to a size and by a scale; which one says so is `by_size`.

    Raises:
        UnsupportedModel: of whole numbers, which a product would have to round, with a matrix that
            is too large, or one that ONNX's evaluator does not make.
    """
    shape, value, dtype = site.shape(0), site.input(0), site.dtype(0)
    nearest = given.get("mode", b"nearest") == b"nearest"
    if shape is None or dtype is None:
        site.refuse("reads what is of no known type")
    for axis, (size, scale) in enumerate(plain):
        if (size, scale) == (shape[axis], 1.0):
            continue
        if not nearest and not is_float(dtype):
            site.refuse(f"is of whole numbers ({dtype}), and neither nearest nor plain")
        if size * shape[axis] > _MOST_TAPS:
            site.refuse(f"is neither plain nor small ({shape[axis]} to {size})")
        try:
            said = by_size or size == shape[axis] * scale
            taps = matrix(shape[axis], size if said else None, scale, **given)
        except Exception as error:
            site.refuse(f"cannot be computed: {error}")
        if taps.shape[1] != size:
            site.refuse(f"has a scale ({scale:g}) whose size depends on how it is rounded")
        value = _along(site, value, axis, len(shape), taps, nearest)
    site.give(0, value)


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


def _along(site: Site, value: str, axis: int, rank: int, taps: Array, nearest: bool) -> str:
    """The product along an axis of (..., size, ...); of ones and zeros, a choice."""
    if nearest:
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
