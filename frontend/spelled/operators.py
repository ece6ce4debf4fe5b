"""Operators (or settings of them) that the importer lacks or mistakes, in others' terms.

A rule leaves alone what the importer does right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.dtypes import is_float
from tunefarm.frontend.onnx.passes import attribute, is_standard
from tunefarm.frontend.spelled.resizing import resize, upsample
from tunefarm.frontend.spelled.site import MOST_ELEMENTS, Site
from tunefarm.frontend.spelled.spectra import spectrum


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
    if len(signs) == 2 or dtype is None:
        return False
    if not signs:
        site.again("Less", site.input(0), site.input(0))
        return True
    infinity = site.constant(math.inf if signs == ["positive"] else -math.inf, dtype)
    site.again("Equal", site.input(0), infinity)
    return True


def part(site: Site) -> bool:
    """Gather of one place, or of some in a row: exporters write so what was taken apart (queries,
    keys and values). The importer would look whether it counts from the end, in the run."""
    places, shape, axis = site.value(1), site.shape(0), site.attribute("axis", 0)
    if places is None or shape is None or places.ndim > 1 or not places.size:
        return False
    axis %= len(shape)
    row = places.astype(np.int64).reshape(-1)
    row = np.where(row < 0, row + shape[axis], row)
    first, last = int(row[0]), int(row[-1])
    if not 0 <= first <= last < shape[axis] or list(row) != list(range(first, last + 1)):
        return False
    cut = site.slice(site.input(0), axis, first, last + 1)
    site.give(0, cut if places.ndim else site.squeeze(cut, axis))
    return True


def slopes(site: Site) -> bool:
    """PRelu before opset 7: one slope for each channel, whatever the axes after them."""
    shape, own = site.shape(0), site.shape(1)
    if site.opset >= 7 or shape is None or own is None or len(own) != 1 or own[0] == 1:
        return False
    apart = site.reshape(site.input(1), own[0], *[1] * (len(shape) - 2))
    site.again("PRelu", site.input(0), apart)
    return True


def largest_of_none(site: Site) -> bool:
    """Whether a largest number is minus infinity, as the standard asks of a mask: whether all are.
    (The compiler begins a maximum with the least finite number.)"""
    for index in range(2):
        value, maker = site.value(index), site.facts.makers.get(site.input(1 - index))
        if value is None or maker is None or maker.op_type != "ReduceMax":
            continue
        if is_float(value.dtype) and value.size == 1 and bool((value == -np.inf).all()):
            where = site.emit("Equal", maker.input[0], site.constant(-np.inf, value.dtype))
            given = {a.name: helper.get_attribute_value(a) for a in maker.attribute}
            numbers = site.cast(where, TensorProto.INT32)
            least = site.emit("ReduceMin", numbers, *maker.input[1:], **given)
            site.give(0, site.cast(least, TensorProto.BOOL))
            return True
    return False


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
    drops = ratio is None or ratio.item()
    if site.input(2) and drops and (training is None or training.item()):
        return False
    if site.output(1) and shape is None:
        return False
    site.give(0, site.input(0))
    if site.output(1) and shape is not None:
        if math.prod(shape) > MOST_ELEMENTS:
            return False
        site.give(1, site.constant(np.ones(shape), bool if site.opset >= 10 else site.dtype(0)))
    return True


def eye(site: Site) -> bool:
    shape, number = site.shape(0), site.attribute("dtype", 0) or site.facts.type(site.input(0))
    if shape is None or not number:
        return False
    rows, columns = shape
    if rows * columns > MOST_ELEMENTS:
        return False
    ones = np.eye(rows, columns, k=int(site.attribute("k", 0)))
    site.give(0, site.constant(ones, helper.tensor_dtype_to_np_dtype(number)))
    return True


def one_hot(site: Site) -> bool:
    """A comparison with each number below the depth, which is known."""
    depth, shape = site.value(1), site.shape(0)
    if depth is None or shape is None:
        return False
    count, rank = int(depth.item()), len(shape) + 1
    if not 0 < count <= MOST_ELEMENTS:
        return False
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


def concatenation(site: Site) -> bool:
    """Without what is empty, as what a decoder remembers is before its first word."""
    shapes = [site.shape(k) for k in range(len(site.node.input))]
    full = [
        name
        for name, shape in zip(site.node.input, shapes, strict=True)
        if shape is None or 0 not in shape
    ]
    if not full or len(full) == len(shapes):
        return False
    site.give(0, site.concat(full, site.attribute("axis", 0)))
    return True


RESPELLED: Mapping[str, Callable[[Site], bool]] = {
    "CastLike": cast_like,
    "Concat": concatenation,
    "ConvTranspose": transposed_convolution,
    "Dropout": dropout,
    "Equal": largest_of_none,
    "EyeLike": eye,
    "Gather": part,
    "IsInf": is_infinite,
    "LpNormalization": norm,
    "OneHot": one_hot,
    "PRelu": slopes,
    "Pow": power,
    "ReduceMax": reduce_truths,
    "ReduceMin": reduce_truths,
    "Resize": resize,
    "SpaceToDepth": space_to_depth,
    "Upsample": upsample,
    **dict.fromkeys(("DFT", "STFT"), spectrum),
}


REFUSED = ("BatchNormalization", "RoiAlign")
"""Operators without a rule of which some are refused, once what they read is known."""


def refuse(node: onnx.NodeProto) -> None:
    """What means something that nobody computes.

    Raises:
        UnsupportedModel: in training mode, or the largest of a region's samples.
    """
    if not is_standard(node):
        return
    training = node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0)
    if training or (node.op_type == "Dropout" and any(node.input[2:])):
        raise UnsupportedModel(
            f"{node.op_type} (node {node.name or node.output[0]!r}) is in training mode",
            hint="Export the model for inference.",
        )
    if node.op_type == "RoiAlign" and attribute(node, "mode", b"avg") != b"avg":
        raise UnsupportedModel(
            f"RoiAlign (node {node.name or node.output[0]!r}) takes the largest of a region's "
            "samples; only their mean can be computed"
        )
