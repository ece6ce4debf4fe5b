"""Which processors multiply neighbouring numbers at once and add them to a sum of 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunefarm.devices.target import Target

Groups = tuple[int, ...]
"""How terms are added up at once, outermost first."""
FOURS: Groups = (4,)
"""Four of 8 bits."""
PAIRS: Groups = (2,)
"""Two of 16 bits, integers or bfloat16."""
NARROW: Groups = (2, 2)
"""Two pairs of 8 bits, each of which is added up in 16 bits first: where it fits them."""


def steps_of(groups: Groups) -> Groups:
    """Terms from one place along each axis of a group to the next."""
    return tuple(prod(groups[axis + 1 :]) for axis in range(len(groups)))


@dataclass(frozen=True)
class Neighbours:
    """How a processor multiplies integers.

    Attributes:
        groups: that it has instructions for, best first.
        lanes: sums of its widest vector.
    """

    groups: tuple[Groups, ...]
    lanes: int


_BEST_FIRST = (
    ("avx512vnni", Neighbours((FOURS,), 16)),
    ("avxvnni", Neighbours((FOURS,), 8)),
    ("avx512bw", Neighbours((NARROW, PAIRS), 16)),
    ("avx2", Neighbours((NARROW, PAIRS), 8)),
    ("ssse3", Neighbours((NARROW, PAIRS), 4)),
    ("sse2", Neighbours((PAIRS,), 4)),
)
"""By the compiler's name of the feature."""


@lru_cache(maxsize=16)
def neighbours_of(target: Target) -> Neighbours | None:
    """None where it has no such instruction."""
    if target.kind != "llvm":
        return None
    return next((how for name, how in _BEST_FIRST if compiled_for(target, name)), None)


@lru_cache(maxsize=16)
def multiplies_pairs_of_bfloat16(target: Target) -> bool:
    """Whether it has an instruction of vectors that adds their products to sums of float32, with
    vectors of every length."""
    return target.kind == "llvm" and all(
        compiled_for(target, name) for name in ("avx512bf16", "avx512vl")
    )


def compiled_for(target: Target, feature: str) -> bool:
    """Whether code for `target`, a processor, may use this feature, by the compiler's name."""
    import tvm
    from tvm.target.codegen import target_has_features

    return bool(target_has_features(feature, tvm.target.Target(target.tvm)))
