"""What is computed of constants alone, with NumPy: the compiler would compile a kernel for each, a
tenth of a second and more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.frontend.dtypes import HALF

_MOST = 2**27  # elements: a larger constant stays an operation


def _as_shaped(call: Any, array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape([int(size) for size in call.ty.shape])


def _turned(call: Any, array: NDArray[Any]) -> NDArray[Any]:
    axes = call.attrs.axes
    order = None if axes is None else [int(axis) for axis in axes]
    return np.asarray(np.transpose(array, order), order="C")


def _elementwise(function: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
    return lambda _call, *arrays: function(*arrays)


_OPERATORS: Mapping[str, Callable[..., NDArray[Any]]] = {
    **dict.fromkeys(("relax.reshape", "relax.expand_dims", "relax.squeeze"), _as_shaped),
    "relax.permute_dims": _turned,
    "relax.astype": lambda _call, array: array,  # to the type that every result is brought to
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.less": _elementwise(np.less),
    "relax.isnan": _elementwise(np.isnan),
    "relax.where": _elementwise(np.where),
}


@tvm.transform.module_pass(opt_level=0, name="Folded")
class Folded:
    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        folder = _Folder(module)
        main = module.get_global_var("main")
        folder.builder_.update_func(main, folder.visit_expr(module["main"]))
        return folder.builder_.get()


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        operator = _OPERATORS.get(getattr(call.op, "name", ""))
        if operator is None:
            return call
        constants = [self._constant(arg) for arg in call.args if not _is_shape(arg)]
        if not constants or any(one is None for one in constants):
            return call
        dtype, shape = str(call.ty.dtype), call.ty.shape
        types = {dtype, *(str(one.ty.dtype) for one in constants)}
        if types.intersection(HALF) or any(not isinstance(size, tvm.tirx.IntImm) for size in shape):
            return call
        if int(np.prod([int(size) for size in shape])) > _MOST:
            return call
        arrays = [one.value.numpy() for one in constants]
        return relax.const(operator(call, *arrays).astype(dtype, copy=False), dtype)

    def _constant(self, argument: Any) -> Any:
        """What an argument is, where that is known."""
        if isinstance(argument, relax.Var):
            argument = self.lookup_binding(argument)
        return argument if isinstance(argument, tvm.ir.GenericConst) else None


def _is_shape(argument: Any) -> bool:
    return isinstance(argument, relax.ShapeExpr)
