"""Products of integers of 8 bits as TensorIR, as processors and GPUs have instructions for them.
And of bfloat16, whose pairs are multiplied as those of 16 bits are.

Data is (N, H, W, C) or (..., M, K); weights come as (..., terms, columns). A processor that
multiplies neighbours at once and adds them up (`devices.neighbours`: four of 8 bits, two pairs of
those, or a pair of 16) gets both operands in such groups along the sum: the kernel's last axes of
reduction are of neighbours, and the weights lie with so many terms of a column together. A GPU's
tensor cores get both operands signed, each with its terms side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx, topi

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.matrices import COLUMNS
from tunefarm.devices.neighbours import FOURS, NARROW, PAIRS, Groups, neighbours_of, steps_of
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BYTES_KEPT

Weights = NDArray[Any]
"""(..., terms, columns), of 8 bits or 16, or of bfloat16."""


Room = tuple[int, int, int, int]
"""Around an image: above, left, below, right."""
NOTHING: Room = (0, 0, 0, 0)


@dataclass(frozen=True)
class Window:
    """Where a convolution reads: steps and distances of rows and columns; what is around the
    image. `inset`: of what is stored around it, how much is left out."""

    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: Room
    inset: Room = NOTHING

    def within(self, stored: Room) -> Window:
        """The same where so much is stored around the image, no less than its padding."""
        top, left, bottom, right = (
            there - needed for there, needed in zip(stored, self.padding, strict=True)
        )
        return Window(self.strides, self.dilation, NOTHING, (top, left, bottom, right))


@dataclass(frozen=True)
class Instructions:
    """How a target has its products.

    Attributes:
        name: for kernels.
        data: type of the operand that is no constant.
        stored: what both operands are of when they are read; empty: the data as it is, the weights
            of 8 bits.
        columns: that they take at once, at the least: the result's are a multiple of them, of
            bfloat16 where they are filled up (`roundable.filled_columns`).
        groups: how terms are added up at once; none where the weights are read in lines.
        filled: what the number of terms is a multiple of; on a GPU, what is copied at once at the
            least.
    """

    name: str
    data: str
    stored: str
    columns: int
    groups: Groups
    filled: int

    def take(self, weights: Weights) -> bool:
        """Whether they are exact with these weights."""
        return self.groups != NARROW or _pairs_fit(weights)

    def packed(self, weights: Weights) -> Weights:
        """As the kernel reads them, filled up with zeros."""
        wide = weights.astype(self.stored) if self.stored else weights
        before = [(0, 0)] * (wide.ndim - 2)
        whole = np.pad(wide, [*before, (0, -wide.shape[-2] % self.filled), (0, 0)])
        return in_groups(whole, self.groups) if self.groups else in_lines(whole)


_BY_GROUPS = {
    FOURS: Instructions("fours", "uint8", "", 4, FOURS, 4),
    NARROW: Instructions("narrow", "uint8", "", 4, NARROW, 4),
    PAIRS: Instructions("pairs", "uint8", BYTES_KEPT, 4, PAIRS, 2),
}
_LINES = Instructions("lines", "int8", "", 8, (), 4)


HALVES = Instructions("halves", "bfloat16", "", COLUMNS, PAIRS, 2)
"""Of matrix registers and of vectors, for pairs of bfloat16; sums are of float32."""


def instructions_of(target: Target) -> tuple[Instructions, ...]:
    """All that it has, best first."""
    known = neighbours_of(target)
    if known is not None:
        return tuple(_BY_GROUPS[groups] for groups in known.groups)
    tensor_cores = target.kind == "cuda" and "int8" in arch_of(target).tensor_cores
    return (_LINES,) if tensor_cores else ()


def _pairs_fit(weights: Weights) -> bool:
    """Whether 16 bits hold any two neighbouring numbers without a sign times these, added up."""
    odd = weights.shape[-2] % 2
    filled = np.pad(weights, [(0, 0)] * (weights.ndim - 2) + [(0, odd), (0, 0)]).astype(np.int32)
    first, second = filled[..., 0::2, :], filled[..., 1::2, :]
    above = np.maximum(first, 0) + np.maximum(second, 0)
    below = np.minimum(first, 0) + np.minimum(second, 0)
    ends = np.iinfo(np.int16)
    return bool(255 * above.max(initial=0) <= ends.max and 255 * below.min(initial=0) >= ends.min)


def in_groups(weights: Weights, groups: Groups) -> Weights:
    """(..., terms, columns) as (..., groups, columns, and those of a group)."""
    *outer, terms, columns = weights.shape
    split = weights.reshape(*outer, terms // prod(groups), *groups, columns)
    return np.ascontiguousarray(np.moveaxis(split, -1, len(outer) + 1))


def in_lines(weights: Weights) -> Weights:
    """(..., terms, columns) as (columns, ..., terms)."""
    return np.ascontiguousarray(np.moveaxis(weights, -1, 0))


def padded(data: Any, padding: Sequence[int], zero: int, multiple: int) -> Any:
    """An image with `zero` around it, and its channels filled up to a multiple; of (..., M, K)
    rows, the terms. None where nothing is to be added."""
    before, after = [0] * len(data.shape), [0] * len(data.shape)
    if any(padding):
        before[1], before[2], after[1], after[2] = padding
    after[-1] = -int(data.shape[-1]) % multiple
    if not any((*before, *after)):
        return None
    value = tirx.const(zero, str(data.dtype))
    return topi.nn.pad(data, before, after, pad_value=value, name="pad_temp")


def convolved(image: Any, weights: Any, window: Window, groups: Groups, parts: int = 1) -> Any:
    """A convolution of an image that has all around it that it needs, as 32-bit sums.

    Args:
        parts: that channels and filters are divided into, each filter reading one of them; where
            they are several, `groups` are too.
    """
    if groups:
        down, across, depth, columns, *_ = (int(size) for size in weights.shape)
    else:
        columns, down, across, depth = (int(size) for size in weights.shape)
    inset = window.inset
    height, width = (
        (
            int(image.shape[axis + 1])
            - inset[axis]
            - inset[axis + 2]
            - (size - 1) * window.dilation[axis]
            - 1
        )
        // window.strides[axis]
        + 1
        for axis, size in enumerate((down, across))
    )
    ry, rx = te.reduce_axis((0, down), name="ry"), te.reduce_axis((0, across), name="rx")
    axes, channel, weight = _terms(weights, depth, groups, "rc")
    of_part = depth * prod(groups)

    def sums(n: Any, y: Any, x: Any, f: Any) -> Any:
        (sy, sx), (dy, dx) = window.strides, window.dilation
        row, column = y * sy + ry * dy + inset[0], x * sx + rx * dx + inset[1]
        first = tirx.floordiv(f, columns // parts) * of_part if parts > 1 else 0
        number = image(n, row, column, first + channel)
        return _sum_of(number, weight(f, ry, rx), [ry, rx, *axes])

    return te.compute((image.shape[0], height, width, columns), sums, name="conv2d")


def multiplied(rows: Any, weights: Any, groups: Groups) -> Any:
    """A product of (..., M, K) rows, as 32-bit sums."""
    sizes = [int(size) for size in weights.shape]
    depth, columns = (sizes[0], sizes[1]) if groups else (sizes[1], sizes[0])
    axes, term, weight = _terms(weights, depth, groups, "k")

    def sums(*place: Any) -> Any:
        *row, column = place
        return _sum_of(rows(*row, term), weight(column), axes)

    return te.compute((*rows.shape[:-1], columns), sums, name="matmul")


def _terms(weights: Any, depth: int, groups: Groups, name: str) -> tuple[list[Any], Any, Any]:
    """The axes of the terms, the place of one in the data, and a weight by its column and its place
    in the window."""
    outer = te.reduce_axis((0, depth), name=name)
    if not groups:
        return [outer], outer, lambda column, *place: weights(column, *place, outer)
    inner = [te.reduce_axis((0, size), name="neighbour") for size in groups]
    term = outer * prod(groups)
    for step, axis in zip(steps_of(groups), inner, strict=True):
        term += axis * step
    return [outer, *inner], term, lambda column, *place: weights(*place, outer, column, *inner)


def _sum_of(number: Any, weight: Any, axes: list[Any]) -> Any:
    wide = "float32" if str(weight.ty.dtype) == "bfloat16" else "int32"
    return te.sum(number.astype(wide) * weight.astype(wide), axis=axes)


def widened(image: Any, window: Window, zero: int = 0) -> Any:
    """What a convolution reads of an (N, H, W, C) image of 8 bits less its zero, or of bfloat16, in
    float32, with nothing around it."""
    top, left, bottom, right = (
        around - inside for around, inside in zip(window.padding, window.inset, strict=True)
    )
    images, height, width, channels = (int(size) for size in image.shape)

    def number(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = image(n, y - top, x - left, c).astype("float32")
        value = value - tirx.const(float(zero), "float32") if zero else value
        if not any(window.padding):
            return value
        inside = [y >= top, y < top + height, x >= left, x < left + width]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, "float32"))

    shape = (images, top + height + bottom, left + width + right, channels)
    return te.compute(shape, number, name="pad_temp")
