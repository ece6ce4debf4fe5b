"""Who races, who won, and what the held-out run says. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Comparison, compare

Samples = Mapping[str, Sequence[Sequence[float]]]
"""By candidate: samples in seconds per call, by process."""


def finalists(screened: Mapping[str, float], top: int) -> list[str]:
    """The `top` candidates of a kernel by screened median latency in seconds."""
    return sorted(screened, key=lambda candidate: screened[candidate])[:top]


def race_winner(raced: Samples, processes: int) -> str | None:
    """The candidate with the lowest median of its processes' medians.

    One that lacks a process (it faulted, or its kernel's race did) is not proven and cannot win.
    """
    complete = {c: runs for c, runs in raced.items() if len(runs) == processes and all(runs)}
    medians = {
        candidate: statistics.median(statistics.median(run) for run in runs)
        for candidate, runs in complete.items()
    }
    return min(medians, key=lambda c: medians[c]) if medians else None


def judge(
    base: Sequence[Sequence[float]], tuned: Sequence[Sequence[float]], protocol: Protocol
) -> Comparison | None:
    """The verdict on fresh samples; None when either side lacks them in any process."""
    if not base or len(base) != len(tuned) or not all(map(len, [*base, *tuned])):
        return None
    return compare(
        base,
        tuned,
        confidence=protocol.confidence,
        margin=protocol.margin,
        resamples=protocol.resamples,
        seed=protocol.seed,
    )
