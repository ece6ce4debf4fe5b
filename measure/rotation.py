"""As cold as in its model: the copies of a kernel's arguments that take turns while it is timed.

Called again and again with the same arguments a kernel finds them in the nearest caches. In its
model it does not: its weights were last read one inference ago, and what it works on was written by
other cores. A schedule that is best with everything at hand may lose there. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

MOST = 64
"""Copies: of what is small, more change nothing."""
BEYOND = 1.25
"""Caches' worth of bytes between two uses of what is to be found in the next cache beyond."""


@dataclass(frozen=True)
class Copies:
    """Of the constants, and of every other argument."""

    constants: int = 1
    others: int = 1

    @property
    def turns(self) -> int:
        """Calls after which both have gone through all their copies at least once."""
        return max(self.constants, self.others)


def copies(constants: int, others: int, between: int, near_bytes: int, far_bytes: int) -> Copies:
    """How many copies make a kernel's arguments as cold as in its model.

    Args:
        constants: bytes of the kernel's packed weights.
        others: bytes of its other arguments.
        between: bytes that an inference reads before it comes to the same weights again; 0 for a
            kernel that is timed for itself.
        near_bytes: of all cores' own caches; what lies farther apart comes from the shared one.
        far_bytes: of the shared cache.
    """
    if not between:
        return Copies()
    return Copies(
        _enough(constants, min(between, round(BEYOND * far_bytes))),
        _enough(others, min(between, round(BEYOND * near_bytes))),
    )


def _enough(size: int, wanted: int) -> int:
    return min(MOST, max(1, ceil(wanted / size))) if size else 1
