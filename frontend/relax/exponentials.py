"""Exponentials as polynomials, in vectors: a library's are called once for every element.

exp(x) = 2^n exp(f), where n is the integer nearest to x / ln 2 and f what is left, at most half of
ln 2: a polynomial of f, and n added to the exponent's bits (the reduction of Cephes, with ln 2 in
one part). The polynomial is the one of degree five that is 1 at 0 and has the least relative error,
9.2e-8 (found by Lawson's iteration; rounding to single precision makes it 9.3e-8). With fused
multiply-adds in single precision the whole is off by at most 4e-7 of the result, 2e-7 for |x| < 10;
below -87.7 it is 0, and above 88.37, where exp goes on to 3.4e38 and then to infinity, it stays at
2.4e38. What is not a number stays so.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import Call
from tvm_ffi import structural_map

_COEFFICIENTS = (
    1.0,
    0.9999997019767761,
    0.4999914765357971,
    0.1666763871908188,
    0.04189816117286682,
    0.008290272206068039,
)
"""Of rising powers; exact in single precision."""
_LEAST, _MOST = -88.0, 88.376
_LN2 = 0.6931471805599453


def exponentials(function: Any) -> tuple[Any, int]:
    """Exponentials and logistic functions in single precision as polynomials, and how many there
    were."""
    count = 0

    def rewritten(call: Any) -> Any:
        nonlocal count
        name = str(getattr(call.op, "name", "")).rpartition(".")[2]
        if name not in ("exp", "sigmoid") or str(call.ty) != "float32":
            return call
        count += 1
        (x,) = call.args
        return exponential(x) if name == "exp" else _float(1.0) / (exponential(-x) + _float(1.0))

    body = structural_map(function.body, (Call, rewritten))
    return (function.with_body(body) if count else function), count


def exponential(x: Any) -> Any:
    """exp(`x`), see above; `x` in single precision."""
    # In this order of arguments what is not a number is the larger and the smaller one.
    x = tirx.max(_float(_LEAST), tirx.min(_float(_MOST), x))
    n = tirx.floor(x * _float(1 / _LN2) + _float(0.5))
    f = x - n * _float(_LN2)
    *lower, value = map(_float, _COEFFICIENTS)
    for coefficient in reversed(lower):
        value = value * f + coefficient
    bits = (tirx.Cast("int32", n) + tirx.const(127, "int32")) << tirx.const(23, "int32")
    return value * tirx.reinterpret("float32", bits)


def _float(value: float) -> Any:
    return tirx.const(value, "float32")
