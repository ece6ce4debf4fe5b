"""What a network's search gains from what other networks have taught.

    python benchmarks/transfer.py RESULTS.json [--networks A,B,C] [--each 8] [--seeds 2]

For each network: a first tuning that knows nothing, and a second one that starts from a cost model
trained on the first tunings of the other networks, its own left out (and every kernel that it
shares with another network is left out of the training). Both stop at `--each` trials for each
kernel in the mean: where they go is the search's own affair.
Then the best schedules of both are timed by one harness, interleaved, in fresh processes.

The goal is the first tuning's final sum of its kernels' times (times their calls); what counts is
when each of the two is within `--close` of it: from the last untuned kernel's result on and, in a
second pair of columns, from the start (with timing the untuned kernels, and with describing the
points that the cost model corrects). One run is one draw: the ratios of single runs scatter widely.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from arms import best_of, curve, reached, timed_together

from tunefarm.costmodel.lessons import Lesson
from tunefarm.costmodel.transfer import Transfer, train
from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program
from tunefarm.frontend.zoo.networks import write_zoo_model
from tunefarm.home import Home, write_atomically
from tunefarm.measure.roofline import measure_roof, roof_path
from tunefarm.results.lessons import read_lessons, write_lessons
from tunefarm.scheduler.local import LocalTuner, Trial
from tunefarm.scheduler.state import Limits

NETWORKS = "squeezenet,shufflenet,resnet50,inception_v1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--close", type=float, default=1.02)
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    path: Path = a.results
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    networks = a.networks.split(",")
    if not a.table:
        with tempfile.TemporaryDirectory() as directory:
            Experiment(data, path, Path(directory), a.each).run(networks, a.seeds)
    print(table(data, a.close))


class Experiment:
    def __init__(self, data: dict[str, Any], path: Path, directory: Path, each: int) -> None:
        self._data = data
        self._path = path
        self._directory = directory
        self._each = each
        (self._device,) = probe()
        home = Home(directory / "home")
        self._roof = measure_roof(home, self._device)
        self._gauge = roof_path(home, self._device)
        self._programs: dict[str, Program] = {}

    def run(self, networks: list[str], seeds: int) -> None:
        for seed in range(seeds):
            for name in networks:
                self._once(name, "first", seed, None)
            for name in networks:
                if f"second {seed}" not in self._data.get(name, {}):
                    self._once(name, "second", seed, self._others(name, networks))
                self._final(name, seed)

    def _program(self, name: str) -> Program:
        if name not in self._programs:
            model = write_zoo_model(name, self._directory / f"{name}.onnx")
            request = ImportRequest(model, self._directory / name, self._device.target)
            self._programs[name] = import_model(request)
        return self._programs[name]

    def _lessons(self, name: str) -> Path:
        return self._path.with_suffix(f".{name}.parquet")

    def _others(self, name: str, networks: list[str]) -> Transfer:
        own = {task.id for task in self._program(name).tasks}
        others = [n for n in networks if n != name]
        rows = [one for n in others for one in read_lessons(self._lessons(n))]
        if not rows:
            sys.exit(f"beside {self._path} lie no lessons of this version: begin with another file")
        model, evidence = train([one for one in rows if one.task not in own])
        self._put(name, "model", dict(model.about))
        self._put(name, "evidence", [asdict(one) for one in evidence])
        return model

    def _put(self, name: str, key: str, value: Any) -> None:
        self._data.setdefault(name, {})[key] = value
        write_atomically(self._path, (json.dumps(self._data, indent=1) + "\n").encode())

    def _once(self, name: str, arm: str, seed: int, transfer: Transfer | None) -> None:
        if f"{arm} {seed}" in self._data.get(name, {}):
            return
        program = self._program(name)
        trials = self._each * len(program.tasks)
        limits = Limits(trials, builders=self._device.cores, patience=10**6)
        started = time.monotonic()
        heard: list[tuple[float, Trial]] = []
        with tempfile.TemporaryDirectory() as directory:
            tuning = LocalTuner(
                {task.id: (task, program.workload(task.id)) for task in program.tasks},
                self._device,
                "benchmark",
                Path(directory),
                limits,
                seed=seed,
                between=program.between_bytes,
                transfer=transfer,
                gauge=self._gauge,
                roof=self._roof,
                report=lambda trial: heard.append((time.monotonic() - started, trial)),
            ).run()
        rows = [
            [round(at, 3), t.task, t.latency_s, t.candidate.untuned, t.candidate.trace]
            for at, t in heard
        ]
        best = best_of(rows)
        for row in rows:  # of all the traces, only the best are needed again
            if best.get(row[1]) != row[2]:
                row[4] = ""
        weights = {task.id: task.weight for task in program.tasks}
        self._put(name, "weights", weights)
        if arm == "first" and seed == 0:
            latencies = {t.candidate.id: (t.task, t.latency_s) for t in tuning.trials}
            write_lessons(
                self._lessons(name),
                [
                    Lesson(
                        name,
                        self._device.fingerprint,
                        latencies[one.candidate][0],
                        one.candidate,
                        one.family,
                        one.features,
                        one.expected_s,
                        latencies[one.candidate][1],
                    )
                    for one in tuning.taught
                ],
            )
        self._put(name, f"{arm} {seed}", rows)  # last: whoever goes on needs what is above
        total = sum(weights[task] * seconds for task, seconds in best.items())
        print(f"{name} {arm} {seed}: {total * 1e3:.3f} ms, {rows[-1][0]} s", file=sys.stderr)

    def _final(self, name: str, seed: int) -> None:
        """Both arms' best schedules of every kernel, interleaved."""
        if f"final {seed}" in self._data[name]:
            return
        arms = {arm: self._data[name][f"{arm} {seed}"] for arm in ("first", "second")}
        together = timed_together(self._program(name), self._device, self._gauge, arms)
        self._put(name, f"final {seed}", together)


