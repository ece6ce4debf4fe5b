"""Products of bfloat16, where a target allows that factors of float32 are rounded (needs TVM).

An instruction of a processor's vectors, and its matrix registers, multiply pairs of bfloat16, and
add the products up in float32. What such a product reads is rounded where it is made, and stored
so, for whoever reads it: half of the bytes, and no kernel that only rounds. Constant weights are
rounded here. Products of two tensors stay what they are. Many columns that are no whole registers
are filled up with zeros, and cut off by whatever follows; few are done in vectors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import CanonicalizeBindings, DeadCodeElimination

from tunefarm.devices.bfloat16 import rounds_factors
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.frontend.pass_log import ROUND_FACTORS, PassLog
from tunefarm.frontend.relax.calls import is_call, shape_of
from tunefarm.frontend.relax.integer_products import HALVES, Window, convolved, multiplied, padded
from tunefarm.frontend.relax.whole import channels_last, window_of

BFLOAT16 = "bfloat16"
MANY = 64
"""Columns that are worth some of zeros beside them, up to whole registers."""
VECTOR = 4
"""What fewer columns are a multiple of."""
_MOVES = ("relax.permute_dims", "relax.reshape")


def round_factors(module: tvm.IRModule, target: Target, log: PassLog) -> tuple[tvm.IRModule, int]:
    """Every product of float32 with constants as one of bfloat16, where `target` allows that; and
    how many there are. (Of a quantised model whoever calls does not ask: what is float32 there is
    little, and is held to what quantising moves.)

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    if not rounds_factors(target):
        return module, 0
    started = time.perf_counter()
    canonical = CanonicalizeBindings()(module)  # one name for each tensor
    main = canonical["main"]
    products = {call for call in _values(main) if _is_product(call)}
    rounder = _Rounder(canonical, products, _read_by(products, main))
    rounder.builder_.update_func(canonical.get_global_var("main"), rounder.visit_expr(main))
    if rounder.found:
        module = DeadCodeElimination()(rounder.builder_.get())
    log.note(ROUND_FACTORS, started, f"products of bfloat16: {rounder.found}")
    return module, rounder.found


def _values(function: Any) -> list[Any]:
    return [one.value for block in function.body.blocks for one in block.bindings]


def _read_by(products: set[Any], function: Any) -> set[Any]:
    """Variables that are made for `products`, before anything moves them; none that is a result, or
    moved to be one: nobody has allowed to round those."""
    bound = {one.var: one.value for block in function.body.blocks for one in block.bindings}

    def made(value: Any) -> Any:
        while is_call(bound.get(value), *_MOVES):
            value = bound[value].args[0]
        return value

    result = bound.get(function.body.body, function.body.body)
    results = result.fields if isinstance(result, relax.Tuple) else [function.body.body]
    read = {made(call.args[0]) for call in products}
    return read - {made(one) for one in results}


def _is_product(call: Any) -> bool:
    """Whether it is one of rows with constants, in whole registers or vectors."""
    if not is_call(call, "relax.nn.conv2d", "relax.matmul"):
        return False
    data, weights = call.args
    if not isinstance(data, relax.Var) or not isinstance(weights, tvm.ir.GenericConst):
        return False
    if {_dtype(one) for one in (data, weights, call)} != {"float32"}:
        return False
    sizes = shape_of(weights)
    plain = is_call(call, "relax.matmul")
    if sizes is None or shape_of(call) is None or (sizes[-1] % VECTOR and sizes[-1] < MANY):
        return False
    return len(sizes) == 2 if plain else channels_last(call) and int(call.attrs.groups) == 1


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


@mutator
class _Rounder(PyExprMutator):  # type: ignore[misc]
    """
    Args:
        products: the calls to write anew.
        wanted: variables that are to be rounded.
    """

    def __init__(self, module: tvm.IRModule, products: set[Any], wanted: set[Any]) -> None:
        super().__init__(module)
        self._products = products
        self._wanted = wanted
        self._known: dict[Any, Any] = {}
        self.found = 0

    def visit_var_binding_(self, binding: Any) -> None:
        if binding.var not in self._wanted:
            super().visit_var_binding_(binding)
            return
        if is_call(binding.value, "relax.astype") and _dtype(binding.value.args[0]) == BFLOAT16:
            super().visit_var_binding_(binding)
            return
        made = self.builder_.emit(self.visit_expr(binding.value))
        rounded = self.builder_.emit(relax.op.astype(made, BFLOAT16))
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.astype(rounded, "float32")))

    def visit_call_(self, call: Any) -> Any:
        product = call in self._products
        call = super().visit_call_(call)
        return self._kernel(call, self._rounded(call.args[0])) if product else call

    def _rounded(self, value: Any) -> Any:
        """The same numbers as they are stored, made once. An input, or what is a result as well, is
        rounded for products alone."""
        made = self.lookup_binding(value)
        if is_call(made, "relax.astype") and _dtype(made.args[0]) == BFLOAT16:
            return made.args[0]
        if value not in self._known:
            if is_call(made, *_MOVES):
                moved = [self._rounded(made.args[0]), *made.args[1:]]
                new = relax.Call(made.op, moved, made.attrs)
            else:
                new = relax.op.astype(value, BFLOAT16)
            self._known[value] = self.builder_.emit(new)
        return self._known[value]

    def _padded(self, data: Any, padding: tuple[int, ...]) -> Any:
        """By a kernel of its own: what one holds in bfloat16 inside is float32 when it has been
        lowered. Once, whoever reads it."""
        key = (data, padding)
        if key not in self._known:
            self._known[key] = self.builder_.emit_te(
                padded, data, padding, 0, HALVES.filled, primfunc_name_hint="pad"
            )
        return self._known[key]

    def _kernel(self, call: Any, data: Any) -> Any:
        convolution = is_call(call, "relax.nn.conv2d")
        window = window_of(call.attrs) if convolution else Window((1, 1), (1, 1), (0,) * 4)
        weights = call.args[1].value.numpy().astype(numpy_dtype(BFLOAT16))
        if any(window.padding) or weights.shape[-2] % HALVES.filled:
            data = self._padded(data, window.padding)
            window = Window(window.strides, window.dilation, (0,) * 4)

        def made(numbers: Any, constants: Any) -> Any:
            if convolution:
                return convolved(numbers, constants, window, HALVES.groups)
            return multiplied(numbers, constants, HALVES.groups)

        self.found += 1
        columns = weights.shape[-1]
        filled = -columns % HALVES.columns if columns >= MANY else 0
        beside = [(0, 0)] * (weights.ndim - 1) + [(0, filled)]
        packed = relax.const(HALVES.packed(np.pad(weights, beside)), BFLOAT16)
        name = f"{'conv2d' if convolution else 'matmul'}_{HALVES.name}"
        product = self.builder_.call_te(made, data, packed, primfunc_name_hint=name)
        if not filled:
            return product
        whole, last = self.builder_.emit(product), len(call.ty.shape) - 1
        return relax.op.strided_slice(whole, [last], [0], [columns])
