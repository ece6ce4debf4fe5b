"""Instructions that compute: of values alone, thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import Unsupported
from tunefarm.measure.cuda.emulator.ptx import SIZES
from tunefarm.measure.cuda.emulator.values import (
    DTYPES,
    SIGNED,
    UNSIGNED,
    Array,
    packed,
    to_bfloat,
    to_half,
    to_tf32,
    unpacked,
)


@dataclass(frozen=True)
class Operation:
    """`takes`: types of its operands; `gives`: of its result; `compute`: of arrays as `DTYPES` has
    them."""

    takes: tuple[str, ...]
    gives: str
    compute: Callable[..., Array]


def operation(parts: tuple[str, ...]) -> Operation:
    """What an instruction of that name does.

    Raises:
        Unsupported: it is not known.
    """
    make = _KNOWN.get(parts[0])
    real = _is_float(parts[-1])
    if make is None or not _REFUSED.isdisjoint(parts) or (real and not _DIRECTED.isdisjoint(parts)):
        raise Unsupported(".".join(parts))
    try:
        return make(parts)
    except (KeyError, ValueError) as error:
        raise Unsupported(".".join(parts)) from error


_REFUSED = {"relu", "cc", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}
"""What changes the result and is not done here."""
_DIRECTED = {"rz", "rm", "rp"}
"""Roundings of floating-point numbers other than to the nearest."""


def _is_float(kind: str) -> bool:
    return "f" in kind


def _same(count: int, whole: Any, real: Any = None) -> Callable[[tuple[str, ...]], Operation]:
    """Of `count` operands of the type that the name ends with, and of the same result."""

    def make(parts: tuple[str, ...]) -> Operation:
        kind = parts[-1]
        function = real if _is_float(kind) and real is not None else whole
        if function is None:
            raise KeyError(kind)
        if "sat" in parts:
            if kind != "f32":
                raise KeyError("sat")
            return Operation((kind,) * count, kind, lambda *v: _saturated(function(*v)))
        if kind in ("f16", "bf16", "f16x2", "bf16x2"):
            return Operation((kind,) * count, kind, _through(kind, function))
        return Operation((kind,) * count, kind, function)

    return make


def _saturated(value: Array) -> Array:
    """Between 0 and 1; what is not a number is 0."""
    return np.fmin(np.fmax(value, value.dtype.type(0)), value.dtype.type(1))


def _through(kind: str, function: Any) -> Callable[..., Array]:
    return lambda *values: packed(kind, function(*(unpacked(kind, v) for v in values)))


def _quotient(a: Array, b: Array) -> Array:
    """Towards zero."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a, a // np.where(b == 0, 1, b).astype(b.dtype))
    wide = np.abs(a.astype(np.int64)) // np.maximum(np.abs(b.astype(np.int64)), 1)
    return (wide * np.sign(a) * np.sign(b)).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return (a - _quotient(a, b) * b).astype(a.dtype)


def _wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def _product(parts: tuple[str, ...]) -> Operation:
    kind = parts[-1]
    if _is_float(kind):
        return _same(2, None, np.multiply)(parts)
    if "wide" in parts:
        wide = DTYPES[_wide(kind)]
        return Operation((kind, kind), _wide(kind), lambda a, b: a.astype(wide) * b.astype(wide))
    if "hi" in parts:
        return Operation((kind, kind), kind, _high)
    return Operation((kind, kind), kind, lambda a, b: a * b)


def _high(a: Array, b: Array) -> Array:
    size = a.dtype.itemsize
    if size == 8:
        made = [int(x) * int(y) >> 64 for x, y in np.broadcast(a, b)]
        shape = np.broadcast(a, b).shape
        return np.array([m & (2**64 - 1) for m in made], np.uint64).reshape(shape).view(a.dtype)
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return ((a.astype(wide) * b.astype(wide)) >> wide(8 * size)).astype(a.dtype)


def _multiply_add(parts: tuple[str, ...]) -> Operation:
    kind = parts[-1]
    if _is_float(kind):
        return _same(3, None, _fused)(parts)
    times = _product(parts)
    return Operation(
        (kind, kind, times.gives), times.gives, lambda a, b, c: times.compute(a, b) + c
    )


def _fused(a: Array, b: Array, c: Array) -> Array:
    """Rounded once, as by a GPU: of numbers in single precision the product is exact in double, and
    the sum as good as exact. In double precision it is rounded twice."""
    if a.dtype == np.float64:
        return a * b + c
    return (a.astype(np.float64) * b + c).astype(a.dtype)


def _shift(parts: tuple[str, ...]) -> Operation:
    kind = parts[-1]
    bits = 8 * SIZES[kind]
    if parts[0] == "shl":

        def shift(a: Array, by: Array) -> Array:
            moved = a << np.minimum(by, bits - 1).astype(a.dtype)
            return np.where(by < bits, moved, a.dtype.type(0))
    else:

        def shift(a: Array, by: Array) -> Array:
            moved = a >> np.minimum(by, bits - 1).astype(a.dtype)
            return moved if a.dtype.kind == "i" else np.where(by < bits, moved, a.dtype.type(0))

    return Operation((kind, "u32"), kind, shift)


