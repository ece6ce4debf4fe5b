"""As cold as in its model: the copies of a kernel's arguments that take turns while it is timed.

Called again and again with the same arguments a kernel finds them in the nearest caches. In its
model it does not: its weights were last read one inference ago, and what it works on was written by
other cores. A schedule that is best with everything at hand may lose there. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, lcm

from tunefarm.measure.protocol import Protocol


@dataclass(frozen=True)
class Copies:
    """Of the constants, and of every other argument."""

    constants: int = 1
    others: int = 1

    @property
    def turns(self) -> int:
        """Calls after which both begin again, together: so none is used twice in a row."""
        return lcm(self.constants, self.others)


def copies(
    constants: int,
    others: int,
    between: int,
    near_bytes: int,
    far_bytes: int,
    protocol: Protocol,
) -> Copies:
    """How many copies make a kernel's arguments as cold as in its model.

    Args:
        constants: bytes of the kernel's weights, as it reads them.
        others: bytes of its other arguments.
        between: bytes that an inference reads before it comes to the same weights again; 0 for a
            kernel that is timed for itself.
        near_bytes: of all cores' own caches; what lies farther apart comes from the shared one.
        far_bytes: of the shared cache; no less than the others' where it is not known.
    """
    if not between:
        return Copies()
    beyond_near = round(protocol.beyond * near_bytes)
    beyond_far = max(beyond_near, round(protocol.beyond * far_bytes))
    return Copies(
        _enough(constants, min(between, beyond_far), protocol.most_copies),
        _enough(others, beyond_near, protocol.most_copies),
    )


def _enough(size: int, wanted: int, most: int) -> int:
    return min(most, max(1, ceil(wanted / size))) if size else 1
