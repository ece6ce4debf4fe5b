"""Whole networks under both tuners.

    python benchmarks/both.py RESULTS.json [--networks A,B] [--trials 480] [--seeds 1]

Each tuner tunes all kernels of a network in one process, with the same number of trials;
MetaSchedule with its own gradient scheduler over kernels, and with batches that give each kernel
one. Then the best schedules of both are timed by one harness, kernel by kernel, interleaved, in
fresh processes. What is compared is the sum of the kernels' times, each times its calls in the
network. A kernel that a tuner has no schedule for counts with its untuned time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arms import best_of, curve, reached, timed_together

from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.zoo.networks import write_zoo_model
from tunefarm.home import Home, write_atomically
from tunefarm.measure.roofline import measure_roof, roof_path

HERE = Path(__file__).parent
ARMS = ("tunefarm", "metaschedule")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", default="squeezenet,shufflenet")
    parser.add_argument("--trials", type=int, default=480)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    data: dict[str, Any] = json.loads(a.results.read_text()) if a.results.exists() else {}
    if not a.table:
        with tempfile.TemporaryDirectory() as directory:
            compare(data, a.results, Path(directory), a.networks.split(","), a.trials, a.seeds)
    print(table(data))


def compare(
    data: dict[str, Any],
    results: Path,
    directory: Path,
    networks: list[str],
    trials: int,
    seeds: int,
) -> None:
    (device,) = probe()
    (directory / "device.json").write_text(json.dumps(device.to_dict()))
    home = Home(directory / "home")
    measure_roof(home, device)
    gauge = roof_path(home, device)
    for name in networks:
        model = write_zoo_model(name, directory / f"{name}.onnx")
        program = import_model(ImportRequest(model, directory / name, device.target))
        found = data.setdefault(name, {})
        found["weights"] = {task.id: task.weight for task in program.tasks}
        for seed in range(seeds):
            for arm in ARMS:
                if f"{arm} {seed}" not in found:
                    found[f"{arm} {seed}"] = tune(
                        arm, program.directory, directory / "device.json", gauge, trials, seed
                    )
                    write_atomically(results, (json.dumps(data, indent=1) + "\n").encode())
            if f"final {seed}" not in found:
                rows = {arm: found[f"{arm} {seed}"]["rows"] for arm in ARMS}
                found[f"final {seed}"] = timed_together(program, device, gauge, rows)
                write_atomically(results, (json.dumps(data, indent=1) + "\n").encode())


def tune(
    arm: str, program: Path, device: Path, gauge: Path, trials: int, seed: int
) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "tuners.py"), arm, str(program), "all"),
            *("--device", str(device), "--trials", str(trials), "--seed", str(seed)),
            *("--gauge", str(gauge), "--since", repr(time.time())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    rows = [[at, task, latency, False, trace] for at, latency, trace, task in found["results"]]
    best = best_of(rows)
    for row in rows:
        if best.get(row[1]) != row[2]:
            row[4] = ""
    print(f"{arm}: {found['wall_s']:.0f} s", file=sys.stderr, flush=True)
    return {"rows": rows, "wall_s": found["wall_s"]}


def table(data: dict[str, Any]) -> str:
    lines = [
        "| network | seed | trials | tunefarm ms | reference ms | (a) sooner | (b) equal trials "
        "| (c) equal time | (d) rate | tunefarm s | reference s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in data.items():
        for seed in range(9):
            if f"final {seed}" in found:
                row = compared(found, seed)
                lines.append(f"| {name} | {seed} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def compared(found: dict[str, Any], seed: int) -> list[str]:
    final, weights = found[f"final {seed}"], found["weights"]
    rows = {arm: found[f"{arm} {seed}"]["rows"] for arm in ARMS}
    wall = {arm: found[f"{arm} {seed}"]["wall_s"] for arm in ARMS}
    ends = {arm: sum(weights[t] * of[arm] for t, of in final.items()) for arm in ARMS}
    best = best_of(rows["tunefarm"])
    scale = {t: final[t]["tunefarm"] / best[t] for t in final if t in best}
    # Until every kernel has a schedule there is no sum; what never gets one counts as untuned.
    untuned = sum(weights[t] * of["tunefarm"] for t, of in final.items() if t not in best)
    whole = [
        [at, total + untuned, kernels]
        for at, total, kernels in curve(rows["tunefarm"], weights, scale)
        if kernels == len(best)
    ]
    ours, _ = reached(whole, 1.01 * ends["metaschedule"])
    theirs = max(row[0] for row in rows["metaschedule"])
    by_then = min((total for at, total, _ in whole if at <= wall["metaschedule"]), default=1e9)
    rate = {arm: len(rows[arm]) / wall[arm] for arm in ARMS}
    figures = [
        ends["tunefarm"] * 1e3,
        ends["metaschedule"] * 1e3,
        theirs / ours,
        ends["metaschedule"] / ends["tunefarm"],
        ends["metaschedule"] / by_then,
        rate["tunefarm"] / rate["metaschedule"],
        wall["tunefarm"],
        wall["metaschedule"],
    ]
    trials = f"{len(rows['tunefarm'])}/{len(rows['metaschedule'])}"
    return [trials, *(f"{figure:.4g}" for figure in figures)]


if __name__ == "__main__":
    main()
