"""Who races, who won, and what the held-out run says. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Comparison, compare, compare_apart

Runs = Mapping[int, Sequence[float]]
"""Samples in seconds per call, by the number of the process that took them."""
Samples = Mapping[str, Runs]
"""By candidate."""


def finalists(screened: Mapping[str, float], top: int) -> list[str]:
    """The `top` candidates of a kernel by screened median latency in seconds."""
    return sorted(screened, key=lambda candidate: screened[candidate])[:top]


def race_order(raced: Samples, processes: int) -> dict[str, float]:
    """The candidates with the median of their processes' medians, in seconds, fastest first.

    One that lacks a process (it faulted, or its kernel's race did) is not proven and left out.
    """
    medians = {
        candidate: statistics.median(statistics.median(run) for run in runs.values())
        for candidate, runs in raced.items()
        if _complete(runs, processes)
    }
    return dict(sorted(medians.items(), key=lambda one: one[1]))


def faster_in_all(challenger: Runs, holder: Runs, processes: int) -> bool:
    """Whether the challenger's median is the lower one in every one of the processes."""
    return (
        _complete(challenger, processes)
        and _complete(holder, processes)
        and all(
            statistics.median(challenger[p]) < statistics.median(holder[p])
            for p in range(processes)
        )
    )


def fastest(runs: Runs) -> float:
    """Seconds of the fastest sample of all; infinity of none."""
    return min((sample for run in runs.values() for sample in run), default=math.inf)


def may_be_spared(base: Runs, tuned: Runs, slow_s: float, protocol: Protocol) -> bool:
    """Whether `base` need not be called by further processes: a call of it takes more than `slow_s`
    seconds, enough processes have called it, and by the processes' medians it was far slower in
    each of them than `tuned` was in any."""
    fast, slow = _medians(tuned), _medians(base)
    return (
        bool(fast)
        and len(slow) >= protocol.slow_processes
        and min(slow) > max(slow_s, protocol.truncate_factor * max(fast))
    )


def _was_slow(base: Runs, protocol: Protocol) -> bool:
    """Whether it may have been spared at some time: in enough processes it was slow."""
    slow = [median for median in _medians(base) if median > protocol.screen_s]
    return len(slow) >= protocol.slow_processes


def _medians(runs: Runs) -> list[float]:
    return [statistics.median(run) for run in runs.values() if run]


def judge(base: Runs, tuned: Runs, processes: int, protocol: Protocol) -> Comparison | None:
    """The verdict on fresh samples; None when `tuned` lacks any of the processes, or `base` does,
    and was not spared (see `may_be_spared`)."""
    if not _complete(tuned, processes):
        return None
    if _complete(base, processes):
        return compare(
            [base[p] for p in range(processes)],
            [tuned[p] for p in range(processes)],
            confidence=protocol.confidence,
            margin=protocol.margin,
            resamples=protocol.resamples,
            seed=protocol.seed,
        )
    # Not `may_be_spared` itself: since it was asked, processes may have called `tuned` in a slow
    # phase, and those that were under way, on other units, may have called `base` in a quick one.
    if not _was_slow(base, protocol):
        return None
    called = [run for run in base.values() if run]
    return compare_apart(
        called, list(tuned.values()), confidence=protocol.confidence, margin=protocol.margin
    )


def _complete(runs: Runs, processes: int) -> bool:
    return set(runs) == set(range(processes)) and all(runs.values())
