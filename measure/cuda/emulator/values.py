"""What registers hold: arrays over a grid's blocks and a block's threads, (blocks, threads), or of
fewer where all have the same, as NumPy broadcasts."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Array = Any
"""Of NumPy, or one of its scalars."""

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    **{f"{kind}{8 * size}": dtype for kind in "ub" for size, dtype in UNSIGNED.items()},
    **{f"s{8 * size}": dtype for size, dtype in SIGNED.items()},
    "f16": np.uint16,
    "bf16": np.uint16,
    "f16x2": np.uint32,
    "bf16x2": np.uint32,
    "tf32": np.uint32,
    "f32": np.float32,
    "f64": np.float64,
}
"""How a value of each type is kept; of floating-point types that NumPy has not, the bits."""


def spread(value: Array, shape: tuple[int, ...]) -> Array:
    """`value` in all of `shape`: NumPy's own way of it costs ten times what asking does."""
    return value if value.shape == shape else np.broadcast_to(value, shape)


def literal(text: str, kind: str) -> Array:
    """A number as PTX writes it, as `DTYPES` keeps it."""
    dtype = DTYPES[kind]
    if text[:2] in ("0f", "0F"):
        single = np.float32(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
        return dtype(single) if dtype in (np.float32, np.float64) else single.view("u4")
    if text[:2] in ("0d", "0D"):
        double = np.float64(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
        return double if dtype is np.float64 else double.view(np.uint64)
    if dtype is np.bool_:
        return np.bool_(int(text, 0))
    if dtype in (np.float32, np.float64):
        return dtype(float(text))
    bits = int(text.rstrip("Uu"), 0) & ((1 << 8 * dtype().itemsize) - 1)
    unsigned = UNSIGNED[dtype().itemsize](bits)
    return unsigned.view(dtype)


def resized(value: Array, dtype: Any) -> Array:
    """The same bits in `dtype`; of what is wider the low ones, what is narrower extended by its
    sign."""
    if value.dtype == dtype:
        return value
    size = np.dtype(dtype).itemsize
    if value.dtype.itemsize == size and value.dtype != np.bool_:
        return value.view(dtype)
    if value.dtype.kind == "f":
        value = value.view(UNSIGNED[value.dtype.itemsize])
    whole = (SIGNED if value.dtype.kind == "i" else UNSIGNED)[size]
    made = value.astype(whole)
    return made if made.dtype == dtype else made.view(dtype)


def from_half(bits: Array) -> Array:
    return bits.view(np.float16).astype(np.float32)


def to_half(value: Array) -> Array:
    return value.astype(np.float16).view(np.uint16)


def from_bfloat(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat(value: Array) -> Array:
    """Rounded to the nearest, ties to even; what is not a number stays so."""
    bits = value.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)


def to_tf32(value: Array) -> Array:
    """Rounded to ten bits of fraction, ties away from zero, as bits of a float32."""
    bits = value.view(np.uint32)
    return (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def to_tf32_even(value: Array) -> Array:
    """The same, ties to even, as a float32; what is not finite stays as it is."""
    bits = value.view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = (bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(value), rounded, bits).view(np.float32)


def unpacked(kind: str, bits: Array) -> Array:
    """Numbers to compute with, float32 for types of 16 bits; of a pair, with an axis behind."""
    if kind == "f16":
        return from_half(bits)
    if kind == "bf16":
        return from_bfloat(bits)
    if kind in ("f16x2", "bf16x2"):
        low = (bits & np.uint32(0xFFFF)).astype(np.uint16)
        high = (bits >> np.uint32(16)).astype(np.uint16)
        return np.stack([unpacked(kind[:-2], low), unpacked(kind[:-2], high)], -1)
    if kind == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return bits


def packed(kind: str, value: Array) -> Array:
    """The contrary of `unpacked`."""
    if kind == "f16":
        return to_half(value)
    if kind == "bf16":
        return to_bfloat(value)
    if kind in ("f16x2", "bf16x2"):
        halves = packed(kind[:-2], value).astype(np.uint32)
        return halves[..., 0] | (halves[..., 1] << np.uint32(16))
    return value
