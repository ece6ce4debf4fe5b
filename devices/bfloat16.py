"""Which targets allow that factors of float32 are rounded to bfloat16, and what can do that.

x86 has two ways to multiply pairs of them and add up in float32: an instruction of vectors
(VDPBF16PS, of AVX-512 BF16: Cooper Lake, Zen 4, and later), and matrix registers (AMX), where that
instruction is as well.
"""

from __future__ import annotations

from collections.abc import Collection

from tunefarm.devices.neighbours import multiplies_pairs_of_bfloat16
from tunefarm.devices.target import Target
from tunefarm.errors import UnsupportedTarget

_FEATURE = "avx512_bf16"
"""By the system's name."""


def rounds_factors(target: Target) -> bool:
    """Whether `target` allows that factors of float32 products are rounded to bfloat16, which it
    multiplies.

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    if target.kind != "llvm" or target.get("precision") is None:
        return False
    if not multiplies_pairs_of_bfloat16(target):
        raise _refused(target, "this processor does not multiply bfloat16")
    return True


def can_round(target: Target, features: Collection[str]) -> bool:
    """Whether a processor with these features can do what `target` allows."""
    return target.get("precision") is None or _FEATURE in features


def check_bfloat16(target: Target, features: Collection[str]) -> None:
    """Refuse a device that cannot do what `target` allows.

    Raises:
        UnsupportedTarget: `target` allows bfloat16, and a device with these features cannot.
    """
    if not can_round(target, features):
        reason = "this processor does not multiply bfloat16, or the system keeps that back"
        raise _refused(target, reason)


def _refused(target: Target, reason: str) -> UnsupportedTarget:
    return UnsupportedTarget(
        f"target {target.text!r}: {reason}",
        hint="Leave the precision away; cooperlake, sapphirerapids, znver4 and later can.",
    )
