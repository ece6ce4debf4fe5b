"""Products of whole numbers as integers, where the target has instructions for them.

`quantised` leaves a convolution or a product of matrices whose factors are whole numbers in
float32. Where the data was 8 bits before it was made wider, and every weight is a whole number of
8 bits, the product is one of integers (`integer_products`): exactly the same, where float32 is
exact, and more exact where it is not. Elsewhere, and where the target has no such instructions, the
model is right as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import DeadCodeElimination

from tunefarm.devices.neighbours import FOURS, neighbours_of
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.relax.calls import is_call, number_of
from tunefarm.frontend.relax.integer_products import (
    Instructions,
    Weights,
    Window,
    convolved,
    instructions_of,
    multiplied,
    padded,
    widened,
)
from tunefarm.frontend.relax.merged_groups import TOGETHER, beside_zeros, merged


def gather_whole(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """Every product of whole numbers as a kernel of integers; and, for processors, every
    convolution of one channel at a time, of which the weights are what they are, as a kernel that
    reads 8 bits."""
    started = time.perf_counter()
    gatherer = _Gatherer(module, instructions_of(target), target.kind == "llvm", _lanes_of(target))
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

    @property
    def dtype(self) -> str:
        return str(self.numbers.ty.dtype)


@dataclass(frozen=True)
class _Product:
    """How one is done.

    Attributes:
        weights: for `parts` of the channels and of the columns, each of one the factors of one of
            the other.
    """

    known: Instructions
    weights: Weights
    parts: int = 1


@mutator
class _Gatherer(PyExprMutator):  # type: ignore[misc]
    """
    Args:
        instructions: of the target, best first.
        single: whether convolutions of one channel at a time read 8 bits.
        whole: columns of a group that are whole registers; none where groups are not for them.
    """

    def __init__(
        self, module: tvm.IRModule, instructions: Sequence[Instructions], single: bool, whole: int
    ) -> None:
        super().__init__(module)
        self._instructions, self._single, self._whole = instructions, single, whole
        self._widened: dict[Any, Any] = {}
        self.found, self.read = 0, 0

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        convolution = is_call(call, "relax.nn.conv2d")
        if not convolution and not is_call(call, "relax.matmul"):
            return call
        data = self._data(call.args[0])
        if data is None or (convolution and not channels_last(call)):
            return call
        weights = _whole_constant(call.args[1])
        if weights is not None and (product := self._fitting(call, data, weights)) is not None:
            return self._kernel(call, data, product)
        grouped = convolution and int(call.attrs.groups) > 1
        return self._of_single_channels(call, data) if grouped and self._single else call

    def _data(self, value: Any) -> _Data | None:
        """What `value` is made of, where that is numbers of 8 bits and nothing but."""
        made, zero = self._made_by(value), 0
        if is_call(made, "relax.permute_dims", "relax.reshape"):  # 8 bits are moved instead
            data = self._data(made.args[0])
            if data is None:
                return None
            moved = relax.Call(made.op, [data.numbers, *made.args[1:]], made.attrs)
            return _Data(self.builder_.emit(moved), data.zero)
        if is_call(made, "relax.subtract") and (number := _number(made.args[1])) is not None:
            made, zero = self._made_by(made.args[0]), number
        if not is_call(made, "relax.astype") or str(made.args[0].ty.dtype) not in BYTES:
            return None
        data = _Data(made.args[0], zero)
        ends = np.iinfo(data.dtype)
        return data if ends.min <= zero <= ends.max else None

    def _made_by(self, value: Any) -> Any:
        return self.lookup_binding(value) if isinstance(value, relax.Var) else value

    def _fitting(self, call: Any, data: _Data, weights: Weights) -> _Product | None:
        """By the best instructions that are for it."""
        plain = is_call(call, "relax.matmul")
        if not _in_32_bits(data, weights) or (
            plain and (weights.ndim != 2 or len(call.ty.shape) < 2)
        ):
            return None
        groups = 1 if plain else int(call.attrs.groups)
        for known in self._instructions:
            if data.dtype == known.data and weights.shape[-1] % known.columns == 0:
                product = self._product(known, weights, groups)
                if product is not None and known.take(product.weights):
                    return product
        return None

    def _product(self, known: Instructions, weights: Weights, groups: int) -> _Product | None:
        """With so many groups; None where no number of them can be made one for whole registers."""
        if groups == 1:
            return _Product(known, weights)
        if not known.groups:
            return None  # a GPU's
        terms, columns = weights.shape[-2], weights.shape[-1] // groups
        # Fewer at once are no faster than floats if half of them are zeros.
        most = TOGETHER if known.groups == FOURS else 1
        count = merged(groups, terms, columns, self._whole, known.filled, most)
        if count is None:
            return None
        return _Product(known, beside_zeros(weights, groups, count), groups // count)

    def _of_single_channels(self, call: Any, data: _Data) -> Any:
        window, groups = window_of(call.attrs), int(call.attrs.groups)

        def made(image: Any, weights: Any) -> Any:
            wide = widened(image, window, data.zero)
            strides, dilation = list(window.strides), list(window.dilation)
            settings = (strides, 0, dilation, groups, "NHWC", "HWIO")
            return topi.nn.conv(wide, weights, *settings, out_dtype="float32")

        self.read += 1
        return self.builder_.call_te(made, data.numbers, call.args[1], primfunc_name_hint="conv2d")

    def _kernel(self, call: Any, data: _Data, product: _Product) -> Any:
        """The kernel's sums, less what the data's zero adds to each column, in float32."""
        known, weights = product.known, product.weights
        convolution = is_call(call, "relax.nn.conv2d")
        window = window_of(call.attrs) if convolution else Window((1, 1), (1, 1), (0,) * 4)

        def filled(numbers: Any) -> Any:
            around = padded(numbers, window.padding, data.zero, known.filled)
            return numbers if around is None else around

        def made(numbers: Any, constants: Any) -> Any:
            numbers = filled(numbers)
            if convolution:
                return convolved(numbers, constants, window, known.groups, product.parts)
            return multiplied(numbers, constants, known.groups)

        emit, op = self.builder_.emit, relax.op
        numbers, packed = data.numbers, relax.const(known.packed(weights))
        if known.stored:
            numbers = self._wide(numbers, known.stored)
        fills = int(numbers.ty.shape[-1]) % known.filled > 0
        if not known.groups and (fills or (data.zero and any(window.padding))):
            # Copies of whole pieces put nothing but zeros around an image, and no channels in it.
            numbers = emit(self.builder_.call_te(filled, numbers, primfunc_name_hint="pad"))
            window = Window(window.strides, window.dilation, (0,) * 4)
        name = f"{'conv2d' if convolution else 'matmul'}_{known.name}"
        sums = emit(self.builder_.call_te(made, numbers, packed, primfunc_name_hint=name))
        if data.zero:
            columns, axes = weights.shape[-1], len(call.ty.shape)
            added = weights.astype(np.int64).reshape(-1, columns).sum(axis=0) * data.zero
            less = np.asarray(added, np.int32).reshape((1,) * (axes - 1) + (columns,))
            sums = emit(op.subtract(sums, relax.const(less)))
        self.found += 1
        return op.astype(sums, "float32")

    def _wide(self, numbers: Any, stored: str) -> Any:
        """In the type that products read; once, whoever reads them."""
        if numbers not in self._widened:
            self._widened[numbers] = self.builder_.emit(relax.op.astype(numbers, stored))
        return self._widened[numbers]


def _lanes_of(target: Target) -> int:
    known = neighbours_of(target)
    return known.lanes if known is not None else 0


def _in_32_bits(data: _Data, weights: Weights) -> bool:
    """Whether no sum can be larger, whatever the data."""
    each = np.abs(weights.astype(np.int64)).reshape(-1, weights.shape[-1]).sum(axis=0)
    largest = np.abs(np.iinfo(data.dtype).min), np.iinfo(data.dtype).max
    return int(each.max(initial=0)) * int(max(largest)) <= np.iinfo(np.int32).max


def channels_last(call: Any) -> bool:
    attributes = call.attrs
    return (str(attributes.data_layout), str(attributes.kernel_layout)) == ("NHWC", "HWIO")


def window_of(attributes: Any) -> Window:
    strides, dilation, padding = (
        tuple(int(one) for one in some)
        for some in (attributes.strides, attributes.dilation, attributes.padding)
    )
    return Window(strides, dilation, padding)  # type: ignore[arg-type]


def _whole_constant(value: Any) -> Weights | None:
    """A constant as whole numbers of 8 bits, None where it is none of those."""
    if not isinstance(value, tvm.ir.GenericConst) or str(value.ty.dtype) != "float32":
        return None
    values = value.value.numpy()
    if values.min(initial=0.0) < -128 or values.max(initial=0.0) > 127:
        return None
    whole: Weights = values.astype(np.int8)
    return whole if np.array_equal(whole.astype(np.float32), values) else None


def _number(value: Any) -> int | None:
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None
