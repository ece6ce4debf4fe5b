"""What a set of samples says: intervals of a ratio, and verdicts. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Processes = Sequence[Sequence[float]]
"""Samples in seconds, by process."""
TAIL = 10
"""Samples beyond a quantile; fewer do not tell where it lies."""


class Verdict(enum.StrEnum):
    FASTER = "FASTER"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    SLOWER = "SLOWER"
    UNMEASURED = "UNMEASURED"


@dataclass(frozen=True)
class Comparison:
    """How much faster `tuned` is than `base`; latencies are medians in seconds."""

    base_s: float
    tuned_s: float
    speedup: float
    low: float
    high: float
    verdict: Verdict


def compare(
    base: Processes,
    tuned: Processes,
    *,
    confidence: float,
    margin: float,
    resamples: int,
    seed: int,
    paired: bool = True,
) -> Comparison:
    """The ratio of medians, base over tuned, with its interval.

    The bootstrap is hierarchical, process then round, for a process's samples have its luck
    (memory layout, neighbours) in common; both sides are drawn from the same processes, for they
    ran interleaved. Where both sides have the same number of rounds and were measured in the same
    rounds of the same process (`paired`), rounds are drawn in pairs.

    Sources: Kalibera & Jones, Rigorous Benchmarking in Reasonable Time, ISMM 2013; Bulej et al.,
    Duet Benchmarking, ICPE 2020.

    Raises:
        ValueError: sides with different numbers of processes, or a process without samples.
    """
    if len(base) != len(tuned) or not base or not all(map(len, [*base, *tuned])):
        raise ValueError("both sides need samples from each process")
    ratios = _bootstrap(base, tuned, resamples, paired, np.random.default_rng(seed))
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(ratios, [tail, 1 - tail]))
    base_s, tuned_s = _median(base), _median(tuned)
    return Comparison(base_s, tuned_s, base_s / tuned_s, low, high, verdict(low, high, margin))


def compare_apart(
    base: Processes, tuned: Processes, *, confidence: float, margin: float
) -> Comparison:
    """The same of sides that were measured in different processes, or in different numbers of
    them.

    The interval is Welch's, of the logarithms of the processes' medians: three processes beside six
    are too few for a bootstrap, and a slow kernel's few samples scatter otherwise than a fast one's
    many. With three it is wide.

    Source: Welch, The Generalization of "Student's" Problem when Several Different Population
    Variances are Involved, Biometrika 34, 1947.

    Raises:
        ValueError: a side with less than two processes, or a process without samples.
    """
    if min(len(base), len(tuned)) < 2 or not all(map(len, [*base, *tuned])):
        raise ValueError("both sides need samples from two processes")
    from scipy.stats import t  # half a second to import

    sides = [np.log([np.median(np.asarray(s, dtype=float)) for s in of]) for of in (base, tuned)]
    center = float(sides[0].mean() - sides[1].mean())
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    error = math.sqrt(sum(parts))
    # At the least as many degrees of freedom as the smaller side has; without any scatter, those.
    freedom = min(map(len, sides)) - 1.0
    if error > 0:
        shares = (p**2 / (len(side) - 1) for p, side in zip(parts, sides, strict=True))
        freedom = error**4 / sum(shares)
    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    base_s, tuned_s = _median(base), _median(tuned)
    speedup = base_s / tuned_s
    low, high = min(speedup, math.exp(center - half)), max(speedup, math.exp(center + half))
    return Comparison(base_s, tuned_s, speedup, low, high, verdict(low, high, margin))


def beyond(samples: Sequence[float], quantile: float) -> float | None:
    """What so many of the samples are at most; None where fewer than `TAIL` lie beyond it."""
    if round(len(samples) * (1 - quantile), 6) < TAIL:  # of 100, 0.1 are not quite 10
        return None
    return float(np.quantile(samples, quantile))


def _median(samples: Processes) -> float:
    """The statistic that the interval is of: the median of the processes' medians."""
    return float(np.median([np.median(np.asarray(s, dtype=float)) for s in samples]))


def _bootstrap(
    base: Processes, tuned: Processes, resamples: int, paired: bool, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(resamples,) ratios of medians, each over as many processes as were run."""
    count = len(base)
    chosen = rng.integers(0, count, size=(resamples, count))
    medians = np.empty((2, resamples, count))
    for process, (first, second) in enumerate(zip(base, tuned, strict=True)):
        one, two = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
        drawn = chosen == process
        times = int(drawn.sum())
        rows = rng.integers(0, len(one), size=(times, len(one)))
        same = paired and len(one) == len(two)
        other = rows if same else rng.integers(0, len(two), size=(times, len(two)))
        medians[0][drawn] = np.median(one[rows], axis=1)
        medians[1][drawn] = np.median(two[other], axis=1)
    # Over the drawn processes: one level at a time, so that a process with more rounds does not
    # weigh more.
    sides = np.median(medians, axis=2)
    ratios: NDArray[np.float64] = sides[0] / sides[1]
    return ratios


def verdict(low: float, high: float, margin: float) -> Verdict:
    """From the interval of a speed-up; within `margin` of 1 counts as the same speed."""
    if low > 1 + margin:
        return Verdict.FASTER
    if high < 1 / (1 + margin):
        return Verdict.SLOWER
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return Verdict.SAME
    return Verdict.AMBIGUOUS
