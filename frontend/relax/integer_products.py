"""Products of integers of 8 bits as TensorIR, as processors and GPUs have instructions for them.

Data is (N, H, W, C) or (..., M, K); weights come as (..., terms, columns). A processor that
multiplies four neighbours at once and adds them up (AVX-512 VNNI, AVX-VNNI) gets both operands in
fours along the sum: the kernel's last axis of reduction is one of four, and the weights lie with
four terms of a column together. A GPU's tensor cores get both operands signed, each with its terms
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx, topi

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.devices.vnni import sums_of_fours

FOUR = 4
"""Terms that are added up at once; on a GPU, what is copied at once at the least."""
Weights = NDArray[np.int8]


@dataclass(frozen=True)
class Window:
    """Where a convolution reads: steps and distances of rows and columns; what is around the
    image."""

    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]


@dataclass(frozen=True)
class Instructions:
    """How a target has its products.

    Attributes:
        name: for kernels.
        data: type of the operand that is no constant.
        columns: that they take at once, at the least: the result's are a multiple of them.
        packed: the weights as the kernel reads them, filled up with zeros.
        fours: whether they are read in fours, else in lines.
    """

    name: str
    data: str
    columns: int
    packed: Callable[[Weights], Weights]
    fours: bool


def instructions_of(target: Target) -> Instructions | None:
    """None where it has none."""
    if sums_of_fours(target):
        return Instructions("fours", "uint8", FOUR, in_fours, True)
    if target.kind == "cuda" and "int8" in arch_of(target).tensor_cores:
        return Instructions("lines", "int8", 8, in_lines, False)
    return None


def in_fours(weights: Weights) -> Weights:
    """(..., terms, columns) as (..., terms / 4, columns, 4), filled up with zeros."""
    filled = _filled(weights)
    *outer, terms, columns = filled.shape
    split = filled.reshape(*outer, terms // FOUR, FOUR, columns)
    return np.ascontiguousarray(np.swapaxes(split, -1, -2))


def in_lines(weights: Weights) -> Weights:
    """(..., terms, columns) as (columns, ..., terms), filled up with zeros."""
    return np.ascontiguousarray(np.moveaxis(_filled(weights), -1, 0))


def _filled(weights: Weights) -> Weights:
    *outer, terms, _ = weights.shape
    return np.pad(weights, [(0, 0)] * len(outer) + [(0, -terms % FOUR), (0, 0)])


def padded(data: Any, padding: Sequence[int], zero: int) -> Any:
    """An image with `zero` around it, and its channels filled up to fours; of (..., M, K) rows, the
    terms. None where nothing is to be added."""
    before, after = [0] * len(data.shape), [0] * len(data.shape)
    if any(padding):
        before[1], before[2], after[1], after[2] = padding
    after[-1] = -int(data.shape[-1]) % FOUR
    if not any((*before, *after)):
        return None
    value = tirx.const(zero, data.dtype)
    return topi.nn.pad(data, before, after, pad_value=value, name="pad_temp")


def convolved(image: Any, weights: Any, window: Window, fours: bool) -> Any:
    """A convolution of an image that has all around it that it needs, as 32-bit sums."""
    if fours:
        down, across, depth, columns, _ = (int(size) for size in weights.shape)
    else:
        columns, down, across, depth = (int(size) for size in weights.shape)
    height, width = (
        (int(image.shape[axis + 1]) - (size - 1) * window.dilation[axis] - 1)
        // window.strides[axis]
        + 1
        for axis, size in enumerate((down, across))
    )
    ry, rx = te.reduce_axis((0, down), name="ry"), te.reduce_axis((0, across), name="rx")
    axes, channel, weight = _terms(weights, depth, fours, "rc")

    def sums(n: Any, y: Any, x: Any, f: Any) -> Any:
        (sy, sx), (dy, dx) = window.strides, window.dilation
        number = image(n, y * sy + ry * dy, x * sx + rx * dx, channel)
        return _sum_of(number, weight(f, ry, rx), [ry, rx, *axes])

    return te.compute((image.shape[0], height, width, columns), sums, name="conv2d")


def multiplied(rows: Any, weights: Any, fours: bool) -> Any:
    """A product of (..., M, K) rows, as 32-bit sums."""
    sizes = [int(size) for size in weights.shape]
    depth, columns = (sizes[0], sizes[1]) if fours else (sizes[1], sizes[0])
    axes, term, weight = _terms(weights, depth, fours, "k")

    def sums(*place: Any) -> Any:
        *row, column = place
        return _sum_of(rows(*row, term), weight(column), axes)

    return te.compute((*rows.shape[:-1], columns), sums, name="matmul")


def _terms(weights: Any, depth: int, fours: bool, name: str) -> tuple[list[Any], Any, Any]:
    """The axes of the terms, the place of one in the data, and a weight by its column and its place
    in the window."""
    outer = te.reduce_axis((0, depth), name=name)
    if not fours:
        return [outer], outer, lambda column, *place: weights(column, *place, outer)
    four = te.reduce_axis((0, FOUR), name="four")
    term = outer * FOUR + four
    return [outer, four], term, lambda column, *place: weights(*place, outer, column, four)


def _sum_of(number: Any, weight: Any, axes: list[Any]) -> Any:
    return te.sum(number.astype("int32") * weight.astype("int32"), axis=axes)


def widened(image: Any, padding: Sequence[int], zero: int) -> Any:
    """An (N, H, W, C) image of 8 bits less its zero, in float32, with nothing around it."""
    top, left, bottom, right = padding
    images, height, width, channels = (int(size) for size in image.shape)

    def number(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = image(n, y - top, x - left, c).astype("float32")
        value = value - tirx.const(float(zero), "float32") if zero else value
        if not any(padding):
            return value
        inside = [y >= top, y < top + height, x >= left, x < left + width]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, "float32"))

    shape = (images, top + height + bottom, left + width + right, channels)
    return te.compute(shape, number, name="pad_temp")