def _funnel(parts: tuple[str, ...]) -> Operation:
    """shf: 32 bits out of 64."""
    left, wraps = "l" in parts, "wrap" in parts

    def shift(low: Array, high: Array, by: Array) -> Array:
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        by = (by & np.uint32(31) if wraps else np.minimum(by, 32)).astype(np.uint64)
        moved = (both << by) >> np.uint64(32) if left else both >> by
        return moved.astype(np.uint32)

    return Operation(("b32", "b32", "u32"), "b32", shift)


_COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
COMBINED: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""How several threads' values become one."""
_JOINED: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _comparison(parts: tuple[str, ...]) -> Operation:
    kind, how = parts[-1], parts[1]
    unordered = _is_float(kind) and len(how) == 3 and how.endswith("u")
    compare = _COMPARED[how[:-1] if unordered else how]
    join = next((_JOINED[p] for p in parts[2:-1] if p in _JOINED), None)

    def compute(a: Array, b: Array, *c: Array) -> Array:
        a, b = unpacked(kind, a), unpacked(kind, b)
        made = compare(a, b)
        if _is_float(kind) and how == "ne":  # of what is not a number nothing is true
            made = made & ~(np.isnan(a) | np.isnan(b))
        if unordered:
            made = made | np.isnan(a) | np.isnan(b)
        return join(made, *c) if join else made

    return Operation((kind, kind, *(("pred",) if join else ())), "pred", compute)


def _chosen(parts: tuple[str, ...]) -> Operation:
    kind = parts[-1]
    return Operation((kind, kind, "pred"), kind, lambda a, b, c: np.where(c, a, b))


_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _conversion(parts: tuple[str, ...]) -> Operation:
    to, of = parts[-2:]
    saturates, whole = "sat" in parts, next((p for p in parts if p in _ROUNDED), None)
    if to in ("f16x2", "bf16x2"):
        single = to_half if to == "f16x2" else to_bfloat

        def pair(high: Array, low: Array) -> Array:
            upper = single(high).astype(np.uint32) << np.uint32(16)
            return upper | single(low).astype(np.uint32)

        return Operation((of, of), to, pair)
    if to == "tf32":
        return Operation((of,), to, to_tf32)

    def convert(value: Array) -> Array:
        value = unpacked(of, value)
        if whole is not None:
            value = _ROUNDED[whole](value)
        if _is_float(to):
            if saturates:
                value = _saturated(value)
            return packed(to, value.astype(np.float64 if to == "f64" else np.float32))
        dtype = DTYPES[to]
        if _is_float(of) or saturates:  # what does not fit becomes what is next to it
            limits = np.iinfo(dtype)
            wide = value.astype(np.float64) if _is_float(of) else value.astype(np.int64)
            made = np.clip(np.nan_to_num(wide, nan=0.0), limits.min, limits.max).astype(dtype)
            # In float64 the largest number of 64 bits is one too many.
            return np.where(wide >= limits.max, dtype(limits.max), made)
        return value.astype(dtype)

    return Operation((of,), to, convert)


def _field(parts: tuple[str, ...]) -> Operation:
    """bfe: some of its bits, signed by the last of them; bfi: some of its bits replaced."""
    kind = parts[-1]
    bits = 8 * SIZES[kind]
    whole = UNSIGNED[SIZES[kind]]

    def masked(start: Array, length: Array) -> tuple[Array, Array]:
        start, length = (one & np.uint32(0xFF) for one in (start, length))
        length = np.minimum(length, bits).astype(np.uint64)
        ones = np.where(length >= 64, ~np.uint64(0), (np.uint64(1) << length) - np.uint64(1))
        return start.astype(np.uint64), ones.astype(whole)

    def shifted(value: Array, start: Array, left: bool) -> Array:
        by = np.minimum(start, bits - 1).astype(whole)
        return np.where(start < bits, value << by if left else value >> by, whole(0))

    def extracted(a: Array, start: Array, length: Array) -> Array:
        first, ones = masked(start, length)
        value = a.view(whole)
        found = shifted(value, first, left=False) & ones
        if a.dtype.kind == "u":
            return found
        count = np.minimum(length & np.uint32(0xFF), bits)
        last = np.minimum(first.astype(np.int64) + count.astype(np.int64) - 1, bits - 1)
        sign = (value >> np.maximum(last, 0).astype(whole)) & whole(1)
        return np.where((sign == 1) & (count > 0), found | ~ones, found).view(a.dtype)

    def inserted(a: Array, b: Array, start: Array, length: Array) -> Array:
        first, ones = masked(start, length)
        where = shifted(ones, first, left=True)
        return (b & ~where) | (shifted(a, first, left=True) & where)

    if parts[0] == "bfe":
        return Operation((kind, "u32", "u32"), kind, extracted)
    return Operation((kind, kind, "u32", "u32"), kind, inserted)


