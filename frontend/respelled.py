"""Operators (or settings of them) that the importer lacks or mistakes, in others' terms.

A rule leaves alone what the importer does right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.onnx_passes import Array, Shape
from tunefarm.frontend.site import Site

_MOST_TAPS = 2**24
"""Elements of a matrix that stands for a resize along one axis."""
_OF_TAPS = frozenset(
    {
        *("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
        *("mode", "nearest_mode"),
    }
)
"""Settings of a resize that make its matrix."""


def cast_like(site: Site) -> bool:
    number = site.facts.type(site.input(1))
    if number:
        site.give(0, site.cast(site.input(0), number))
    return bool(number)


def power(site: Site) -> bool:
    """Of two types, and of whole numbers (by way of float64, which holds what they can)."""
    base, exponent = site.facts.type(site.input(0)), site.facts.type(site.input(1))
    dtype = site.dtype(0)
    if dtype is None or not exponent:
        return False
    if dtype.kind in "iu":
        wide = [site.cast(name, TensorProto.DOUBLE) for name in site.node.input]
        site.give(0, site.cast(site.emit("Pow", *wide), base))
        return True
    if base != exponent:
        site.again("Pow", site.input(0), site.cast(site.input(1), base))
    return base != exponent


def is_infinite(site: Site) -> bool:
    """Of one sign."""
    signs = [k for k in ("negative", "positive") if site.attribute(f"detect_{k}", 1)]
    dtype = site.dtype(0)
    if len(signs) != 1 or dtype is None:
        return False
    infinity = site.constant(math.inf if signs == ["positive"] else -math.inf, dtype)
    site.again("Equal", site.input(0), infinity)
    return True


def norm(site: Site) -> bool:
    """LpNormalization: what is all zeros stays so."""
    dtype = site.dtype(0)
    if dtype is None:
        return False
    axis, order = site.attribute("axis", -1), site.attribute("p", 2)
    axes: dict[str, Any] = {"axes": [axis]} if site.opset < 18 else {}
    inputs = (site.input(0),) if site.opset < 18 else (site.input(0), site.sizes(axis))
    length = site.emit(f"ReduceL{order}", *inputs, keepdims=1, **axes)
    zero = site.constant(0, dtype)
    by = site.emit("Where", site.emit("Equal", length, zero), site.constant(1, dtype), length)
    site.again("Div", site.input(0), by)
    return True


def transposed_convolution(site: Site) -> bool:
    """With a wish for its result's size: as padding."""
    wanted, image, kernel = site.attribute("output_shape", None), site.shape(0), site.shape(1)
    if wanted is None or image is None or kernel is None:
        return False
    rank = len(image) - 2
    strides = site.attribute("strides", [1] * rank)
    dilations = site.attribute("dilations", [1] * rank)
    beyond = list(site.attribute("output_padding", [0] * rank))
    upper = site.attribute("auto_pad", b"NOTSET") == b"SAME_UPPER"
    before, after = [], []
    for k, size in enumerate(wanted[-rank:]):
        reach = (kernel[2 + k] - 1) * dilations[k] + 1
        over = strides[k] * (image[2 + k] - 1) + beyond[k] + reach - size
        beyond[k] += max(-over, 0)
        less, more = max(over, 0) // 2, max(over, 0) - max(over, 0) // 2
        before.append(less if upper else more)
        after.append(more if upper else less)
    given = {"strides": strides, "dilations": dilations, "group": site.attribute("group", 1)}
    given |= {"kernel_shape": list(kernel[2:]), "pads": before + after, "output_padding": beyond}
    site.again("ConvTranspose", *site.node.input, **given)
    return True


