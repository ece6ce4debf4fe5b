"""Products of bfloat16, where a target allows that factors of float32 are rounded (needs TVM).

An instruction of a processor's vectors, and its matrix registers, multiply pairs of bfloat16, and
add the products up in float32. What such a product reads (`roundable`) is rounded where it is made,
and stored so, for whoever reads it: half of the bytes, and no kernel that only rounds; with the
zeros around it that convolutions want, where these alone read it. Constant weights are rounded
here. Products of two tensors stay what they are, but for attention's (`relax.attention`). Columns
that are no whole registers are filled up with zeros, and cut off by whatever follows; a single row,
or few columns where there are no matrix registers, are done in vectors. Means of windows read what
is stored rounded as well.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import CanonicalizeBindings, DeadCodeElimination

from tunefarm.devices.bfloat16 import rounds_factors
from tunefarm.devices.matrices import multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16, numpy_dtype
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.relax.calls import is_call
from tunefarm.frontend.relax.halos import STAGE, with_zeros
from tunefarm.frontend.relax.integer_products import (
    HALVES,
    NOTHING,
    Room,
    Window,
    convolved,
    multiplied,
    padded,
    widened,
)
from tunefarm.frontend.relax.merged_groups import beside_zeros
from tunefarm.frontend.relax.roundable import (
    CONVOLUTION,
    Roundable,
    dtype_of,
    filled_columns,
    is_filled,
    merged_groups,
    moved,
    roundable,
)
from tunefarm.frontend.relax.whole import window_of


def round_factors(module: tvm.IRModule, target: Target, log: PassLog) -> tuple[tvm.IRModule, int]:
    """Every product of float32 with constants as one of bfloat16, where `target` allows that; and
    how many there are, and casts that others make (`relax.attention`). (Of a quantised model
    whoever calls does not ask: what is float32 there is little, and is held to what quantising
    moves.)

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    if not rounds_factors(target):
        return module, 0
    started = time.perf_counter()
    canonical = CanonicalizeBindings()(module)  # one name for each tensor
    main = canonical["main"]
    matrices = multiplies_halves(target)
    found = roundable(main, matrices)
    if found.products or found.casts:
        rounder = _Rounder(canonical, found, matrices)
        rounder.builder_.update_func(canonical.get_global_var("main"), rounder.visit_expr(main))
        module = DeadCodeElimination()(rounder.builder_.get())
    products, casts = len(found.products), len(found.casts)
    log.note("relax.round_factors", started, f"products of bfloat16: {products}, casts: {casts}")
    return module, products + casts


