"""Two artifacts of a model, run in turns: which is faster, in which kernels, and do they agree.

What two jobs say of their artifacts was measured at different times; here both run in the same
fresh processes, round by round.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.devices.here import RUNTIME_ONLY
from tunefarm.errors import JobFailed, UsageError, last_line
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import make_input
from tunefarm.measure.runner import thread_env
from tunefarm.measure.stats import Comparison, compare
from tunefarm.measure.steady import while_near
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout
from tunefarm.results.artifact_file import Artifact

HANDLER = "tunefarm.results.duel:run_round"
PROCESSES = 6
"""With fewer a bootstrap of their medians cannot reach 95 %."""
LEAST_ROUNDS = 5
LIMIT_S = 600.0


@dataclass(frozen=True)
class Turn:
    """What one fresh process does: rounds of both artifacts, in random order, for `seconds`, begun
    while the cores are near (`steady.while_near`)."""

    artifacts: tuple[Path, Path]
    process: int
    seconds: float
    near_s: float = 0.0


@dataclass(frozen=True)
class Found:
    """Seconds of each round, of the first and of the second; how far their outputs are apart, as a
    share of the largest."""

    samples: tuple[tuple[float, ...], tuple[float, ...]]
    apart: float


@dataclass(frozen=True)
class Duel:
    """How much faster the second is, None with too few processes for an interval; both medians."""

    comparison: Comparison | None
    median_s: tuple[float, float]
    apart: float


def check_alike(first: Artifact, second: Artifact) -> None:
    """That both take and give the same, on the same kind of target.

    Raises:
        UsageError: they do not.
    """
    for key in ("inputs", "outputs"):
        if first.manifest[key] != second.manifest[key]:
            raise UsageError(
                f"{first.path.name} and {second.path.name} have other {key}: "
                f"{_said(first.manifest[key])}; {_said(second.manifest[key])}"
            )
    kinds = [str(one.manifest["target"]["kind"]) for one in (first, second)]
    if kinds[0] != kinds[1]:
        raise UsageError(f"one is for {kinds[0]}, the other for {kinds[1]}")


def duel(
    artifacts: tuple[Path, Path],
    threads: int,
    processes: int,
    seconds: float,
    before: Callable[[int], None],
    near_s: float = 0.0,
) -> Duel:
    """Both in so many fresh processes; `before` is called with the number of each, and returns when
    it may begin. For `near_s` see `Turn`.

    Raises:
        JobFailed: one of them cannot be run, or does not answer.
    """
    found = []
    for process in range(processes):
        before(process)
        found.append(_asked(Turn(artifacts, process, seconds, near_s), threads))
    sides = [[one.samples[side] for one in found] for side in (0, 1)]
    medians = [float(np.median([np.median(samples) for samples in side])) for side in sides]
    comparison = None
    if processes >= PROCESSES:
        comparison = compare(
            *sides, confidence=0.95, margin=0.005, resamples=10_000, seed=0, paired=True
        )
    return Duel(comparison, (medians[0], medians[1]), max(one.apart for one in found))


def _asked(turn: Turn, threads: int) -> Found:
    with Child(HANDLER, env={**RUNTIME_ONLY, **thread_env(threads)}) as child:
        try:
            found: Found = child.call(turn, LIMIT_S)
            return found
        except ChildTimeout:
            raise JobFailed(f"no answer within {LIMIT_S:g} s") from None
        except (ChildDied, ChildError) as error:
            raise JobFailed(f"they could not be run: {last_line(error)}") from None


def run_round(turn: Turn) -> Found:
    """Runs in the child."""
    from tunefarm.results.loader import load

    # By turns: who is loaded first has other pages than the other one, in every process.
    first = turn.process % 2
    loaded = {side: load(turn.artifacts[side]) for side in (first, 1 - first)}
    models = [loaded[0], loaded[1]]
    specs = [TensorSpec(one["name"], tuple(one["shape"]), one["dtype"]) for one in models[0].inputs]
    feed = {
        spec.name: make_input(spec, 1000 * turn.process + index, positive=False)
        for index, spec in enumerate(specs)
    }
    answers = {side: list(models[side](feed).values()) for side in loaded}
    samples: tuple[list[float], list[float]] = ([], [])
    rng, order, steady = random.Random(turn.process), [0, 1], while_near(turn.near_s)
    while len(samples[0]) < LEAST_ROUNDS or sum(map(sum, samples)) < turn.seconds:
        rng.shuffle(order)
        steady.wait()
        for side in order:
            started = time.perf_counter()
            models[side](feed)
            samples[side].append(time.perf_counter() - started)
    return Found((tuple(samples[0]), tuple(samples[1])), _apart(answers[0], answers[1]))


def _apart(first: list[Any], second: list[Any]) -> float:
    """The largest difference, as a share of the largest element of that output."""
    most = 0.0
    for one, other in zip(first, second, strict=True):
        a, b = (np.asarray(x, dtype=np.float64) for x in (one, other))
        if a.size and not (np.isfinite(a) & np.isfinite(b)).all():
            return float("inf")
        largest = float(np.abs(a).max(initial=0.0))
        most = max(most, float(np.abs(a - b).max(initial=0.0)) / (largest or 1.0))
    return most


def kernels(first: Artifact, second: Artifact) -> list[dict[str, Any]]:
    """A row for each kernel that either has: its name, calls, whether both have one schedule for it
    (`schedule`: same, other, first only, second only), and milliseconds of a call in its own
    artifact, as its own job found them, None where it did not. Those that differ most come first.
    """
    sides = [_kernels(one) for one in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    rows = [_row(*(side.get(name) for side in sides)) for name in names]
    return sorted(rows, key=_differs, reverse=True)


def _kernels(artifact: Artifact) -> Mapping[str, dict[str, Any]]:
    evidence = "evidence/in_place.json"  # an older tunefarm's have none, nor those unmeasured
    placed = json.loads(artifact.read(evidence)) if evidence in artifact.manifest["files"] else None
    seconds = (placed or {}).get("kernels", {})
    schedules = json.loads(artifact.read("schedules.json"))["kernels"]
    return {
        one["workload"]: {
            "name": one["name"],
            "calls": one["weight"],
            "trace": schedules.get(one["workload"], {}).get("trace"),
            "ms": 1e3 * seconds[one["workload"]] / max(1, one["weight"])
            if one["workload"] in seconds
            else None,
        }
        for one in artifact.manifest["kernels"]
    }


def _row(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any]:
    either = first or second
    assert either is not None
    if first is None or second is None:
        schedule = "second only" if first is None else "first only"
    else:
        schedule = "same" if first["trace"] == second["trace"] else "other"
    return {
        "kernel": either["name"],
        "calls": either["calls"],
        "schedule": schedule,
        "first_ms": first and first["ms"],
        "second_ms": second and second["ms"],
    }


def _differs(row: Mapping[str, Any]) -> float:
    """Milliseconds of an inference that it accounts for."""
    first, second = (row[key] or 0.0 for key in ("first_ms", "second_ms"))
    return float(abs(first - second) * row["calls"])


def _said(specs: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['name']} {one['dtype']}{one['shape']}" for one in specs)
