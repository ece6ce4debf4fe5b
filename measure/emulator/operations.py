"""Instructions that compute: of values alone, thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.emulator.faults import Unsupported
from tunefarm.measure.emulator.ptx import SIZES
from tunefarm.measure.emulator.values import (
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
    if make is None:
        raise Unsupported(".".join(parts))
    try:
        return make(parts)
    except (KeyError, ValueError) as error:
        raise Unsupported(".".join(parts)) from error


def _is_float(kind: str) -> bool:
    return "f" in kind


def _same(count: int, whole: Any, real: Any = None) -> Callable[[tuple[str, ...]], Operation]:
    """Of `count` operands of the type that the name ends with, and of the same result."""

    def make(parts: tuple[str, ...]) -> Operation:
        kind = parts[-1]
        function = real if _is_float(kind) and real is not None else whole
        if function is None:
            raise KeyError(kind)
        if kind in ("f16", "bf16", "f16x2", "bf16x2"):
            return Operation((kind,) * count, kind, _through(kind, function))
        if "sat" in parts and _is_float(kind):
            return Operation((kind,) * count, kind, lambda *v: np.clip(function(*v), 0, 1))
        return Operation((kind,) * count, kind, function)

    return make


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
    """Rounded twice, once more than by a GPU."""
    return a * b + c


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
                value = np.clip(value, 0, 1)
            return packed(to, value.astype(np.float64 if to == "f64" else np.float32))
        dtype = DTYPES[to]
        if _is_float(of) or saturates:  # what does not fit becomes what is next to it
            limits = np.iinfo(dtype)
            wide = value.astype(np.float64) if _is_float(of) else value.astype(np.int64)
            clipped = np.clip(np.nan_to_num(wide, nan=0.0), limits.min, limits.max)
            return clipped.astype(np.int64 if limits.max < 2**63 else np.uint64).astype(dtype)
        return value.astype(dtype)

    return Operation((of,), to, convert)


def _bits_of(a: Array, start: Array, length: Array) -> Array:
    wide, start = a.astype(np.int64) & np.int64(0xFFFFFFFF), start & np.uint32(0xFF)
    length = np.minimum(length & np.uint32(0xFF), 32).astype(np.int64)
    found = (wide >> start.astype(np.int64)) & ((np.int64(1) << length) - 1)
    if a.dtype.kind == "i":
        sign = (found >> np.maximum(length - 1, 0)) & 1
        found = np.where(sign == 1, found - (np.int64(1) << length), found)
    return found.astype(a.dtype)


def _with_bits(a: Array, b: Array, start: Array, length: Array) -> Array:
    start = (start & np.uint32(0xFF)).astype(np.uint64)
    length = np.minimum(length & np.uint32(0xFF), 32).astype(np.uint64)
    mask = ((np.uint64(1) << length) - np.uint64(1)) << start
    kept = b.astype(np.uint64) & ~mask
    return (kept | ((a.astype(np.uint64) << start) & mask)).astype(a.dtype)


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
    made = np.zeros_like(a)
    for position in range(32):
        made = made | ((a >> np.uint32(position) & np.uint32(1)) << np.uint32(31 - position))
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
    "bfe": lambda p: Operation((p[-1], "u32", "u32"), p[-1], _bits_of),
    "bfi": lambda p: Operation(("b32", "b32", "u32", "u32"), "b32", _with_bits),
    "prmt": lambda _: Operation(("b32", "b32", "b32"), "b32", _permuted),
    "lop3": lambda _: Operation(("b32", "b32", "b32", "b32"), "b32", _looked_up),
    "dp4a": _dot,
    "dp2a": _dot,
    "popc": _counted,
    "clz": _counted,
    "brev": lambda _: Operation(("b32",), "b32", _reversed_bits),
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
