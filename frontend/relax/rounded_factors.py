"""Products of bfloat16, where a target allows that factors of float32 are rounded (needs TVM).

An instruction of a processor's vectors, and its matrix registers, multiply pairs of bfloat16, and
add the products up in float32. What such a product reads is rounded where it is made, and stored
so, for whoever reads it: half of the bytes, and no kernel that only rounds; with the zeros around
it that convolutions want, where these alone read it. What only moves numbers on the way, or takes
the largest, has them rounded before it: the result is the same. Constant weights are rounded here.
Products of two tensors stay what they are. Many columns that are no whole registers are filled up
with zeros, and cut off by whatever follows; few are done in vectors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from tunefarm.frontend.relax.calls import is_call, shape_of, uses_of
from tunefarm.frontend.relax.halos import GO_ON, STAGE, with_zeros
from tunefarm.frontend.relax.integer_products import (
    HALVES,
    Room,
    Window,
    convolved,
    multiplied,
    padded,
)
from tunefarm.frontend.relax.whole import channels_last, window_of

BFLOAT16 = "bfloat16"
CONVOLUTION = "relax.nn.conv2d"
NOTHING: Room = (0, 0, 0, 0)
MANY = 64
"""Columns that are worth some of zeros beside them, up to whole registers."""
VECTOR = 4
"""What fewer columns are a multiple of."""
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.concat", "relax.nn.max_pool2d")
"""What makes the same of rounded numbers as what is rounded afterwards."""


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
    wanted = _read_by(products, main)
    rounder = _Rounder(canonical, products, wanted, _room(products, wanted, main))
    rounder.builder_.update_func(canonical.get_global_var("main"), rounder.visit_expr(main))
    if rounder.found:
        module = DeadCodeElimination()(rounder.builder_.get())
    log.note(ROUND_FACTORS, started, f"products of bfloat16: {rounder.found}")
    return module, rounder.found


def _values(function: Any) -> list[Any]:
    return [one.value for block in function.body.blocks for one in block.bindings]


def _read_by(products: set[Any], function: Any) -> set[Any]:
    """Variables that `products` read, and those that these are moved from, to where they are made;
    none that is a result, or moved to be one: nobody has allowed to round those."""
    bound = {one.var: one.value for block in function.body.blocks for one in block.bindings}

    def path(value: Any) -> set[Any]:
        found, ahead = set[Any](), [value]
        while ahead:
            one = ahead.pop()
            if one not in found:
                found.add(one)
                ahead += _moved(bound.get(one))
        return found

    result = bound.get(function.body.body, function.body.body)
    results = result.fields if isinstance(result, relax.Tuple) else [function.body.body]
    kept = set[Any]().union(*map(path, results))
    return set[Any]().union(*(path(call.args[0]) for call in products)) - kept


def _moved(value: Any) -> list[Any]:
    """What it moves; nothing where it does something else."""
    if not is_call(value, *_MOVES) or _dtype(value) != "float32":
        return []
    first = value.args[0]
    return list(first.fields) if isinstance(first, relax.Tuple) else [first]


def _room(products: set[Any], wanted: set[Any], function: Any) -> dict[Any, Room]:
    """The images that are stored with zeros around them, and how many: those that convolutions
    alone read, of which some are padded, and whose makers can go on with it."""
    bound = {one.var: one.value for block in function.body.blocks for one in block.bindings}
    uses, readers = uses_of(function), dict[Any, list[Any]]()
    for call in products:
        readers.setdefault(call.args[0], []).append(call)
    found = {}
    for image in wanted & readers.keys():
        reading = readers[image]
        alone = uses[image] == len(reading) and all(is_call(c, CONVOLUTION) for c in reading)
        if not alone or not is_call(bound.get(image), *GO_ON) or not _is_filled(image):
            continue
        above, left, below, right = map(
            max, NOTHING, *(window_of(call.attrs).padding for call in reading)
        )
        if any((above, left, below, right)):
            found[image] = (above, left, below, right)
    return found


def _is_filled(image: Any) -> bool:
    """Whether its channels, or terms, are whole groups."""
    return bool(int(image.ty.shape[-1]) % HALVES.filled == 0)


def _is_product(call: Any) -> bool:
    """Whether it is one of rows with constants, in whole registers or vectors."""
    if not is_call(call, CONVOLUTION, "relax.matmul"):
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
        room: of those, images that are stored with zeros around them, and how many.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        products: set[Any],
        wanted: set[Any],
        room: Mapping[Any, Room],
    ) -> None:
        super().__init__(module)
        self._room = room
        self._stored: dict[Any, Any] = {}
        self._products = products
        self._wanted = wanted
        self._known: dict[Any, Any] = {}
        self.found = 0

    def visit_var_binding_(self, binding: Any) -> None:
        value = binding.value
        known = is_call(value, "relax.astype") and _dtype(value.args[0]) == BFLOAT16
        if binding.var not in self._wanted or known:
            super().visit_var_binding_(binding)
            return
        made = self.visit_expr(value)
        new = (
            self._moved(made)
            if _moved(made)
            else relax.op.astype(self.builder_.emit(made), BFLOAT16)
        )
        rounded = self.builder_.emit(new)
        if binding.var in self._room:
            top, left, bottom, right = self._room[binding.var]
            around = ((0, top, left, 0), (0, bottom, right, 0))
            self._stored[binding.var] = self.builder_.emit_te(
                with_zeros, rounded, *around, primfunc_name_hint=STAGE
            )
        self.set_var_remap(binding.var, self.builder_.emit(relax.op.astype(rounded, "float32")))

    def visit_call_(self, call: Any) -> Any:
        image, product = call.args[0] if call.args else None, call in self._products
        call = super().visit_call_(call)
        if not product:
            return call
        window = window_of(call.attrs) if is_call(call, CONVOLUTION) else None
        if window is not None and image in self._stored:
            return self._kernel(call, self._stored[image], window.within(self._room[image]))
        data, around = (
            self._rounded(call.args[0]),
            window.padding if window is not None else NOTHING,
        )
        if any(around) or not _is_filled(data):
            data = self._padded(data, around)
            window = window and window.within(around)
        return self._kernel(call, data, window)

    def _rounded(self, value: Any) -> Any:
        """The same numbers as they are stored, made once. An input, or what is a result as well, is
        rounded for products alone."""
        made = self.lookup_binding(value)
        if is_call(made, "relax.astype") and _dtype(made.args[0]) == BFLOAT16:
            return made.args[0]
        if value not in self._known:
            new = self._moved(made) if _moved(made) else relax.op.astype(value, BFLOAT16)
            self._known[value] = self.builder_.emit(new)
        return self._known[value]

    def _moved(self, call: Any) -> Any:
        """The same move of rounded numbers."""
        numbers = [self._rounded(one) for one in _moved(call)]
        several = isinstance(call.args[0], relax.Tuple)
        first = relax.Tuple(numbers) if several else numbers[0]
        return relax.Call(call.op, [first, *call.args[1:]], call.attrs)

    def _padded(self, data: Any, padding: tuple[int, ...]) -> Any:
        """By a kernel of its own: what one holds in bfloat16 inside is float32 when it has been
        lowered. Once, whoever reads it. (`_room` is what the maker stores so.)"""
        key = (data, padding)
        if key not in self._known:
            self._known[key] = self.builder_.emit_te(
                padded, data, padding, 0, HALVES.filled, primfunc_name_hint="pad"
            )
        return self._known[key]

    def _kernel(self, call: Any, data: Any, window: Window | None) -> Any:
        """A convolution of what lies in a window, or a plain product."""
        weights = call.args[1].value.numpy().astype(numpy_dtype(BFLOAT16))

        def made(numbers: Any, constants: Any) -> Any:
            if window is not None:
                return convolved(numbers, constants, window, HALVES.groups)
            return multiplied(numbers, constants, HALVES.groups)

        self.found += 1
        columns = weights.shape[-1]
        filled = -columns % HALVES.columns if columns >= MANY else 0
        beside = [(0, 0)] * (weights.ndim - 1) + [(0, filled)]
        packed = relax.const(HALVES.packed(np.pad(weights, beside)), BFLOAT16)
        name = f"{'matmul' if window is None else 'conv2d'}_{HALVES.name}"
        product = self.builder_.call_te(made, data, packed, primfunc_name_hint=name)
        if not filled:
            return product
        whole, last = self.builder_.emit(product), len(call.ty.shape) - 1
        return relax.op.strided_slice(whole, [last], [0], [columns])
