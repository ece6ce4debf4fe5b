"""Units of one kind are not equally fast: their canaries say by how much. Pure.

The canary is the same matrix product on every unit, so that its time on one of them over that on
all is what a kernel's time there is to be divided by, before it is compared with times of others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

MOST = 1.25
"""A unit that is further off than that is not calibrated: something else is the matter with it."""


def factors(canaries: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By unit, what its latencies are to be multiplied by; 1 for those that cannot be told.

    Args:
        canaries: by unit, seconds of its canaries.
    """
    typical = {unit: statistics.median(seconds) for unit, seconds in canaries.items() if seconds}
    if not typical:
        return {}
    middle = statistics.median(typical.values())
    found = {unit: middle / seconds for unit, seconds in typical.items()}
    return {unit: f if 1 / MOST <= f <= MOST else 1.0 for unit, f in found.items()}


def strangers(canaries: Mapping[str, Sequence[float]]) -> list[str]:
    """Units whose canary says that they are not of the others' kind, or not well."""
    typical = {unit: statistics.median(seconds) for unit, seconds in canaries.items() if seconds}
    if len(typical) < 2:
        return []
    middle = statistics.median(typical.values())
    return [u for u, seconds in typical.items() if not 1 / MOST <= middle / seconds <= MOST]