def space_to_depth(site: Site) -> bool:
    """Where a block's places come after its channels."""
    shape, size = site.shape(0), site.attribute("blocksize", 1)
    if site.attribute("mode", b"DCR") != b"CRD" or shape is None:
        return False
    batch, channels, rows, columns = shape
    apart = site.reshape(site.input(0), batch, channels, rows // size, size, columns // size, size)
    turned = site.emit("Transpose", apart, perm=[0, 1, 3, 5, 2, 4])
    site.give(0, site.reshape(turned, batch, channels * size**2, rows // size, columns // size))
    return True


def dropout(site: Site) -> bool:
    """At inference it drops nothing, and its mask says so."""
    training, ratio, shape = site.value(2), site.value(1), site.shape(0)
    if site.input(2) and (training is None or training.item()) and (ratio is None or ratio.item()):
        return False
    if site.output(1) and shape is None:
        return False
    site.give(0, site.input(0))
    if site.output(1) and shape is not None:
        site.give(1, site.constant(np.ones(shape, bool)))
    return True


def eye(site: Site) -> bool:
    shape, number = site.shape(0), site.attribute("dtype", 0) or site.facts.type(site.input(0))
    if shape is None or not number:
        return False
    rows, columns = shape
    ones = np.eye(rows, columns, k=int(site.attribute("k", 0)))
    site.give(0, site.constant(ones, helper.tensor_dtype_to_np_dtype(number)))
    return True


def one_hot(site: Site) -> bool:
    """A comparison with each number below the depth, which is known."""
    depth, shape = site.value(1), site.shape(0)
    if depth is None or shape is None:
        return False
    count, rank = int(depth.item()), len(shape) + 1
    axis = site.attribute("axis", -1) % rank
    found = site.cast(site.input(0), TensorProto.INT64)
    below = site.emit("Less", found, site.constant(0, np.int64))
    found = site.emit(
        "Where", below, site.emit("Add", found, site.constant(count, np.int64)), found
    )
    each = np.arange(count).reshape([-1 if k == axis else 1 for k in range(rank)])
    hot = site.emit("Equal", site.unsqueeze(found, axis), site.constant(each, np.int64))
    off, on = (site.slice(site.input(2), 0, k, k + 1) for k in range(2))
    site.again("Where", hot, on, off)
    return True


def reduce_truths(site: Site) -> bool:
    """The largest or smallest of truths, as numbers."""
    if site.facts.type(site.input(0)) != TensorProto.BOOL:
        return False
    numbers = site.cast(site.input(0), TensorProto.INT32)
    given = {a.name: helper.get_attribute_value(a) for a in site.node.attribute}
    found = site.emit(site.node.op_type, numbers, *site.node.input[1:], **given)
    site.give(0, site.cast(found, TensorProto.BOOL))
    return True


def batch_normalisation(site: Site) -> bool:
    if site.attribute("training_mode", 0):
        raise UnsupportedModel(
            f"BatchNormalization (node {site.node.name or site.output(0)!r}) is in training mode",
            hint="Export the model for inference.",
        )
    return False


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


def _taps(site: Site, size: int, wanted: int, scale: float) -> Array:
    """(size, wanted): what a resize of one axis does, as a product from the right."""
    names = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside")
    given = {
        a.name: helper.get_attribute_value(a)
        for a in site.node.attribute
        if a.name in (*names, "mode")
    }
    feeds = {"x": np.eye(size, dtype=np.float32)}
    if site.input(3):
        inputs, last = ["x", "", "", "s"], np.array([size, wanted], np.int64)
    else:
        inputs, last = ["x", "", "s"], np.array([1, scale], np.float32)
    node = helper.make_node("Resize", inputs, ["y"], **given)
    graph = helper.make_graph(
        [node],
        "taps",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size, size])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(last, "s")],
    )
    one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", site.opset)])
    return np.asarray(ReferenceEvaluator(one).run(None, feeds)[0])


def _along(site: Site, value: str, axis: int, rank: int, taps: Array) -> str:
    """The product along an axis of (..., size, ...); of ones and zeros, a choice."""
    if site.attribute("mode", b"nearest") == b"nearest":
        return site.emit("Gather", value, site.sizes(*taps.argmax(0).tolist()), axis=axis)
    dtype = site.dtype(0)
    matrix = site.constant(taps, dtype)
    if axis == rank - 1:
        return site.emit("MatMul", value, matrix)
    if axis == rank - 2:
        return site.emit("MatMul", site.constant(taps.T, dtype), value)
    order = [k for k in range(rank) if k != axis]
    turned = site.emit("Transpose", value, perm=[*order, axis])
    back = [*range(axis), rank - 1, *range(axis, rank - 1)]
    return site.emit("Transpose", site.emit("MatMul", turned, matrix), perm=back)


RESPELLED: Mapping[str, Callable[[Site], bool]] = {
    "BatchNormalization": batch_normalisation,
    "CastLike": cast_like,
    "ConvTranspose": transposed_convolution,
    "Dropout": dropout,
    "EyeLike": eye,
    "IsInf": is_infinite,
    "LpNormalization": norm,
    "OneHot": one_hot,
    "Pow": power,
    "ReduceMax": reduce_truths,
    "ReduceMin": reduce_truths,
    "Resize": resize,
    "SpaceToDepth": space_to_depth,
}
