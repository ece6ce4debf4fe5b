"""What is done to numbers that were made wide of 8 bits, done to the 8 bits (needs TVM).

Tensors are turned there, where they became wide and nothing else: there is less to move, and a
product that reads them is one of whole numbers only where nothing stands between (`relax.whole`).
And the parts of one that is split are
sliced there, each in the kernel that goes on with it: split, it is written as float32 first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.relax.calls import is_call, is_constant, part_of, shape_of

_WIDENING = tuple(f"relax.{name}" for name in ("astype", "add", "subtract", "multiply"))
"""What makes numbers of 8 bits: the type, less a zero, by a scale."""


def bytes_first(module: tvm.IRModule) -> tvm.IRModule:
    """The same network."""
    rewriter = _BytesFirst(module)
    rewriter.builder_.update_func(
        module.get_global_var("main"), rewriter.visit_expr(module["main"])
    )
    return relax.transform.CanonicalizeBindings()(rewriter.builder_.get())


@mutator
class _BytesFirst(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not is_call(call, "relax.permute_dims") or call.attrs.axes is None:
            return call
        order = [int(axis) for axis in call.attrs.axes]

        def beside(values: NDArray[Any]) -> NDArray[Any]:
            return np.asarray(np.transpose(values, order), order="C")

        made = self._before(call.args[0], lambda one: relax.op.permute_dims(one, order), beside)
        return call if made is None else made

    def visit_tuple_getitem_(self, item: Any) -> Any:
        item = super().visit_tuple_getitem_(item)
        split = self._made(item.tuple_value)
        if not is_call(split, "relax.split") or shape_of(split.args[0]) is None:
            return item
        axis, first, end = part_of(split, int(item.index))

        def beside(values: NDArray[Any]) -> NDArray[Any] | None:
            return values if values.shape[axis] == 1 else None

        made = self._before(
            split.args[0],
            lambda one: relax.op.strided_slice(one, [axis], [first], [end]),
            beside,
        )
        return item if made is None else made

    def _before(
        self,
        tensor: Any,
        done: Callable[[Any], Any],
        beside: Callable[[NDArray[Any]], NDArray[Any] | None],
    ) -> Any:
        """What is `done` to a tensor, done to the 8 bits that it is made of; None where it is made
        of none.

        Args:
            beside: what is done to a constant of as many axes; None where it cannot stay beside.
        """
        chain: list[tuple[Any, dict[int, Any]]] = []
        axes = len(shape_of(tensor) or ())
        while str(getattr(tensor.ty, "dtype", "")) not in BYTES:
            call = self._made(tensor)
            others = [one for one in getattr(call, "args", ()) if not is_constant(one)]
            if not is_call(call, *_WIDENING) or len(others) != 1:
                return None
            if shape_of(others[0]) is None or shape_of(others[0]) != shape_of(call):
                return None
            constants = {
                place: _beside(one, axes, beside)
                for place, one in enumerate(call.args)
                if is_constant(one)
            }
            if None in constants.values():
                return None
            chain.insert(0, (call, constants))
            tensor = others[0]
        made = done(tensor)
        for call, constants in chain:
            before = self.builder_.emit(made)
            given = [constants.get(place, before) for place in range(len(call.args))]
            made = relax.Call(call.op, given, call.attrs)
        return made

    def _made(self, tensor: Any) -> Any:
        while isinstance(tensor, relax.Var):
            tensor = self.lookup_binding(tensor)
        return tensor


def _beside(
    constant: Any, axes: int, beside: Callable[[NDArray[Any]], NDArray[Any] | None]
) -> Any | None:
    values = constant.value.numpy()
    if values.ndim == 0:
        return constant
    changed = beside(values.reshape((1,) * (axes - values.ndim) + values.shape))
    return None if changed is None else relax.const(changed, str(constant.ty.dtype))
