"""What a benchmark's child answers: one runtime, prepared; or loaded, and timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.devices import cpu
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import make_input, parity
from tunefarm.measure.steady import Steady, while_near
from tunefarm.results.runtimes.contract import Array, Run, Subject

MOST_SAMPLES = 2000
"""Of a process: where more would fit, each is the mean of several inferences in a row."""
SETTLE_S = 0.01
"""Of inferences at the beginning of a turn that are not timed (one at least): caches are as others
have left them."""
LONG_S = 0.2
"""An inference that takes so long is hardly slower from cold caches: its first one is timed."""


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
class Load:
    """Load, answer once, check the answer against `reference`, and warm up; to be asked once.

    Attributes:
        seconds: of samples that there will be; warming up takes a fifth as many.
        near_s: of an exchange between near cores (`devices.cores`), which every turn waits for;
            0.0 where that is not known.
    """

    runtime: str
    setting: str
    subject: Subject
    seed: int
    reference: Path
    seconds: float
    near_s: float = 0.0


@dataclass(frozen=True)
class Loaded:
    """
    Attributes:
        load_s: `Runtime.load`, with nothing imported before it.
        first_s: the first inference.
        calls: inferences in each sample that will be taken.
        max_rel_err: largest error against the reference, relative to each output's scale; infinite
            for another shape, or where one is finite and the other is not; `right`: whether it is
            small enough (see `gate.parity`).
    """

    load_s: float
    first_s: float
    calls: int
    max_rel_err: float
    right: bool


@dataclass(frozen=True)
class TakeTurn:
    """Time inferences for so many seconds; what is loaded must be (`Load`)."""

    seconds: float


@dataclass(frozen=True)
class Turn:
    """
    Attributes:
        samples: seconds of an inference, at least one; taken again where the cores parted.
        near: whether they were near then.
        peak_bytes: most memory that the process held so far, its interpreter included.
    """

    samples: tuple[float, ...]
    near: bool
    peak_bytes: int


@dataclass(frozen=True)
class _Ready:
    run: Run
    feed: Mapping[str, Array]
    calls: int
    is_long: bool
    steady: Steady

    def sample(self) -> float:
        started = time.perf_counter()
        for _ in range(self.calls):
            self.run(self.feed)
        return (time.perf_counter() - started) / self.calls

    def burst(self, seconds: float) -> list[float]:
        """Samples of so many seconds in all."""
        settled = self.is_long
        until = time.perf_counter() + min(SETTLE_S, seconds)
        while not settled:
            self.run(self.feed)
            settled = time.perf_counter() >= until
        found: list[float] = []
        while not found or self.calls * sum(found) < seconds:
            found.append(self.sample())
        return found

    def turn(self, seconds: float) -> Turn:
        before = self.steady.disturbed
        attempts = 1 if self.is_long else 2
        samples = self.steady.undisturbed(lambda: self.burst(seconds), attempts)
        return Turn(tuple(samples), self.steady.disturbed == before, cpu.peak_bytes())


_ready: _Ready | None = None


def serve(request: MakeReference | PrepareRuntime | Load | TakeTurn) -> Loaded | Turn | None:
    global _ready
    if isinstance(request, TakeTurn):
        assert _ready is not None, "nothing is loaded"
        return _ready.turn(request.seconds)
    if isinstance(request, Load):
        _ready, loaded = _load(request)
        return loaded
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


def _load(request: Load) -> tuple[_Ready, Loaded]:
    from tunefarm.results.runtimes import runtime

    feed = _feed(request.subject.inputs, request.seed)
    steady = while_near(request.near_s)  # a runtime may confine this thread to one core
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
    ready = _Ready(run, feed, calls, fastest > LONG_S, steady)
    return ready, Loaded(load_s, first_s, calls, found.max_rel_err, found.passed)
