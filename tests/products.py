"""Kernels that are products of matrices, named or drawn, for tests of their tiles."""

from __future__ import annotations

import random
from typing import Any

import tvm
from tvm import te, topi

from tests.paper_gpu import workload

SUMS = {"int8": "int32"}
"""What elements are summed in, where that is not float32."""


def sums(dtype: str) -> str:
    return SUMS.get(dtype, "float32")


def _wide(tensor: Any, indices: tuple[Any, ...], dtype: str) -> Any:
    value = tensor[indices]
    return value if dtype == "float32" else value.astype(sums(dtype))


def _finished(inputs: list[Any], result: Any, dtype: str, after: str) -> tvm.IRModule:
    """`after`: what follows the product: nothing, ``bias`` (and no negative results), ``add``,
    another tensor, or ``cast``, one that is widened for it, before the product is made; floats are
    rounded to `dtype` in the end."""
    if after == "bias":
        bias = te.placeholder((result.shape[-1],), str(result.dtype), "bias")
        inputs = [*inputs, bias]
        result = topi.nn.relu(topi.add(result, bias))
    elif after == "add":
        other = te.placeholder(result.shape, str(result.dtype), "other")
        inputs = [*inputs, other]
        result = topi.multiply(topi.add(result, other), result)
    elif after == "cast":
        other = te.placeholder(result.shape, dtype, "other")
        inputs = [*inputs, other]
        result = topi.add(topi.cast(other, str(result.dtype)), result)
    if dtype in ("float16", "bfloat16"):
        result = topi.cast(result, dtype)
    return workload([*inputs, result])


def _long(sizes: Any) -> tuple[Any, ...]:
    """As imported networks have them: of 64 bits, and so are the indices."""
    return tuple(tvm.tirx.IntImm("int64", size) for size in sizes)


def product(
    dtype: str,
    sizes: tuple[int, int, int],
    turned: tuple[bool, bool] = (False, False),
    batches: int = 0,
    after: str = "",
) -> tvm.IRModule:
    """(rows, columns, depth); `turned`: that operand lies the other way. Sizes are of 64 bits where
    there are batches."""
    rows, columns, depth = _long(sizes) if batches else sizes
    many = _long([batches]) if batches else ()
    left = (depth, rows) if turned[0] else (rows, depth)
    right = (columns, depth) if turned[1] else (depth, columns)
    a, b = (
        te.placeholder((*many, *shape), dtype, name) for shape, name in ((left, "a"), (right, "b"))
    )
    k = te.reduce_axis((0, depth), "k")

    def term(*place: Any) -> Any:
        *which, i, j = place
        one = (*which, *((k, i) if turned[0] else (i, k)))
        other = (*which, *((j, k) if turned[1] else (k, j)))
        return te.sum(_wide(a, one, dtype) * _wide(b, other, dtype), k)

    return _finished([a, b], te.compute((*many, rows, columns), term, "c"), dtype, after)


def attention(dtype: str, batches: int, rows: int, heads: int, depth: int) -> tvm.IRModule:
    """Its scores, of queries and keys whose heads lie side by side in a row."""
    shape = (batches, rows, heads, depth)
    q, k = (te.placeholder(shape, dtype, name) for name in "qk")
    d = te.reduce_axis((0, depth), "d")

    def term(b: Any, h: Any, i: Any, j: Any) -> Any:
        return te.sum(_wide(q, (b, i, h, d), dtype) * _wide(k, (b, j, h, d), dtype), d)

    scores = te.compute((batches, heads, rows, rows), term, "scores")
    return _finished([q, k], scores, dtype, "")


