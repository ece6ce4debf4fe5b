"""Kernels over rows, for tests of how warps hold them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi

from tests.paper_gpu import workload


def _wide(tensor: Any) -> Any:
    return tensor if str(tensor.dtype) == "float32" else topi.cast(tensor, "float32")


def _rounded(tensor: Any, dtype: str) -> Any:
    return tensor if dtype == "float32" else topi.cast(tensor, dtype)


def softmax(dtype: str, *shape: Any, mask: bool = False) -> tvm.IRModule:
    """Along the last dimension; with `mask` of the sum with one that is the same for the dimensions
    between the first and the last."""
    x = te.placeholder(shape, dtype, "x")
    inputs, value = [x], _wide(x)
    if mask:
        m = te.placeholder((shape[0], *[1] * (len(shape) - 2), shape[-1]), dtype, "m")
        inputs, value = [x, m], topi.add(value, _wide(m))
    return workload([*inputs, _rounded(topi.nn.softmax(value, axis=-1), dtype)])


def layer_norm(dtype: str, rows: Any, columns: Any) -> tvm.IRModule:
    x = te.placeholder((rows, columns), dtype, "x")
    scale, shift = (te.placeholder((columns,), dtype, name) for name in ("g", "b"))
    made = topi.nn.layer_norm(*map(_wide, (x, scale, shift)), [1], 1e-5)
    return workload([x, scale, shift, _rounded(made, dtype)])


def spread(dtype: str, rows: int, columns: int) -> tvm.IRModule:
    """Rows brought to the range from nought to one."""
    x = te.placeholder((rows, columns), dtype, "x")
    wide = _wide(x)
    least, most = (f(wide, axis=1, keepdims=True) for f in (topi.min, topi.max))
    made = topi.divide(topi.subtract(wide, least), topi.subtract(most, least))
    return workload([x, _rounded(made, dtype)])


def awkward(kind: str) -> tvm.IRModule:
    """Rows that read an argument at a place of its own: ``first`` (of each row its first element),
    ``each`` (one number for each row), ``halves`` (two arguments side by side), ``turned`` (rows
    that are columns in memory), ``scaled`` (an argument inside the fold)."""
    rows, columns = 33, 100
    x = te.placeholder((rows, columns), "float32", "x")
    inputs = [x]
    value: Any = x
    if kind == "first":
        first = te.compute((rows, 1), lambda i, j: x[i, j], "first")
        value = te.compute(x.shape, lambda i, j: x[i, j] - first[i, 0], "value")
    elif kind == "halves":
        other = te.placeholder((rows, columns), "float32", "other")
        inputs = [x, other]
        value = te.compute(
            (rows, 2 * columns),
            lambda i, j: te.if_then_else(j < columns, x[i, j], other[i, j - columns]),
            "value",
        )
    elif kind == "turned":
        x = te.placeholder((columns, rows), "float32", "x")
        inputs, value = [x], te.compute((rows, columns), lambda i, j: x[j, i], "value")
    if kind == "scaled":
        scale = te.placeholder((rows,), "float32", "scale")
        k = te.reduce_axis((0, columns), "k")
        total = te.compute((rows,), lambda i: te.sum(x[i, k] * scale[i], k), "total")
        return workload([x, scale, te.compute(x.shape, lambda i, j: x[i, j] - total[i], "y")])
    total = topi.sum(value, axis=1, keepdims=True)
    if kind == "each":
        given = te.placeholder((rows, 1), "float32", "given")
        inputs, total = [x, given], topi.add(total, given)
    return workload([*inputs, topi.subtract(value, total)])
