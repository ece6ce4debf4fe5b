"""What two searches of one network found: their best schedules timed together, and their curves.

Rows of a search are [seconds, task, latency in seconds or None, is it untuned, trace].
"""

from __future__ import annotations

import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.frontend.program import Program
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.measure.runner import Runner

FINAL_PROCESSES = 3


def timed_together(
    program: Program, device: Device, gauge: Path, arms: dict[str, list[Any]]
) -> dict[str, dict[str, float]]:
    """Seconds of each kernel's best schedule of each arm, interleaved in fresh processes."""
    protocol = Protocol()
    found: dict[str, dict[str, list[float]]] = {}
    traces = {arm: best_traces(rows) for arm, rows in arms.items()}
    with tempfile.TemporaryDirectory() as directory:
        kernels = _libraries(program, device, protocol, gauge, traces, Path(directory))
        runner = Runner(device.cores, protocol.memory_bytes, gauge)
        for process in range(FINAL_PROCESSES):
            request = RaceRequest(kernels, protocol, protocol.race_rounds, process)
            for task, samples in runner.race(request).samples.items():
                for arm, seconds in samples.items():
                    middle = statistics.median(seconds)
                    found.setdefault(task, {}).setdefault(arm, []).append(middle)
        runner.close()
    return {t: {a: statistics.median(s) for a, s in of.items()} for t, of in found.items()}


def _libraries(
    program: Program,
    device: Device,
    protocol: Protocol,
    gauge: Path,
    arms: dict[str, dict[str, str]],
    directory: Path,
) -> Any:
    """For each kernel that both arms have: its facts, with its reference made, and a library of
    either."""
    builder, runner = Builder(60.0), Runner(device.cores, protocol.memory_bytes, gauge)
    kernels = []
    for task in program.tasks:
        traces = {"untuned": "", **{arm: found.get(task.id, "") for arm, found in arms.items()}}
        built = {}
        for arm, trace in traces.items():
            path = directory / f"{task.id}-{arm}.so"
            request = BuildRequest(program.workload(task.id), device.target, trace, path)
            built[arm] = builder.build(request).library or built["untuned"]
        reference = directory / f"{task.id}.npz"
        between = program.between_bytes
        facts = KernelFacts.of(task, reference, between)
        runner.screen(ScreenRequest(built.pop("untuned"), facts, protocol, None, True))
        kernels.append((facts, tuple(built.items())))
    builder.close()
    runner.close()
    return tuple(kernels)


def best_of(rows: list[Any]) -> dict[str, float]:
    best: dict[str, float] = {}
    for _, task, latency, _, _ in rows:
        if latency:
            best[task] = min(latency, best.get(task, math.inf))
    return best


def best_traces(rows: list[Any]) -> dict[str, str]:
    best = best_of(rows)
    return {
        task: trace
        for _, task, latency, _, trace in rows
        if latency is not None and best[task] == latency
    }


def curve(rows: list[Any], weights: dict[str, int], scale: dict[str, float]) -> list[list[float]]:
    """[seconds, sum over kernels, kernels that have a time] after each candidate; kernels scaled to
    what the harness says."""
    best: dict[str, float] = {}
    points = []
    for at, task, latency, untuned, _ in rows:
        if latency:
            best[task] = min(latency, best.get(task, math.inf))
        if not untuned:
            total = sum(weights[t] * s * scale.get(t, 1.0) for t, s in best.items())
            points.append([at, total, len(best)])
    return points


def reached(points: list[list[float]], goal: float) -> tuple[float, int]:
    for count, (at, total, _) in enumerate(points, 1):
        if total <= goal:
            return at, count
    return math.inf, 0
