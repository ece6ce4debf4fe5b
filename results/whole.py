"""The whole model as the journal knows it: its builds in turns, and as a service has it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from tunefarm.measure.facts import PREVIOUS
from tunefarm.measure.stats import beyond
from tunefarm.results.facts import COLD
from tunefarm.results.journal import Journal

COLUMNS = ["build", "median_ms", "p90_ms", "p99_ms", "load_ms", "first_ms", "peak_mb", "samples"]
SERVICE = ["p90_ms", "p99_ms", "load_ms", "first_ms", "peak_mb"]


def builds(journal: Journal, job: str, target: str) -> pd.DataFrame:
    """One row per build that was measured (``base``, ``tuned``, ``previous``), latencies in
    milliseconds: its median, the median over processes of their medians; of the tuned one, alone,
    the quantiles that there are samples enough for; how long its library and weights took to load,
    unchecked, how long its first answer, and the most memory (MB) that its process had held by
    then, medians over those processes that loaded it before the others."""
    samples = _by_build(journal, job, target, "model")
    tail = _by_build(journal, job, target, "tail")
    cold = _cold(journal, job, target)
    rows = []
    for build in ("base", "tuned", PREVIOUS):
        runs = samples.get(build, [])
        if not runs:
            continue
        alone = tail.get(build, [])
        mine = [one for one in cold if one["build"] == build]
        rows.append(
            {
                "build": build,
                "median_ms": 1e3 * statistics.median(map(statistics.median, runs)),
                "p90_ms": _quantile_ms(alone, 0.9),
                "p99_ms": _quantile_ms(alone, 0.99),
                "load_ms": _median(1e3 * one["load_s"] for one in mine),
                "first_ms": _median(1e3 * one["first_s"] for one in mine),
                "peak_mb": _median(one["peak_bytes"] / 1e6 for one in mine if one["peak_bytes"]),
                "samples": sum(map(len, runs)) + sum(map(len, alone)),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def document(journal: Journal, job: str, target: str) -> list[dict[str, Any]]:
    """`builds`, a dictionary each, None for what is not known."""
    rows = builds(journal, job, target).astype(object)
    found: list[dict[str, Any]] = rows.where(rows.notna(), None).to_dict("records")
    return found


def service(journal: Journal, job: str, target: str, build: str) -> dict[str, float | None] | None:
    """What a service has of one of the builds beside its median; None where it was not measured."""
    row = next((r for r in document(journal, job, target) if r["build"] == build), None)
    if row is None:
        return None
    return {key: None if row[key] is None else round(row[key], 4) for key in SERVICE}


def _by_build(
    journal: Journal, job: str, target: str, stage: str
) -> dict[str, list[tuple[float, ...]]]:
    """Seconds per inference of each process."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for m in journal.measurements(job, target, (stage,)):
        found.setdefault(m.candidate, []).append(m.samples)
    return found


def _cold(journal: Journal, job: str, target: str) -> list[dict[str, Any]]:
    """The first report of each process, as of its samples: what is run again reports again."""
    found: dict[int, dict[str, Any]] = {}
    for event in journal.events(job):
        if event["kind"] == COLD and event["detail"]["target"] == target:
            found.setdefault(event["detail"]["process"], event["detail"])
    return list(found.values())


def _quantile_ms(runs: Sequence[Sequence[float]], quantile: float) -> float | None:
    """Of the runs together, each as long as the shortest, so that one in a slow phase, which has
    fewer samples, counts like the others. None where too few lie beyond it, or all in one run."""
    length = min(map(len, runs), default=0)
    found = beyond([s for run in runs for s in run[:length]], quantile)
    if found is None or sum(max(run[:length]) > found for run in runs) < 2:
        return None
    return 1e3 * found


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None
