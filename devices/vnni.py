"""Which processors multiply four neighbours of 8 bits at once and add them to a sum of 32."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.devices.target import Target

_WIDEST = (("avx512vnni", 16), ("avxvnni", 8))
"""Sums of a vector, by the compiler's name of the feature."""


@lru_cache(maxsize=16)
def sums_of_fours(target: Target) -> int:
    """How many such sums are in its widest vector; 0 where it has no such instruction."""
    if target.kind != "llvm":
        return 0
    import tvm
    from tvm.target.codegen import target_has_features

    compiled = tvm.target.Target(target.tvm)
    return next((n for feature, n in _WIDEST if target_has_features(feature, compiled)), 0)
