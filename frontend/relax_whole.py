"""Products of whole numbers as integers, where the target has instructions for them.

`quantised` leaves a convolution or a product of matrices whose factors are whole numbers in
float32. Where the data was 8 bits before it was made wider, and every weight is a whole number of
8 bits, the product is one of integers: exactly the same, where float32 is exact, and more exact
where it is not. A processor that multiplies four neighbours at once and adds them up (AVX-512 VNNI,
AVX-VNNI) gets both operands in fours along the sum: the kernel's last axis of reduction is one of
four, and the weights lie with four terms of a column together, filled up with zeros.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import DeadCodeElimination

from tunefarm.devices.target import Target
from tunefarm.devices.vnni import multiplies_fours
from tunefarm.frontend.pass_log import PassLog

FOUR = 4
"""Terms that are added up at once."""
NARROWEST = 4
"""Columns that a vector must divide the result's into."""


def gather_whole(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """Every product of whole numbers as a kernel of integers; and every convolution of one channel
    at a time, of which the weights are what they are, as a kernel that reads 8 bits."""
    if target.kind != "llvm":
        return module
    started = time.perf_counter()
    gatherer = _Gatherer(module, multiplies_fours(target))
    rewritten = gatherer.visit_expr(module["main"])
    if gatherer.found or gatherer.read:
        gatherer.builder_.update_func(module.get_global_var("main"), rewritten)
        module = DeadCodeElimination()(gatherer.builder_.get())
    found = f"products of integers: {gatherer.found}, others of 8 bits: {gatherer.read}"
    log.note("relax.gather_whole", started, found)
    return module


@dataclass(frozen=True)
class _Data:
    """Numbers of 8 bits, and what they are less."""

    numbers: Any
    zero: int


@mutator
class _Gatherer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, fours: bool) -> None:
        super().__init__(module)
        self._fours = fours
        self.found, self.read = 0, 0

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        convolution = _is(call, "relax.nn.conv2d")
        if not convolution and not _is(call, "relax.matmul"):
            return call
        data = self._data(call.args[0])
        if data is None or (convolution and not _channels_last(call)):
            return call
        if convolution and int(call.attrs.groups) > 1:
            return self._single(call, data)
        weights = _whole_constant(call.args[1])
        if weights is None or not self._fours:
            return call
        kernel = (self._convolution if convolution else self._matmul)(call, data, weights)
        return call if kernel is None else kernel

    def _made_by(self, value: Any) -> Any:
        return self.lookup_binding(value) if isinstance(value, relax.Var) else value

    def _data(self, value: Any) -> _Data | None:
        made, zero = self._made_by(value), 0
        if _is(made, "relax.permute_dims"):  # at the network's beginning: 8 bits are moved instead
            data = self._data(made.args[0])
            if data is None:
                return None
            turned = self.builder_.emit(relax.op.permute_dims(data.numbers, made.attrs.axes))
            return _Data(turned, data.zero)
        if _is(made, "relax.subtract") and _number(made.args[1]) is not None:
            zero = _number(made.args[1])
            made = self._made_by(made.args[0])
        if not _is(made, "relax.astype") or str(made.args[0].ty.dtype) != "uint8":
            return None
        return _Data(made.args[0], zero) if 0 <= zero <= 255 else None

    def _convolution(self, call: Any, data: _Data, weights: NDArray[np.int8]) -> Any:
        strides, dilation, padding = _sizes(call.attrs)

        def convolved(image: Any, fours: Any) -> Any:
            return _convolved(image, fours, strides, dilation, padding, data.zero)

        return self._kernel(call, convolved, data, weights, "conv2d")

    def _single(self, call: Any, data: _Data) -> Any:
        strides, dilation, padding = _sizes(call.attrs)
        groups = int(call.attrs.groups)

        def convolved(image: Any, weights: Any) -> Any:
            wide = _widened(image, padding, data.zero)
            return topi.nn.conv(
                wide, weights, strides, 0, dilation, groups, "NHWC", "HWIO", out_dtype="float32"
            )

        self.read += 1
        return self.builder_.call_te(
            convolved, data.numbers, call.args[1], primfunc_name_hint="conv2d"
        )

    def _matmul(self, call: Any, data: _Data, weights: NDArray[np.int8]) -> Any:
        if weights.ndim != 2 or len(data.numbers.ty.shape) < 2:
            return None
        return self._kernel(call, _multiplied, data, weights, "matmul")

    def _kernel(
        self, call: Any, function: Any, data: _Data, weights: NDArray[np.int8], name: str
    ) -> Any:
        """The kernel's sums, less what the data's zero adds to each column, in float32."""
        columns = weights.shape[-1]
        if columns % NARROWEST:
            return None
        self.found += 1
        fours = relax.const(in_fours(weights))
        emit, op = self.builder_.emit, relax.op
        sums = emit(
            self.builder_.call_te(function, data.numbers, fours, primfunc_name_hint=f"{name}_fours")
        )
        if data.zero:
            added = weights.astype(np.int64).reshape(-1, columns).sum(axis=0) * data.zero
            axes = len(call.ty.shape)
            less = np.asarray(added, np.int32).reshape((1,) * (axes - 1) + (columns,))
            sums = emit(op.subtract(sums, relax.const(less)))
        return op.astype(sums, "float32")


