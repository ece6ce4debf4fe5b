"""Which processors multiply matrices in registers of their own: x86 with AMX."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.devices.neighbours import compiled_for
from tunefarm.devices.target import Target

REGISTERS = 8
ROWS = 16
"""Of a register, at most."""
ROW_BYTES = 64
"""Of a row, at most."""
COLUMNS = ROW_BYTES // 4
"""Of sums of 32 bits in a register."""


@lru_cache(maxsize=16)
def multiplies_matrices(target: Target) -> bool:
    """Whether it does so with numbers of 8 bits, added up four at a time."""
    return _has("amx-int8", target)


@lru_cache(maxsize=16)
def multiplies_halves(target: Target) -> bool:
    """Whether it does so with pairs of bfloat16, added up in float32."""
    return _has("amx-bf16", target)


def _has(feature: str, target: Target) -> bool:
    return target.kind == "llvm" and compiled_for(target, feature)