@mutator
class _Rounder(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, found: Roundable, matrices: bool) -> None:
        super().__init__(module)
        self._found, self._matrices = found, matrices
        self._stored: dict[Any, Any] = {}
        self._known: dict[Any, Any] = {}

    def visit_var_binding_(self, binding: Any) -> None:
        value = binding.value
        known = is_call(value, "relax.astype") and dtype_of(value.args[0]) == BFLOAT16
        if binding.var not in self._found.tensors or known:
            super().visit_var_binding_(binding)
            return
        made = self.visit_expr(value)
        new = self._moved(made)
        if new is None:
            new = _cast(self.builder_.emit(made))
        rounded = self.builder_.emit(new)
        if binding.var in self._found.room:
            top, left, bottom, right = self._found.room[binding.var]
            around = ((0, top, left, 0), (0, bottom, right, 0))
            self._stored[binding.var] = self.builder_.emit_te(
                with_zeros, rounded, *around, primfunc_name_hint=STAGE
            )
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.astype(rounded, "float32")))

    def visit_call_(self, call: Any) -> Any:
        if call in self._found.casts and _is_rounded(made := self._made(call.args[0])):
            return made.args[0]
        image = call.args[0] if call.args else None
        product, single = call in self._found.products, call in self._found.singles
        call = super().visit_call_(call)
        if is_call(call, "relax.nn.avg_pool2d") and _is_rounded(made := self._made(call.args[0])):
            return self._averaged(call, made.args[0])
        if not product and not single:
            return call
        window = window_of(call.attrs) if is_call(call, CONVOLUTION) else None
        if image in self._stored:
            assert window is not None, "convolutions alone read it"
            data, window = self._stored[image], window.within(self._found.room[image])
        elif single:
            made = self.lookup_binding(call.args[0])
            if not _is_rounded(made):
                return call  # it is an input, or a result as well
            data = made.args[0]
        else:
            data, around = self._rounded(call.args[0]), window.padding if window else NOTHING
            if any(around) or not is_filled(data):
                data = self._padded(data, around)
                window = window and window.within(around)
        if single:
            assert window is not None, "it is a convolution"
            return self._of_single_channels(call, data, window)
        return self._kernel(call, data, window)

    def _made(self, value: Any) -> Any:
        return self.lookup_binding(self.visit_expr(value))

    def _rounded(self, value: Any) -> Any:
        """The same numbers as they are stored, made once. An input, or what is in a result as well,
        is rounded for products alone."""
        made = self.lookup_binding(value)
        if _is_rounded(made):
            return made.args[0]
        if value not in self._known:
            new = self._moved(made)
            self._known[value] = self.builder_.emit(_cast(value) if new is None else new)
        return self._known[value]

    def _moved(self, call: Any) -> Any | None:
        """The same move of rounded numbers; None where there are none, or not all are."""
        numbers = [self._at_hand(one) for one in moved(call)]
        if not numbers or any(one is None for one in numbers):
            return None
        several = isinstance(call.args[0], relax.Tuple)
        first = relax.Tuple(numbers) if several else numbers[0]
        return relax.Call(call.op, [first, *call.args[1:]], call.attrs)

    def _at_hand(self, value: Any) -> Any | None:
        """Its rounded numbers, where there are some."""
        if isinstance(value, tvm.ir.GenericConst):
            return relax.const(value.value.numpy().astype(numpy_dtype(BFLOAT16)), BFLOAT16)
        made = self.lookup_binding(value)
        return made.args[0] if _is_rounded(made) else self._known.get(value)

    def _padded(self, data: Any, padding: Room) -> Any:
        """By a kernel of its own: what one holds in bfloat16 inside is float32 when it has been
        lowered. Once, whoever reads it."""
        key = (data, padding)
        if key not in self._known:
            self._known[key] = self.builder_.emit_te(
                padded, data, padding, 0, HALVES.filled, primfunc_name_hint="pad"
            )
        return self._known[key]

    def _of_single_channels(self, call: Any, data: Any, window: Window) -> Any:
        """In float32, of an image of bfloat16."""

        def made(image: Any, weights: Any) -> Any:
            wide = widened(image, window)
            settings = (list(window.strides), 0, list(window.dilation), int(call.attrs.groups))
            return topi.nn.conv(wide, weights, *settings, "NHWC", "HWIO", out_dtype="float32")

        return self.builder_.call_te(made, data, call.args[1], primfunc_name_hint="conv2d")

    def _averaged(self, call: Any, data: Any) -> Any:
        """In float32, of an image of bfloat16, which else a kernel of its own would make wide."""
        how = call.attrs

        def made(image: Any) -> Any:
            sizes = (list(one) for one in (how.pool_size, how.strides, how.dilation, how.padding))
            rest = (how.ceil_mode, how.layout, how.count_include_pad)
            return topi.nn.pool2d(topi.cast(image, "float32"), *sizes, "avg", *rest)

        return self.builder_.call_te(made, data, primfunc_name_hint="avg_pool2d")

    def _kernel(self, call: Any, data: Any, window: Window | None) -> Any:
        """A convolution of what lies in a window, or a plain product."""
        weights = call.args[1].value.numpy().astype(numpy_dtype(BFLOAT16))
        parts = 1
        if window is not None and (groups := int(call.attrs.groups)) > 1:
            together = merged_groups(call, self._matrices)
            assert together is not None, "it is a product that may be rounded"
            weights, parts = beside_zeros(weights, groups, together), groups // together

        def made(numbers: Any, constants: Any) -> Any:
            if window is not None:
                return convolved(numbers, constants, window, HALVES.groups, parts)
            return multiplied(numbers, constants, HALVES.groups)

        columns = weights.shape[-1]
        filled = filled_columns(columns, self._matrices)
        assert filled is not None, "it is a product that may be rounded"
        beside = [(0, 0)] * (weights.ndim - 1) + [(0, filled)]
        packed = relax.const(HALVES.packed(np.pad(weights, beside)), BFLOAT16)
        name = f"{'matmul' if window is None else 'conv2d'}_{HALVES.name}"
        product = self.builder_.call_te(made, data, packed, primfunc_name_hint=name)
        if not filled:
            return product
        whole, last = self.builder_.emit(product), len(call.ty.shape) - 1
        return relax.op.strided_slice(whole, [last], [0], [columns])


def _cast(value: Any) -> Any:
    return relax.op.astype(value, BFLOAT16)


def _is_rounded(made: Any) -> bool:
    """Whether it is what was rounded, for whoever reads float32."""
    return is_call(made, "relax.astype") and dtype_of(made.args[0]) == BFLOAT16