def table(data: dict[str, Any], close: float) -> str:
    lines = [
        f"Within {close - 1:.0%} of the first tuning's end:\n",
        "| network | seed | first s | second s | ratio | with start s | ratio | first trials "
        "| second trials | final first ms | final second ms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: list[float] = []
    for name, found in data.items():
        for seed in range(9):
            if f"final {seed}" not in found:
                continue
            row = _row(found, seed, close)
            lines.append(f"| {name} | {seed} | " + " | ".join(f"{v:.4g}" for v in row) + " |")
            ratios.append(row[2])
    if ratios:
        mean = math.exp(statistics.fmean(math.log(min(r, 1e3)) for r in ratios))
        lines.append(f"\nGeometric mean of the ratio: {mean:.3g}")
    return "\n".join(lines)


def _row(found: dict[str, Any], seed: int, close: float) -> list[float]:
    weights, final = found["weights"], found[f"final {seed}"]
    curves, ends, begins = {}, {}, {}
    for arm in ("first", "second"):
        rows = found[f"{arm} {seed}"]
        best = best_of(rows)
        scale = {t: final[t][arm] / best[t] for t in final if t in best}
        curves[arm] = curve(rows, weights, scale)
        ends[arm] = curves[arm][-1][1]
        begins[arm] = next(before[0] for before, after in pairwise(rows) if not after[3])
    goal = close * ends["first"]
    at, trials = {}, {}
    for arm, points in curves.items():
        at[arm], trials[arm] = reached(points, goal)
    tuning = {arm: at[arm] - begins[arm] for arm in at}
    return [
        tuning["first"],
        tuning["second"],
        tuning["second"] / tuning["first"],
        at["second"],
        at["second"] / at["first"],
        trials["first"],
        trials["second"],
        ends["first"] * 1e3,
        ends["second"] * 1e3,
    ]


if __name__ == "__main__":
    main()