def _channels_last(call: Any) -> bool:
    attributes = call.attrs
    return (str(attributes.data_layout), str(attributes.kernel_layout)) == ("NHWC", "HWIO")


def _sizes(attributes: Any) -> tuple[list[int], list[int], list[int]]:
    """Strides, dilation and padding of a convolution."""
    strides, dilation, padding = (
        [int(one) for one in some]
        for some in (attributes.strides, attributes.dilation, attributes.padding)
    )
    return strides, dilation, padding


def _widened(image: Any, padding: Sequence[int], zero: int) -> Any:
    """An (N, H, W, C) image of 8 bits less its zero, in float32, with nothing around it."""
    top, left, bottom, right = padding
    images, height, width, channels = (int(size) for size in image.shape)

    def number(n: Any, y: Any, x: Any, c: Any) -> Any:
        value = image(n, y - top, x - left, c).astype("float32")
        value = value - tirx.const(float(zero), "float32") if zero else value
        inside = [y >= top, y < top + height, x >= left, x < left + width]
        if not any(padding):
            return value
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0.0, "float32"))

    shape = (images, top + height + bottom, left + width + right, channels)
    return te.compute(shape, number, name="pad_temp")


def in_fours(weights: NDArray[np.int8]) -> NDArray[np.int8]:
    """(..., terms, columns) as (..., terms / 4, columns, 4), filled up with zeros."""
    *outer, terms, columns = weights.shape
    fill = [(0, 0)] * len(outer) + [(0, -terms % FOUR), (0, 0)]
    split = np.pad(weights, fill).reshape(*outer, -1, FOUR, columns)
    return np.ascontiguousarray(np.swapaxes(split, -1, -2))


def _convolved(
    image: Any,
    fours: Any,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    zero: int,
) -> Any:
    """A convolution of an (N, H, W, C) image, surrounded by `zero`, as 32-bit sums."""
    top, left, bottom, right = padding
    channels = int(fours.shape[2]) * FOUR - int(image.shape[3])
    around = [0, top, left, 0], [0, bottom, right, channels]
    if any(map(any, around)):
        image = topi.nn.pad(image, *around, pad_value=tirx.const(zero, "uint8"), name="pad_temp")
    down, across, depth, columns, _ = (int(size) for size in fours.shape)
    height, width = (
        (int(image.shape[axis + 1]) - (int(fours.shape[axis]) - 1) * dilation[axis] - 1)
        // strides[axis]
        + 1
        for axis in (0, 1)
    )
    ry, rx, rc, four = (
        te.reduce_axis((0, size), name=name)
        for size, name in ((down, "ry"), (across, "rx"), (depth, "rc"), (FOUR, "four"))
    )

    def term(n: Any, y: Any, x: Any, f: Any) -> Any:
        place = (y * strides[0] + ry * dilation[0], x * strides[1] + rx * dilation[1])
        return _sum_of(
            image(n, *place, rc * FOUR + four), fours(ry, rx, rc, f, four), ry, rx, rc, four
        )

    return te.compute((image.shape[0], height, width, columns), term, name="conv2d_fours")


def _multiplied(rows: Any, fours: Any) -> Any:
    """A product of (..., M, K) rows, as 32-bit sums."""
    depth, columns, _ = (int(size) for size in fours.shape)
    terms = depth * FOUR - int(rows.shape[-1])
    if terms:
        before, after = [0] * len(rows.shape), [0] * (len(rows.shape) - 1) + [terms]
        rows = topi.nn.pad(rows, before, after, pad_value=tirx.const(0, "uint8"), name="pad_temp")
    k, four = te.reduce_axis((0, depth), name="k"), te.reduce_axis((0, FOUR), name="four")

    def term(*place: Any) -> Any:
        *row, column = place
        return _sum_of(rows(*row, k * FOUR + four), fours(k, column, four), k, four)

    return te.compute((*rows.shape[:-1], columns), term, name="matmul_fours")


def _sum_of(number: Any, weight: Any, *axes: Any) -> Any:
    return te.sum(number.astype("int32") * weight.astype("int32"), axis=list(axes))


def _whole_constant(value: Any) -> NDArray[np.int8] | None:
    """A constant as whole numbers of 8 bits, None where it is none of those."""
    if not isinstance(value, tvm.ir.GenericConst) or str(value.ty.dtype) != "float32":
        return None
    values = value.value.numpy()
    whole = values.astype(np.int8)
    return whole if np.array_equal(whole.astype(np.float32), values) else None


def _number(value: Any) -> int | None:
    if not isinstance(value, tvm.ir.GenericConst) or value.value.numpy().size != 1:
        return None
    number = float(value.value.numpy().reshape(()))
    return int(number) if number.is_integer() else None


def _is(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == name
