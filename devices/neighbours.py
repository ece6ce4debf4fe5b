"""Which processors multiply neighbouring integers at once and add them to a sum of 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tunefarm.devices.target import Target

FOUR, PAIR = 4, 2


@dataclass(frozen=True)
class Neighbours:
    """How a processor multiplies integers.

    Attributes:
        terms: that are added up at once: `FOUR` of 8 bits, or a `PAIR` of 16.
        lanes: such sums of its widest vector.
    """

    terms: int
    lanes: int


_BEST_FIRST = (
    ("avx512vnni", Neighbours(FOUR, 16)),
    ("avxvnni", Neighbours(FOUR, 8)),
    ("avx512bw", Neighbours(PAIR, 16)),
    ("avx2", Neighbours(PAIR, 8)),
    ("sse2", Neighbours(PAIR, 4)),
)
"""By the compiler's name of the feature."""


@lru_cache(maxsize=16)
def neighbours_of(target: Target) -> Neighbours | None:
    """None where it has no such instruction."""
    if target.kind != "llvm":
        return None
    import tvm
    from tvm.target.codegen import target_has_features

    compiled = tvm.target.Target(target.tvm)
    return next((how for name, how in _BEST_FIRST if target_has_features(name, compiled)), None)
