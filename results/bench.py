"""The same model in several runtimes, side by side: fresh processes, in turns."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.errors import JobFailed, TunefarmError, last_line
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout
from tunefarm.results.runtimes import runtime
from tunefarm.results.runtimes.contract import Runtime, Subject
from tunefarm.results.runtimes.serve import MakeReference, Measure, PrepareRuntime, Report

HANDLER = "tunefarm.results.runtimes.serve:serve"


@dataclass(frozen=True)
class BenchProtocol:
    """Stored with the results.

    Attributes:
        processes: fresh ones of each runtime and setting, in turns with the others'.
        seconds: of samples in each; `least` samples at least (see `serve.Measure`).
        prepare_limit_s, measure_limit_s: the most that one process may take.
        confidence, margin, resamples: see `measure.stats.compare`.
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
        steady: waits a while for the machine to be all there; whether it is.
        keep: takes all entries after each round: what is measured is not lost.
        near_s: see `serve.Measure`.
    """

    say: Callable[[str], None] = lambda _: None
    steady: Callable[[], bool] = lambda: True
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
    failed = _call(request, {}, protocol.prepare_limit_s)
    if isinstance(failed, str):
        raise JobFailed(f"{subject.model}: ONNX Runtime cannot run it: {failed}")
    entries = [one for name in names for one in _prepared(name, subject, protocol, watch)]
    for process in range(protocol.processes):
        order = [place for place, one in enumerate(entries) if not one.out]
        random.Random(f"{protocol.seed} {process}").shuffle(order)
        for place in order:
            one = entries[place]
            watch.say(f"{process + 1}/{protocol.processes}  {one.runtime} {one.setting}")
            entries[place] = _measured(one, subject, reference, protocol, watch)
        watch.keep(entries)
    return entries


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
        failed = _call(request, {}, protocol.prepare_limit_s)
        took = time.perf_counter() - started
        out = f"failed: {failed}" if isinstance(failed, str) else ""
        found.append(dataclasses.replace(one, out=out, compile_s=took))
    return found


def _prepared_s(adapter: Runtime, subject: Subject) -> float | None:
    try:
        return adapter.prepared_s(subject)
    except TunefarmError:
        return None  # whoever loads it will say what is wrong


def _measured(
    entry: Entry, subject: Subject, reference: Path, protocol: BenchProtocol, watch: Watch
) -> Entry:
    request = Measure(
        entry.runtime,
        entry.setting,
        _own(subject, entry.runtime, entry.setting),
        protocol.seed,
        reference,
        protocol.seconds,
        protocol.least,
        watch.near_s,
    )
    environment = runtime(entry.runtime).environment(subject.threads)
    for _ in range(2):  # what was disturbed is measured once more
        before = watch.steady()
        report = _call(request, environment, protocol.measure_limit_s)
        if isinstance(report, str):
            return dataclasses.replace(entry, out=f"failed: {report}")
        steady = before and watch.steady()
        if steady:
            break
    report = dataclasses.replace(report, steady=steady)
    return dataclasses.replace(entry, reports=(*entry.reports, report))


def _call(request: Any, environment: dict[str, str], limit_s: float) -> Any:
    """The answer of a fresh process, or in one line why there is none."""
    with Child(HANDLER, env=environment, torch=True) as child:
        try:
            return child.call(request, limit_s)
        except ChildTimeout:
            return f"no answer within {limit_s:g} s"
        except TunefarmError as error:
            return error.message
        except (ChildDied, ChildError) as error:
            return last_line(error, 200)