def whole_attention(
    dtype: str,
    batches: int,
    heads: int,
    sizes: tuple[int, int, int, int],
    scores: str = "scale",
    apart: bool = False,
    packed: bool = False,
) -> tvm.IRModule:
    """`sizes`: queries, keys, what both have of, and what values have; heads lie side by side, in
    what goes in and what comes out, or `apart`, keys turned, or queries, keys and values of as many
    elements `packed` in one tensor. `scores`: what is done to them:
    nothing, ``scale``, ``mask``, another tensor added for each head, or one that is the same for
    all: ``causal`` leaves out what is later, ``lowest`` and ``infinite`` the first forty keys by
    such numbers, ``all`` of every third query everything, ``nothing`` by infinity, and weights that
    are no numbers are made nought."""
    rows, keys, depth, columns = _long(sizes)
    many, batches_ = _long([heads, batches])

    def given(name: str, count: Any, size: Any) -> Any:
        if not apart:
            return te.placeholder((batches_, count, many, size), dtype, name)
        shape = (size, count) if name == "k" else (count, size)
        return te.placeholder((batches_, many, *shape), dtype, name)

    q, k, v = given("q", rows, depth), given("k", keys, depth), given("v", keys, columns)
    all_of_them = te.placeholder((batches_, rows, _long([3])[0], many, depth), dtype, "qkv")

    def at(tensor: Any, b: Any, h: Any, line: Any, term: Any) -> Any:
        if packed:
            place = (b, line, [q, k, v].index(tensor), h, term)
            tensor = all_of_them
        elif not apart:
            place = (b, line, h, term)
        else:
            place = (b, h, term, line) if tensor is k else (b, h, line, term)
        return _wide(tensor, place, dtype)

    d, j = te.reduce_axis((0, depth), "d"), te.reduce_axis((0, keys), "j")
    inputs = [all_of_them] if packed else [q, k, v]
    made = te.compute(
        (batches_, many, rows, keys),
        lambda b, h, i, j: te.sum(at(q, b, h, i, d) * at(k, b, h, j, d), d),
        "scores",
    )
    if scores != "":
        made = topi.multiply(made, tvm.tirx.const(float(sizes[2]) ** -0.5, "float32"))
    leaves_out = {
        "causal": lambda i, j: te.if_then_else(j > i, -1e4, 0.0),
        "lowest": lambda i, j: te.if_then_else(j < 40, -3.3895313892515355e38, 0.0),
        "infinite": lambda i, j: te.if_then_else(j < 40, float("-inf"), 0.0),
        "all": lambda i, j: te.if_then_else(i % 3 == 0, -1e9, 0.0),
        "nothing": lambda i, j: te.if_then_else(i % 3 == 0, float("-inf"), 0.0),
    }
    if scores == "mask" or scores in leaves_out:
        shape = (batches_, many, rows, keys) if scores == "mask" else (rows, keys)
        mask = te.placeholder(shape, dtype, "mask")
        inputs.append(mask)
        value = topi.cast(mask, "float32")
        if scores in leaves_out:
            what = leaves_out[scores]
            given_ = value
            value = te.compute(shape, lambda i, j: given_[i, j] + what(i, j), "left_out")
        made = topi.add(made, value)
    weights = topi.nn.softmax(made, axis=-1)
    if scores == "nothing":
        weights = topi.where(topi.isnan(weights), topi.full_like(weights, 0.0), weights)
    weights = topi.cast(weights, dtype)
    mixed = te.compute(
        (batches_, many, rows, columns),
        lambda b, h, i, c: te.sum(weights[b, h, i, j].astype("float32") * at(v, b, h, j, c), j),
        "mixed",
    )
    result = topi.cast(mixed, dtype)
    if not apart:
        result = topi.transpose(result, [0, 2, 1, 3])
        result = topi.reshape(result, (batches_, rows, many * columns))
    return workload([*inputs, result])


def convolution(
    dtype: str,
    image: tuple[int, int, int],
    filters: int,
    taps: int,
    stride: int = 1,
    dilation: int = 1,
    after: str = "",
) -> tvm.IRModule:
    """`image`: rows, columns, channels; padded so that it keeps its size at a stride of one. Sizes
    are of 64 bits."""
    x = te.placeholder(_long([1, *image]), dtype, "x")
    w = te.placeholder(_long([taps, taps, image[-1], filters]), dtype, "w")
    pad = dilation * (taps - 1) // 2
    made = topi.nn.conv2d_nhwc(x, w, stride, pad, dilation, sums(dtype))
    return _finished([x, w], made, dtype, after)


def drawn(rng: random.Random, dtype: str) -> tuple[str, tvm.IRModule]:
    """Of any sizes whose elements can be brought to shared memory, in words and as a kernel."""
    after = rng.choice(["", "", "bias", "add", "cast"])
    if dtype != "int8" and rng.random() < 0.35:
        image = (rng.randint(3, 15), rng.randint(3, 15), rng.choice([3, 4, 8, 16, 24, 32, 72]))
        arguments: tuple[Any, ...] = (
            *(image, rng.choice([4, 8, 16, 36, 64, 96]), rng.choice([1, 1, 3, 5])),
            *(rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), after),
        )
        return f"convolution {dtype} {arguments}", convolution(dtype, *arguments)
    if dtype != "int8" and rng.random() < 0.2:
        whole = (rng.randint(1, 3), rng.randint(1, 150), rng.randint(1, 4), 8 * rng.randint(1, 12))
        return f"attention {dtype} {whole}", attention(dtype, *whole)
    step = rng.choice({"int8": [16], "float32": [4, 8]}.get(dtype, [1, 2, 8]))
    sizes = tuple(step * rng.randint(1, most // step) for most in (160, 160, 400))
    turned = (False, True) if dtype == "int8" else (rng.random() < 0.3, rng.random() < 0.5)
    if dtype == "float32":
        turned = (False, turned[1])
    arguments = (sizes, turned, rng.choice([0, 0, 2, 3]), after)
    return f"product {dtype} {arguments}", product(dtype, *arguments)