def _permuted(a: Array, b: Array, how: Array) -> Array:
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    made: Array = np.uint32(0)
    for number in range(4):
        chosen = (how >> np.uint32(4 * number)) & np.uint32(0xF)
        byte = (both >> ((chosen & np.uint32(7)).astype(np.uint64) * np.uint64(8))) & np.uint64(
            0xFF
        )
        sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        byte = np.where(chosen & np.uint32(8), sign, byte)
        made = made | (byte.astype(np.uint32) << np.uint32(8 * number))
    return made


def _looked_up(a: Array, b: Array, c: Array, table: Array) -> Array:
    """lop3: bit by bit, whatever function of three bits `table` says."""
    made: Array = np.uint32(0)
    number = int(np.asarray(table).flat[0])
    for row in range(8):
        if number >> row & 1:
            made = made | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
    return made


def _dot(parts: tuple[str, ...]) -> Operation:
    """dp4a: four products of bytes; dp2a: two of a half word and a byte."""
    left, right = parts[-2:]
    four, low = parts[0] == "dp4a", "lo" in parts

    def bytes_of(word: Array, kind: str, count: int, first: int) -> list[Array]:
        size = 8 if count == 4 else 16
        dtype = (SIGNED if kind == "s32" else UNSIGNED)[size // 8]
        return [
            (word >> np.uint32(size * n)).astype(UNSIGNED[size // 8]).view(dtype).astype(np.int64)
            for n in range(first, first + (4 if four else 2))
        ]

    def compute(a: Array, b: Array, c: Array) -> Array:
        lefts = bytes_of(a, left, 4 if four else 2, 0)
        rights = bytes_of(b, right, 4, 0 if four or low else 2)
        total = sum((x * y for x, y in zip(lefts, rights, strict=True)), c.astype(np.int64))
        return total.astype(np.uint32)

    return Operation(("b32", "b32", "s32"), "b32", compute)


def _counted(parts: tuple[str, ...]) -> Operation:
    kind = parts[-1]
    if parts[0] == "popc":
        return Operation((kind,), "u32", lambda a: np.bitwise_count(a).astype(np.uint32))
    bits = 8 * SIZES[kind]

    def leading(a: Array) -> Array:
        left = np.full(a.shape, bits, np.uint32)
        for position in range(bits):
            left = np.where(
                a >> a.dtype.type(position) & a.dtype.type(1), bits - 1 - position, left
            )
        return left.astype(np.uint32)

    return Operation((kind,), "u32", leading)


def _reversed_bits(a: Array) -> Array:
    made, size, whole = np.zeros_like(a), 8 * a.dtype.itemsize, a.dtype.type
    for position in range(size):
        made = made | ((a >> whole(position) & whole(1)) << whole(size - 1 - position))
    return made


def _extreme(whole: Any, real: Any, strict: Any) -> Callable[[tuple[str, ...]], Operation]:
    """Of a number and what is none, the number; the contrary where the name says NaN."""

    def make(parts: tuple[str, ...]) -> Operation:
        return _same(2, whole, strict if "NaN" in parts else real)(parts)

    return make


_KNOWN: dict[str, Callable[[tuple[str, ...]], Operation]] = {
    "add": _same(2, np.add, np.add),
    "sub": _same(2, np.subtract, np.subtract),
    "mul": _product,
    "mad": _multiply_add,
    "fma": _multiply_add,
    "div": _same(2, _quotient, np.divide),
    "rem": _same(2, _remainder),
    "min": _extreme(np.minimum, np.fmin, np.minimum),
    "max": _extreme(np.maximum, np.fmax, np.maximum),
    "neg": _same(1, np.negative, np.negative),
    "abs": _same(1, np.abs, np.abs),
    "and": _same(2, np.bitwise_and),
    "or": _same(2, np.bitwise_or),
    "xor": _same(2, np.bitwise_xor),
    "not": _same(1, np.invert),
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "setp": _comparison,
    "selp": _chosen,
    "cvt": _conversion,
    "bfe": _field,
    "bfi": _field,
    "prmt": lambda _: Operation(("b32", "b32", "b32"), "b32", _permuted),
    "lop3": lambda _: Operation(("b32", "b32", "b32", "b32"), "b32", _looked_up),
    "dp4a": _dot,
    "dp2a": _dot,
    "popc": _counted,
    "clz": _counted,
    "brev": lambda p: Operation((p[-1],), p[-1], _reversed_bits),
    "rcp": _same(1, None, lambda a: a.dtype.type(1) / a),
    "sqrt": _same(1, None, np.sqrt),
    "rsqrt": _same(1, None, lambda a: a.dtype.type(1) / np.sqrt(a)),
    "sin": _same(1, None, np.sin),
    "cos": _same(1, None, np.cos),
    "lg2": _same(1, None, np.log2),
    "ex2": _same(1, None, np.exp2),
    "tanh": _same(1, None, np.tanh),
    "copysign": _same(2, None, lambda a, b: np.copysign(b, a)),
}
