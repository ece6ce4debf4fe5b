"""Which processors multiply matrices in registers of their own: x86 with AMX."""

from __future__ import annotations

from functools import lru_cache

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
    if target.kind != "llvm":
        return False
    import tvm
    from tvm.target.codegen import target_has_features

    return bool(target_has_features("amx-int8", tvm.target.Target(target.tvm)))
