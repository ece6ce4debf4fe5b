"""Which processors multiply matrices in registers of their own: x86 with AMX."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from tunefarm.devices.naming import WITH_MATRICES
from tunefarm.devices.target import Target
from tunefarm.errors import UnsupportedTarget

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
def multiplies_bfloat16(target: Target) -> bool:
    """Whether `target` allows that factors of float32 products are rounded to bfloat16, which it
    multiplies so.

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    if target.kind != "llvm" or target.get("precision") is None:
        return False
    if not _has("amx-bf16", target):
        raise UnsupportedTarget(
            f"target {target.text!r}: this processor has no matrix registers for bfloat16",
            hint=f"Leave the precision away; {', '.join(WITH_MATRICES[:2])} and later have some.",
        )
    return True


def can_round(target: Target, features: Collection[str]) -> bool:
    """Whether a processor with these features can do what `target` allows."""
    return target.get("precision") is None or "amx_bf16" in features


def check_bfloat16(target: Target, features: Collection[str]) -> None:
    """Refuse a device that cannot do what `target` allows.

    Raises:
        UnsupportedTarget: `target` allows bfloat16, and a device with these features cannot.
    """
    if not can_round(target, features):
        raise UnsupportedTarget(
            f"target {target.text!r}: this processor has no matrix registers for bfloat16, or the "
            "system keeps them back",
            hint="Leave the precision away.",
        )


def _has(feature: str, target: Target) -> bool:
    if target.kind != "llvm":
        return False
    import tvm
    from tvm.target.codegen import target_has_features

    return bool(target_has_features(feature, tvm.target.Target(target.tvm)))
