"""Kernels that `gpu.py` and `gpu_rivals.py` both have; the latter runs where tunefarm is not."""

from __future__ import annotations

PRODUCTS = (1024, 2048, 4096, 8192)
"""Sizes of square matrices."""
CONVOLUTIONS = (
    (56, 64, 64, 3),
    (56, 64, 256, 1),
    (28, 128, 128, 3),
    (14, 256, 256, 3),
    (7, 512, 512, 3),
)
"""Of ResNet-50: rows, channels, filters, taps."""
ATTENTION = (12, 512, 64)
"""Heads, queries (and keys), and what each has."""
LONG_ATTENTION = (16, 4096, 128)
"""The same, in half precision alone: its scores are half a gigabyte where they are stored."""


def said(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
