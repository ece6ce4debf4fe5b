"""What a benchmark's reports say: a row for each runtime. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunefarm.measure.stats import TAIL, Comparison, beyond, compare
from tunefarm.results.bench import BenchProtocol, Entry
from tunefarm.results.bench_round import Report

OURS = "tunefarm"
ENOUGH = 6
"""Processes; with fewer a bootstrap of their median cannot reach 95 %."""


def figures(entries: Sequence[Entry], protocol: BenchProtocol) -> list[dict[str, Any]]:
    """A row for each runtime, in its fastest setting that is right; milliseconds, bytes.

    `ours_faster` is how many times faster tunefarm's artifact is, with its interval; no row has it
    where either side is wrong, and intervals are None with fewer than `ENOUGH` processes.
    """
    best: dict[str, Entry] = {}
    for one in entries:
        known = best.get(one.runtime)
        if known is None or _rank(one) < _rank(known):
            best[one.runtime] = one
    ours = best.get(OURS)
    if ours is not None and (ours.out or not _is_right(ours)):
        ours = None
    return [_row(one, ours, protocol) for one in best.values()]


def summarised(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ours against the best other runtime of each model: the one with the least median.

    Returns:
        `models`: of each, that other runtime (`best`) and how many times faster ours is, both None
        where there is no such pair of right results; `geometric_mean` of those, over how many
        (`counted`), and on how many ours is at least as fast (`won`).
    """
    models = [{"model": one["model"], **_against_best(one["runtimes"])} for one in documents]
    ratios = [one["ours_faster"] for one in models if one["ours_faster"] is not None]
    return {
        "models": models,
        "geometric_mean": float(np.exp(np.mean(np.log(ratios)))) if ratios else None,
        "counted": len(ratios),
        "won": sum(ratio >= 1.0 for ratio in ratios),
    }


def _against_best(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    others = [row for row in rows if "ours_faster" in row]
    if not others:
        return {"best": None, "ours_faster": None}
    best = min(others, key=lambda row: float(row["median_ms"]))
    return {"best": best["runtime"], "ours_faster": best["ours_faster"]["speedup"]}


def _rank(one: Entry) -> tuple[bool, bool, float]:
    if one.out:
        return True, True, 0.0
    return False, not _is_right(one), _median_s(one)


def _median_s(one: Entry) -> float:
    return float(np.median([np.median(_by_turn(report)) for report in one.reports]))


def _by_turn(report: Report) -> list[float]:
    """Median of each turn's samples."""
    return [float(np.median(turn)) for turn in report.turns]


def _error(one: Entry) -> float:
    return max(report.max_rel_err for report in one.reports)


def _is_right(one: Entry) -> bool:
    return all(report.right for report in one.reports)


def _row(one: Entry, ours: Entry | None, protocol: BenchProtocol) -> dict[str, Any]:
    row: dict[str, Any] = {"runtime": one.runtime, "versions": one.versions}
    if one.out:
        return {**row, "out": one.out}
    reports, error = one.reports, _error(one)
    enough = len(reports) >= ENOUGH
    row |= {
        "setting": one.setting,
        "median_ms": _median_s(one) * 1e3,
        "ci95_ms": [s * 1e3 for s in _interval(one, protocol)] if enough else None,
        "p90_ms": _quantile_ms(one, 0.9),
        "p99_ms": _quantile_ms(one, 0.99),
        "compile_s": one.compile_s,
        "load_s": float(np.median([report.load_s for report in reports])),
        "ready_s": float(np.median([report.load_s + report.first_s for report in reports])),
        "first_ms": float(np.median([report.first_s for report in reports])) * 1e3,
        "peak_bytes": max(report.peak_bytes for report in reports),
        "max_rel_err": error if math.isfinite(error) else None,
        "right": _is_right(one),
        "turns": sum(len(report.turns) for report in reports),
        "disturbed": sum(report.disturbed for report in reports),
    }
    if ours is not None and one is not ours and row["right"]:
        found = _compared(one, ours, protocol)
        interval = [found.low, found.high] if enough else None
        row["ours_faster"] = {"speedup": found.speedup, "ci95": interval}
    return row


def _compared(one: Entry, ours: Entry, protocol: BenchProtocol) -> Comparison:
    """Over the turns that both took: who is far slower has had fewer."""
    pairs = [
        zip(_by_turn(theirs), _by_turn(own), strict=False)
        for theirs, own in zip(one.reports, ours.reports, strict=True)
    ]
    base, tuned = zip(*(zip(*pair, strict=True) for pair in pairs), strict=True)
    return compare(
        base,
        tuned,
        confidence=protocol.confidence,
        margin=protocol.margin,
        resamples=protocol.resamples,
        seed=protocol.seed,
    )


def _quantile_ms(one: Entry, quantile: float) -> float | None:
    """Of inferences; None where samples are means of several, or where too few lie beyond it, or in
    too few turns: those of one turn have its luck in common."""
    if any(report.calls > 1 for report in one.reports):
        return None
    turns = [turn for report in one.reports for turn in report.turns]
    found = beyond([sample for turn in turns for sample in turn], quantile)
    if found is None or sum(max(turn) >= found for turn in turns) < TAIL:
        return None
    return found * 1e3


def _interval(one: Entry, protocol: BenchProtocol) -> tuple[float, float]:
    """Of the median of the processes' medians, by a bootstrap over processes."""
    medians = np.array([np.median(_by_turn(report)) for report in one.reports])
    rng = np.random.default_rng(protocol.seed)
    drawn = rng.choice(medians, size=(protocol.resamples, len(medians)))
    tail = (1 - protocol.confidence) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return float(low), float(high)
