"""The same model in several runtimes, side by side: fresh processes, in turns."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.errors import JobFailed, TunefarmError, last_line
from tunefarm.measure.stats import compare
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout
from tunefarm.results.runtimes import runtime
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.serve import MakeReference, Measure, PrepareRuntime, Report

HANDLER = "tunefarm.results.runtimes.serve:serve"
OURS = "tunefarm"
PARITY_LIMIT = 1e-3


@dataclass(frozen=True)
class BenchProtocol:
    """Stored with the results.

    Attributes:
        processes: fresh ones of each runtime and setting, in turns with the others'.
        seconds: of samples in each; `least` samples at least.
        prepare_limit_s, measure_limit_s: the most that one process may take.
    """

    processes: int = 6
    seconds: float = 2.0
    least: int = 5
    seed: int = 0
    prepare_limit_s: float = 1800.0
    measure_limit_s: float = 600.0
    confidence: float = 0.95
    margin: float = 0.005
    resamples: int = 10_000


@dataclass(frozen=True)
class Entry:
    """One runtime in one of its settings.

    Attributes:
        out: why there is no result: it is not installed, or it failed; empty where there is one.
        compile_s: work ahead of time, done once.
    """

    runtime: str
    setting: str
    versions: dict[str, str]
    out: str = ""
    compile_s: float = 0.0
    reports: tuple[Report, ...] = ()

    @property
    def median_s(self) -> float:
        return float(np.median([np.median(report.samples) for report in self.reports]))

    @property
    def max_rel_err(self) -> float:
        return max(report.max_rel_err for report in self.reports)


def bench(
    subject: Subject,
    names: Sequence[str],
    protocol: BenchProtocol,
    say: Callable[[str], None],
    wait: Callable[[], None] = lambda: None,
) -> list[Entry]:
    """Every entry, in the order of `names`; `subject.directory` gets a directory for each runtime.

    Args:
        wait: called before each timed process; returns when the machine is all there.

    Raises:
        JobFailed: the reference cannot be computed.
    """
    path = subject.directory / "reference.npz"
    subject.directory.mkdir(parents=True, exist_ok=True)
    say("reference")
    request = MakeReference(subject, protocol.seed, path)
    failed = _call(request, {}, protocol.prepare_limit_s)
    if isinstance(failed, str):
        raise JobFailed(f"{subject.model}: ONNX Runtime cannot run it: {failed}")
    entries = [one for name in names for one in _prepared(name, subject, protocol, say)]
    for process in range(protocol.processes):
        order = [place for place, one in enumerate(entries) if not one.out]
        random.Random(f"{protocol.seed} {process}").shuffle(order)
        for place in order:
            one = entries[place]
            say(f"{process + 1}/{protocol.processes}  {one.runtime} {one.setting}")
            wait()
            entries[place] = _measured(one, subject, path, protocol)
    return entries


def _prepared(
    name: str, subject: Subject, protocol: BenchProtocol, say: Callable[[str], None]
) -> list[Entry]:
    adapter = runtime(name)
    missing = adapter.missing(subject)
    if missing:
        return [Entry(name, "", {}, out=f"skipped: {missing}")]
    say(f"preparing {name}")
    mine = dataclasses.replace(subject, directory=subject.directory / name)
    started = time.perf_counter()
    failed = _call(
        PrepareRuntime(name, mine), adapter.environment(subject.threads), protocol.prepare_limit_s
    )
    compile_s = time.perf_counter() - started
    out = f"failed: {failed}" if isinstance(failed, str) else ""
    versions = adapter.versions()
    return [Entry(name, setting, versions, out, compile_s) for setting in adapter.settings]


def _measured(entry: Entry, subject: Subject, reference: Path, protocol: BenchProtocol) -> Entry:
    mine = dataclasses.replace(subject, directory=subject.directory / entry.runtime)
    request = Measure(
        entry.runtime,
        entry.setting,
        mine,
        protocol.seed,
        reference,
        protocol.seconds,
        protocol.least,
    )
    environment = runtime(entry.runtime).environment(subject.threads)
    report = _call(request, environment, protocol.measure_limit_s)
    if isinstance(report, str):
        return dataclasses.replace(entry, out=f"failed: {report}")
    return dataclasses.replace(entry, reports=(*entry.reports, report))


def _call(request: Any, environment: dict[str, str], limit_s: float) -> Any:
    """The answer of a fresh process, or in one line why there is none."""
    with Child(HANDLER, env=environment) as child:
        try:
            return child.call(request, limit_s)
        except ChildTimeout:
            return f"no answer within {limit_s:g} s"
        except TunefarmError as error:
            return error.message
        except (ChildDied, ChildError) as error:
            return last_line(error, 200)


def figures(entries: Sequence[Entry], protocol: BenchProtocol) -> list[dict[str, Any]]:
    """A row for each runtime, in its best setting; latencies in milliseconds, memory in bytes.

    `ours_faster` is how many times faster tunefarm's artifact is, with its interval.
    """
    best: dict[str, Entry] = {}
    for one in entries:
        known = best.get(one.runtime)
        if known is None or known.out or (not one.out and one.median_s < known.median_s):
            best[one.runtime] = one
    ours = best.get(OURS)
    return [
        _row(one, ours if ours is not None and not ours.out else None, protocol)
        for one in best.values()
    ]


def _row(one: Entry, ours: Entry | None, protocol: BenchProtocol) -> dict[str, Any]:
    row: dict[str, Any] = {"runtime": one.runtime, "versions": one.versions}
    if one.out:
        return {**row, "out": one.out}
    low, high = _interval(one, protocol)
    row |= {
        "setting": one.setting,
        "median_ms": one.median_s * 1e3,
        "ci95_ms": [low * 1e3, high * 1e3],
        "compile_s": one.compile_s,
        "load_s": float(np.median([report.load_s for report in one.reports])),
        "first_ms": float(np.median([report.first_s for report in one.reports])) * 1e3,
        "peak_bytes": max(report.peak_bytes for report in one.reports),
        "max_rel_err": one.max_rel_err,
        "right": one.max_rel_err <= PARITY_LIMIT,
    }
    if ours is not None and one is not ours:
        found = compare(
            [report.samples for report in one.reports],
            [report.samples for report in ours.reports],
            confidence=protocol.confidence,
            margin=protocol.margin,
            resamples=protocol.resamples,
            seed=protocol.seed,
        )
        row["ours_faster"] = [found.speedup, found.low, found.high]
    return row


def _interval(one: Entry, protocol: BenchProtocol) -> tuple[float, float]:
    """Of the median of the processes' medians, by a bootstrap over processes."""
    medians = np.array([np.median(report.samples) for report in one.reports])
    rng = np.random.default_rng(protocol.seed)
    drawn = rng.choice(medians, size=(protocol.resamples, len(medians)))
    tail = (1 - protocol.confidence) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return float(low), float(high)
