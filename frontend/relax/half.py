"""Sums in single precision, of values in half precision.

A kernel reads and writes 16 bits and sums in 32, as tensor cores do and as other frameworks: a sum
of a thousand terms in 16 bits has lost the last of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tvm import relax, te, topi
from tvm.ir import Op, register_op_attr

from tunefarm.frontend.dtypes import HALF

_PRODUCTS = {
    "relax.matmul": relax.op.matmul,
    "relax.nn.conv1d": relax.op.nn.conv1d,
    "relax.nn.conv2d": relax.op.nn.conv2d,
    "relax.nn.conv3d": relax.op.nn.conv3d,
    "relax.nn.conv1d_transpose": relax.op.nn.conv1d_transpose,
    "relax.nn.conv2d_transpose": relax.op.nn.conv2d_transpose,
    "relax.nn.conv3d_transpose": relax.op.nn.conv3d_transpose,
}
_REDUCTIONS = (
    *("relax.sum", "relax.mean", "relax.std", "relax.variance", "relax.prod"),
    *("relax.nn.softmax", "relax.nn.log_softmax", "relax.nn.attention", "relax.nn.attention_bias"),
    *("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.group_norm", "relax.nn.instance_norm"),
    *("relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d"),
    *(f"relax.nn.adaptive_avg_pool{axes}d" for axes in (1, 2, 3)),
)
Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


_BY_DEFAULT: dict[str, Legalize] = {}
_OVER_DEFAULTS = 11
"""TVM's own are of level 10."""


def sum_in_float32() -> None:
    """Have the operators that sum become kernels that do so in float32, wherever the compiler makes
    kernels of operators in this process, as it does to fold constants. Those of other types stay as
    they are."""
    for name in (*_PRODUCTS, *_REDUCTIONS):
        if name not in _BY_DEFAULT:
            _BY_DEFAULT[name] = Op.get(name).get_attr("FLegalize")
            ours = _product if name in _PRODUCTS else _reduction
            register_op_attr(name, "FLegalize", ours, level=_OVER_DEFAULTS)


def _by_default(builder: Any, call: relax.Call) -> relax.Expr:
    return _BY_DEFAULT[call.op.name](builder, call)


def _product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Rounded by an operator of its own, which is fused like any other that follows."""
    dtype = str(call.ty.dtype)
    if dtype not in HALF:
        return _by_default(builder, call)
    make = _PRODUCTS[call.op.name]
    known = [name for name in inspect.signature(make).parameters if hasattr(call.attrs, name)]
    settings = {name: getattr(call.attrs, name) for name in known}
    wide = builder.normalize(make(*call.args, **{**settings, "out_dtype": "float32"}))
    sums = builder.emit(_by_default(builder, wide))
    return builder.call_te(topi.cast, sums, dtype)


def _reduction(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Widened and rounded in the same kernel."""
    if str(getattr(call.ty, "dtype", "")) not in HALF:
        return _by_default(builder, call)
    return _by_default(_Widening(builder), call)


class _Widening:
    """A builder whose kernels compute half precision in float32."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def call_te(self, function: Callable[..., Any], *args: Any, **settings: Any) -> relax.Expr:
        name = settings.pop("primfunc_name_hint", getattr(function, "__name__", "kernel"))

        def computed(*tensors: Any, **named: Any) -> Any:
            given = [*tensors, *named.values()]
            dtype = next(str(one.dtype) for one in given if _is_half(one))
            wide = {key: _widened(one) for key, one in named.items()}
            result = function(*(_widened(one) for one in tensors), **wide)
            return topi.cast(result, dtype)

        return self._builder.call_te(computed, *args, primfunc_name_hint=name, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


def _is_half(value: Any) -> bool:
    return isinstance(value, te.Tensor) and str(value.dtype) in HALF


def _widened(value: Any) -> Any:
    return topi.cast(value, "float32") if _is_half(value) else value
