"""The same model in several runtimes, side by side: rounds of fresh processes that take turns."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import JobFailed, TunefarmError
from tunefarm.results.bench_round import Contestant, Pace, Report, call, play
from tunefarm.results.runtimes import runtime
from tunefarm.results.runtimes.contract import Runtime, Subject
from tunefarm.results.runtimes.serve import Load, MakeReference, PrepareRuntime


@dataclass(frozen=True)
class BenchProtocol:
    """Stored with the results.

    Attributes:
        processes: fresh ones of each runtime and setting: one in each round.
        seconds: of samples in each; `least` samples at least (see `Contestant.is_due`).
        turn_s: of samples in a row: longer than runtimes' threads take to be at work again, shorter
            than what disturbs a machine lasts.
        prepare_limit_s, measure_limit_s: the most that one answer of a process may take.
        confidence, margin, resamples: see `measure.stats.compare`.
    """

    processes: int = 6
    seconds: float = 2.0
    turn_s: float = 0.05
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
        compile_s: seconds of work ahead of time, None where there is none.
    """

    runtime: str
    setting: str
    versions: dict[str, str]
    out: str = ""
    compile_s: float | None = None
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True)
class Watch:
    """What a benchmark asks and tells while it runs.

    Attributes:
        say: takes a line about what happens now.
        steady: see `bench_round.play`.
        keep: takes all entries after each round: what is measured is not lost.
        near_s: see `serve.Load`.
    """

    say: Callable[[str], None] = lambda _: None
    steady: Callable[[float], bool] = lambda _: True
    keep: Callable[[Sequence[Entry]], None] = lambda _: None
    near_s: float = 0.0


def bench(
    subject: Subject, names: Sequence[str], protocol: BenchProtocol, watch: Watch
) -> list[Entry]:
    """Every entry, in the order of `names`; `subject.directory` gets a directory for each.

    Raises:
        JobFailed: the reference cannot be computed.
    """
    reference = subject.directory / "reference.npz"
    subject.directory.mkdir(parents=True, exist_ok=True)
    watch.say("reference")
    request = MakeReference(subject, protocol.seed, reference)
    failed = call(request, {}, protocol.prepare_limit_s)
    if isinstance(failed, str):
        raise JobFailed(f"{subject.model}: ONNX Runtime cannot run it: {failed}")
    entries = [one for name in names for one in _prepared(name, subject, protocol, watch)]
    for number in range(protocol.processes):
        entries = _round(entries, number, subject, reference, protocol, watch)
        watch.keep(entries)
    return entries


def _round(
    entries: list[Entry],
    number: int,
    subject: Subject,
    reference: Path,
    protocol: BenchProtocol,
    watch: Watch,
) -> list[Entry]:
    """With a report more of each that is not out."""
    places = [place for place, one in enumerate(entries) if not one.out]
    contestants = [
        _contestant(entries[place], subject, reference, protocol, watch) for place in places
    ]
    reports = play(
        contestants,
        Pace(protocol.seconds, protocol.least, protocol.turn_s),
        random.Random(f"{protocol.seed} {number}"),
        watch.steady,
        lambda name: watch.say(f"{number + 1}/{protocol.processes}  {name}"),
    )
    found = list(entries)
    for place, contestant, report in zip(places, contestants, reports, strict=True):
        one = entries[place]
        if report is None:
            found[place] = dataclasses.replace(one, out=contestant.out)
        else:
            found[place] = dataclasses.replace(one, reports=(*one.reports, report))
    return found


def _contestant(
    entry: Entry, subject: Subject, reference: Path, protocol: BenchProtocol, watch: Watch
) -> Contestant:
    load = Load(
        entry.runtime,
        entry.setting,
        _own(subject, entry.runtime, entry.setting),
        protocol.seed,
        reference,
        protocol.seconds,
        watch.near_s,
    )
    environment = runtime(entry.runtime).environment(subject.threads)
    name = f"{entry.runtime} {entry.setting}"
    return Contestant(name, load, environment, protocol.measure_limit_s)


def _own(subject: Subject, name: str, setting: str) -> Subject:
    return dataclasses.replace(subject, directory=subject.directory / f"{name}-{setting}")


def _prepared(name: str, subject: Subject, protocol: BenchProtocol, watch: Watch) -> list[Entry]:
    adapter = runtime(name)
    missing = adapter.missing(subject)
    if missing:
        return [Entry(name, "", {}, out=f"skipped: {missing}")]
    found = []
    for setting in adapter.settings:
        one = Entry(name, setting, adapter.versions(), compile_s=_prepared_s(adapter, subject))
        if not adapter.prepares:
            found.append(one)
            continue
        watch.say(f"preparing {name} {setting}")
        request = PrepareRuntime(name, setting, _own(subject, name, setting))
        started = time.perf_counter()
        failed = call(request, {}, protocol.prepare_limit_s)
        took = time.perf_counter() - started
        out = f"failed: {failed}" if isinstance(failed, str) else ""
        found.append(dataclasses.replace(one, out=out, compile_s=took))
    return found


def _prepared_s(adapter: Runtime, subject: Subject) -> float | None:
    try:
        return adapter.prepared_s(subject)
    except TunefarmError:
        return None  # whoever loads it will say what is wrong
