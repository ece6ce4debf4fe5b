"""What a benchmark's child answers with: one runtime, prepared or measured, and then it ends."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import make_input, parity
from tunefarm.results.runtimes.contract import Array, Subject


@dataclass(frozen=True)
class MakeReference:
    """Write what the unoptimised model computes for the inputs of `seed` to the file `path`."""

    subject: Subject
    seed: int
    path: Path


@dataclass(frozen=True)
class PrepareRuntime:
    runtime: str
    subject: Subject


@dataclass(frozen=True)
class Measure:
    """Load, check against `reference`, and time.

    Attributes:
        seconds: of samples, after a fifth as many of warming up. At least `least` samples are
            taken, but no more than one where that would take five times as long.
    """

    runtime: str
    setting: str
    subject: Subject
    seed: int
    reference: Path
    seconds: float
    least: int


@dataclass(frozen=True)
class Report:
    """One process of one runtime.

    Attributes:
        load_s: from nothing imported to ready.
        first_s: the first inference.
        samples: seconds of each inference after warming up.
        peak_bytes: most memory that the process held, its interpreter included.
        max_rel_err: largest error against the reference, relative to each output's scale.
    """

    load_s: float
    first_s: float
    samples: tuple[float, ...]
    peak_bytes: int
    max_rel_err: float


def serve(request: MakeReference | PrepareRuntime | Measure) -> Report | None:
    if isinstance(request, Measure):
        return _measure(request)
    if isinstance(request, PrepareRuntime):
        from tunefarm.results.runtimes import runtime

        request.subject.directory.mkdir(parents=True, exist_ok=True)
        runtime(request.runtime).prepare(request.subject)
        return None
    from tunefarm.results.runtimes.onnx_runtime import reference

    feed = _feed(request.subject.inputs, request.seed)
    results = reference(request.subject)(feed)
    named: dict[str, Any] = {str(place): result for place, result in enumerate(results)}
    np.savez(request.path, **named)
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
        wanted = [stored[str(place)] for place in range(len(stored.files))]
    error = parity(results, wanted).max_rel_err
    warm_until = time.perf_counter() + request.seconds / 5
    while time.perf_counter() < warm_until:
        run(feed)
    samples: list[float] = []
    patience_s = 5 * request.seconds
    while sum(samples) < (request.seconds if len(samples) >= request.least else patience_s):
        started = time.perf_counter()
        run(feed)
        samples.append(time.perf_counter() - started)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Report(load_s, first_s, tuple(samples), peak, error)
