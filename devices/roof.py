"""What a device can do at best, and so how little time a kernel can take on it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Roof:
    """Measured on the device itself.

    Attributes:
        flops: floating-point operations a second (float32, a multiply-add is two).
        bandwidth: (bytes touched, bytes a second), ascending: caches are faster than memory.
    """

    flops: float
    bandwidth: tuple[tuple[int, float], ...]

    def bytes_per_s(self, footprint: int) -> float:
        """Of a kernel that touches `footprint` bytes: never less than it could have, and no bound
        at all below the smallest that was measured."""
        smaller = [speed for size, speed in self.bandwidth if size <= footprint]
        return smaller[-1] if smaller else math.inf

    def floor_s(self, flops: float, bytes_moved: float) -> float:
        """Seconds that a kernel of so much work takes at the very least.

        A kernel that only reads may be a third faster than the sum that was measured, whose stores
        read what they overwrite.

        Source: the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009.
        """
        return max(flops / self.flops, 0.75 * bytes_moved / self.bytes_per_s(int(bytes_moved)))

    def words(self) -> str:
        speeds = "/".join(f"{speed / 1e9:.0f}" for _, speed in self.bandwidth)
        return f"at best {self.flops / 1e9:.0f} GFLOP/s, {speeds} GB/s (cache to memory)"

    def to_dict(self) -> dict[str, Any]:
        return {"flops": self.flops, "bandwidth": [list(pair) for pair in self.bandwidth]}


def roof_from_dict(data: dict[str, Any]) -> Roof:
    """Raises: KeyError, TypeError, ValueError where `data` is no roof."""
    pairs = sorted((int(size), float(speed)) for size, speed in data["bandwidth"])
    roof = Roof(float(data["flops"]), tuple(pairs))
    if not pairs or min(roof.flops, *(speed for _, speed in pairs)) <= 0:
        raise ValueError("a roof of nothing")
    return roof
