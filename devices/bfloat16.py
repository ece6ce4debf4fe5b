"""Which targets allow that factors of float32 are rounded to bfloat16, and what can do that.

x86 has two ways to multiply pairs of them and add up in float32: an instruction of vectors
(VDPBF16PS, of AVX-512 BF16: Cooper Lake, Zen 4, and later), and matrix registers (AMX), where that
instruction is as well.
"""

from __future__ import annotations

from tunefarm.devices.device import Device
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


def can_round(target: Target, device: Device) -> bool:
    """Whether a processor can do what `target` allows: it has the instruction, and is called what
    the compiler knows to have it."""
    if target.get("precision") is None:
        return True
    return _FEATURE in device.features and multiplies_pairs_of_bfloat16(device.target)


def check_bfloat16(target: Target, device: Device) -> None:
    """Refuse a device that cannot do what `target` allows.

    Raises:
        UnsupportedTarget: `target` allows bfloat16, and the device cannot.
    """
    if not can_round(target, device):
        called = device.target.get("mcpu")
        raise _refused(target, f"{device.id}, built for as {called}, does not multiply bfloat16")


def _refused(target: Target, reason: str) -> UnsupportedTarget:
    return UnsupportedTarget(
        f"target {target.text!r}: {reason}",
        hint="Leave the precision away; cooperlake, sapphirerapids, znver4 and later can.",
    )
