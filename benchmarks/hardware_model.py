"""How well the hardware model orders points: random points of many kernels, measured.

    python benchmarks/hardware_model.py RESULTS.json [--points 36] [--networks A,B] [--heaviest 12]
                                        [--table]

For each kernel (those of kernels.py, and the heaviest of the networks) the model's best four points
and others drawn from those that it expects to take no more than twice as long. Printed per kernel:
how much slower than the best of all these its first choice is, and the best of its first four; how
many it takes to come within 2 % of the best; and the rank correlation of expected and measured.
The model's constants were fitted to such points of most of these kernels on one Zen 4, so there
this says how well it fits; on another processor, how well it carries over.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from kernels import KERNELS, between_bytes, imported

from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.frontend.zoo.networks import write_zoo_model
from tunefarm.home import Home, write_atomically
from tunefarm.measure.roofline import measure_roof, roof_path
from tunefarm.scheduler.local import LocalTuner
from tunefarm.scheduler.state import Limits
from tunefarm.search.replay import completed_by
from tunefarm.search.space import Point, Space
from tunefarm.search.strategy import Evaluated, register_strategy

CLOSE = 1.02


class Sample:
    """The model's best four points, then random ones of those it does not expect to be bad."""

    def __init__(self, space: Space, seed: int) -> None:
        points = sorted(space.modelled(), key=lambda one: one.seconds)
        rest = [one for one in points[4:] if one.seconds < 2 * points[0].seconds]
        random.Random(seed).shuffle(rest)
        self._left = [one.point for one in [*points[:4], *rest]]

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn

    def update(self, completed: Sequence[Evaluated]) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--points", type=int, default=36)
    parser.add_argument("--networks", default="squeezenet,resnet50,shufflenet")
    parser.add_argument("--heaviest", type=int, default=12)
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(a.results.read_text()) if a.table else []
    if not a.table:
        register_strategy("sample", Sample)
        with tempfile.TemporaryDirectory() as directory:
            rows = measured(Path(directory), a.networks.split(","), a.heaviest, a.points)
        write_atomically(a.results, (json.dumps(rows, indent=1) + "\n").encode())
    print(table(rows))


def measured(
    directory: Path, networks: list[str], heaviest: int, points: int
) -> list[dict[str, Any]]:
    (device,) = probe()
    home = Home(directory / "home")
    measure_roof(home, device)
    chosen: list[tuple[str, Program, list[TuningTask]]] = []
    for kernel in KERNELS:
        program, task = imported(kernel, directory / kernel.name, device.target)
        chosen.append((kernel.name, program, [task]))
    for name in networks:
        model = write_zoo_model(name, directory / f"{name}.onnx")
        program = import_model(ImportRequest(model, directory / name, device.target))
        tasks = sorted(program.tasks, key=lambda task: -task.flops * task.weight)
        chosen.append((name, program, tasks[:heaviest]))
    rows = []
    for name, program, tasks in chosen:
        print(name, file=sys.stderr, flush=True)
        tuning = LocalTuner(
            {task.id: (task, program.workload(task.id)) for task in tasks},
            device,
            "benchmark",
            directory / "work" / name,
            Limits(trials=points * len(tasks), builders=device.cores, patience=10**6, chunk=8),
            strategy="sample",
            between=between_bytes(program),
            gauge=roof_path(home, device),
        ).run()
        taught = {one.candidate: one for one in tuning.taught if one.expected_s}
        for trial in tuning.trials:
            if trial.latency_s and (one := taught.get(trial.candidate.id)):
                kernel_name = f"{name} {program.task(trial.task).name} {trial.task[:6]}"
                rows.append(
                    {
                        "kernel": kernel_name,
                        "family": one.family,
                        "point": completed_by(trial.candidate.trace),
                        "expected_s": one.expected_s,
                        "latency_s": trial.latency_s,
                    }
                )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| kernel | points | first choice | best of four | tries | rank correlation |",
        "|---|---|---|---|---|---|",
    ]
    judged = []
    for kernel, group in pd.DataFrame(rows).groupby("kernel", sort=False):
        if len(group) < 8:
            continue
        seconds = group.sort_values("expected_s", kind="stable")["latency_s"].to_numpy()
        best = seconds.min()
        tries = int((seconds <= CLOSE * best).argmax()) + 1
        found = group["expected_s"].rank().corr(group["latency_s"].rank())
        judged.append([seconds[0] / best - 1, seconds[:4].min() / best - 1, tries, found])
        first, four, _, _ = judged[-1]
        lines.append(
            f"| {kernel} | {len(group)} | {first:.0%} | {four:.0%} | {tries} | {found:.2f} |"
        )
    first, four, many, correlation = (
        statistics.fmean(column) for column in zip(*judged, strict=True)
    )
    lines.append(
        f"| mean of {len(judged)} | | {first:.1%} | {four:.1%} | {many:.1f} | {correlation:.2f} |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
