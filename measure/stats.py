"""What a set of samples says: intervals of a ratio, and verdicts. Pure."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Processes = Sequence[Sequence[float]]
"""Samples in seconds, by process."""


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
) -> Comparison | None:
    """The same of sides that may have been measured in different processes, and in different
    numbers of them.

    The interval is that of the rank sum test: of all ratios of a process's median of one side to
    one of the other, in their order, so many are left out at both ends that between the rest lies
    the true ratio with at least this confidence, however the medians are distributed, if but for
    that ratio both sides' are distributed alike. It is wider than a bootstrap's of pairs.

    Sources: Hodges & Lehmann, Estimates of Location Based on Rank Tests, Ann. Math. Statist. 34,
    1963; Hollander & Wolfe, Nonparametric Statistical Methods, 4.3.

    Returns:
        None where with so few processes no interval is that certain.
    """
    sides = [[float(np.median(s)) for s in side] for side in (base, tuned)]
    out = _left_out(len(base), len(tuned), (1 - confidence) / 2)
    if out is None:
        return None
    ratios = sorted(one / other for one in sides[0] for other in sides[1])
    low, high = ratios[out], ratios[-1 - out]
    base_s, tuned_s = _median(base), _median(tuned)
    return Comparison(base_s, tuned_s, base_s / tuned_s, low, high, verdict(low, high, margin))


def _left_out(first: int, second: int, tail: float) -> int | None:
    """Pairs at either end of all in order that together are no likelier than `tail` to have the
    truth beyond them; None where even the outermost is likelier to."""
    all_orders = math.comb(first + second, first)
    orders, pairs = 0, 0
    while (orders := orders + _orders(first, second, pairs)) <= tail * all_orders:
        pairs += 1
    return pairs - 1 if pairs else None


@functools.cache
def _orders(first: int, second: int, before: int) -> int:
    """In how many orders of `first` and `second` things exactly `before` pairs have the second's
    before the first's."""
    if before < 0:
        return 0
    if not first or not second:
        return int(before == 0)
    return _orders(first - 1, second, before - second) + _orders(first, second - 1, before)


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
