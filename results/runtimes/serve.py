"""What a benchmark's child answers with: one runtime, prepared or measured, and then it ends."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import make_input, parity
from tunefarm.measure.steady import while_near
from tunefarm.results.runtimes.contract import Array, Subject

MOST_SAMPLES = 500
"""Of a process: where more would fit, each is the mean of several inferences in a row."""
PATIENCE = 5.0
"""Times the seconds of samples that are spent on getting the least number of them."""
BURST_S = 0.05
"""Of samples in a row, before and after which it is asked whether the cores are near: shorter than
they stay as they are, longer than runtimes' threads take to be at work again."""


@dataclass(frozen=True)
class MakeReference:
    """Write what the unoptimised model computes for the inputs of `seed` to the file `path`."""

    subject: Subject
    seed: int
    path: Path


@dataclass(frozen=True)
class PrepareRuntime:
    runtime: str
    setting: str
    subject: Subject


@dataclass(frozen=True)
class Measure:
    """Load, check against `reference`, and time.

    Attributes:
        seconds: of samples, after a fifth as many of warming up; until there are `least` of them,
            at most `PATIENCE` times as many.
        near_s: of an exchange between near cores (`devices.cores`), which is waited for, and where
            they were apart meanwhile is timed again; 0.0 where that is not known.
    """

    runtime: str
    setting: str
    subject: Subject
    seed: int
    reference: Path
    seconds: float
    least: int
    near_s: float = 0.0


@dataclass(frozen=True)
class Report:
    """One process of one runtime.

    Attributes:
        load_s: `Runtime.load`, with nothing imported before it.
        first_s: the first inference.
        samples: seconds of an inference after warming up.
        calls: inferences in a sample.
        peak_bytes: most memory that the process held, its interpreter included.
        max_rel_err: largest error against the reference, relative to each output's scale; infinite
            for another shape, or where one is finite and the other is not; `right`: whether it is
            small enough (see `gate.parity`).
        steady: whether the machine was all there before and after.
    """

    load_s: float
    first_s: float
    samples: tuple[float, ...]
    calls: int
    peak_bytes: int
    max_rel_err: float
    right: bool
    steady: bool = True


def serve(request: MakeReference | PrepareRuntime | Measure) -> Report | None:
    if isinstance(request, Measure):
        return _measure(request)
    if isinstance(request, PrepareRuntime):
        from tunefarm.results.runtimes import runtime

        request.subject.directory.mkdir(parents=True, exist_ok=True)
        runtime(request.runtime).prepare(request.subject, request.setting)
        return None
    from tunefarm.results.runtimes.onnx_runtime import reference

    feed = _feed(request.subject.inputs, request.seed)
    results, precision, moved = reference(request.subject, feed)
    named: dict[str, Any] = {str(place): result for place, result in enumerate(results)}
    np.savez(request.path, precision=np.array(precision), moved=np.array(moved), **named)
    return None


def _feed(inputs: Sequence[TensorSpec], seed: int) -> dict[str, Array]:
    return {
        spec.name: make_input(spec, 7919 * seed + place, positive=False)
        for place, spec in enumerate(inputs)
    }


def _measure(request: Measure) -> Report:
    from tunefarm.results.runtimes import runtime

    feed = _feed(request.subject.inputs, request.seed)
    started = time.perf_counter()
    run = runtime(request.runtime).load(request.subject, request.setting)
    load_s = time.perf_counter() - started
    started = time.perf_counter()
    results = run(feed)
    first_s = time.perf_counter() - started
    with np.load(request.reference) as stored:
        wanted = [stored[str(place)] for place in range(len(stored.files) - 2)]
        found = parity(results, wanted, str(stored["precision"]), float(stored["moved"]))
    fastest, warm_until = math.inf, time.perf_counter() + request.seconds / 5
    while time.perf_counter() < warm_until or fastest == math.inf:
        started = time.perf_counter()
        run(feed)
        fastest = min(fastest, time.perf_counter() - started)
    calls = max(1, math.ceil(request.seconds / MOST_SAMPLES / fastest))
    steady, samples = while_near(request.near_s), list[float]()

    def due() -> bool:
        patience = 1.0 if len(samples) >= request.least else PATIENCE
        return calls * sum(samples) < request.seconds * patience

    def burst() -> list[float]:
        found: list[float] = []
        while not found or calls * sum(found) < min(BURST_S, request.seconds):
            started = time.perf_counter()
            for _ in range(calls):
                run(feed)
            found.append((time.perf_counter() - started) / calls)
        return found

    while due():
        samples += steady.undisturbed(burst)
    error = found.max_rel_err
    return Report(load_s, first_s, tuple(samples), calls, _peak_bytes(), error, found.passed)


def _peak_bytes() -> int:
    """Of this process alone: what `getrusage` tells is no less than its parent's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0
