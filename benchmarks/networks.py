"""Whole jobs on real networks, one after another: what they reach, and how quickly.

    python benchmarks/networks.py squeezenet shufflenet ... [--trials 300] [--json FILE]

Each network of the onnx package gets seeded random weights and goes through `tunefarm submit` in a
farm home of its own; then ONNX Runtime and the artifact run in turns on the same threads. Prints a
Markdown table; the JSON has every figure with the machine's description.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.devices.cpu import cpu_model, usable_cores
from tunefarm.frontend.zoo import write_zoo_model
from tunefarm.home import Home
from tunefarm.results.bundle import open_bundle
from tunefarm.results.journal import Journal
from tunefarm.results.loader import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.networks:
            rows.append(tune(name, arguments.trials, Path(directory) / name))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    table(rows)
    if arguments.json:
        machine = {"cpu": cpu_model(), "cores": usable_cores(), "load": os.getloadavg()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def tune(name: str, trials: int, directory: Path) -> dict[str, Any]:
    """One network's row; times in milliseconds and seconds."""
    model = write_zoo_model(name, directory / f"{name}.onnx")
    home = Home(directory / "home")
    started = time.perf_counter()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tunefarm", "submit", str(model), "--targets", "llvm"),
            *("--trials", str(trials), "--json"),
        ],
        env={**os.environ, "TUNEFARM_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    wall_s = time.perf_counter() - started
    if done.returncode:
        return {"network": name, "exit_code": done.returncode}
    found = json.loads(done.stdout)
    row = found["targets"]["llvm"]
    compared = subprocess.run(
        [sys.executable, __file__, "--beside", str(model), row["artifact"]],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {
        "network": name,
        "kernels": row["tasks"],
        "candidates": row["candidates"],
        "failures": row["failures"],
        "candidates_per_s": rate(home, found["job"]),
        "untuned_ms": row["baseline_ms"],
        "tuned_ms": row["tuned_ms"],
        "speedup": row["speedup"],
        "speedup_ci95": row["speedup_ci95"],
        "verdict": row["verdict"],
        "max_rel_err": row["parity"]["max_rel_err"],
        "wall_s": round(wall_s, 1),
        **json.loads(compared.stdout),
    }


def rate(home: Home, job: str) -> float:
    """Measured candidates per second of the tuning phase, proposals and builds included."""
    journal = Journal(home)
    starts = {e["detail"]["phase"]: e["time"] for e in journal.events(job) if e["kind"] == "phase"}
    measured = journal.counts(job)["measured"]
    journal.close()
    return round(measured / (starts["race"] - starts["tune"]), 2)


def beside(model: Path, artifact: Path, rounds: int = 40) -> dict[str, float]:
    """Median ms of ONNX Runtime (not spinning between requests) and of the artifact, in turns."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = open_bundle(artifact).manifest["threads"]
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(model), options)
    ours = load(artifact)
    spec = ours.inputs[0]
    x = np.random.default_rng(0).normal(size=spec["shape"]).astype(spec["dtype"])
    times: dict[str, list[float]] = {"onnxruntime_ms": [], "artifact_ms": []}
    for turn in range(rounds + 2):
        for name in times:
            started = time.perf_counter()
            if name == "artifact_ms":
                ours({spec["name"]: x})
            else:
                session.run(None, {spec["name"]: x})
            if turn >= 2:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: round(statistics.median(found), 3) for name, found in times.items()}


COLUMNS = (
    "network | kernels | tried | per s | untuned ms | tuned ms | times faster (95 %) | verdict | "
    "ONNX Runtime ms | ours beside it ms | max rel. error | wall s"
)


def table(rows: list[dict[str, Any]]) -> None:
    print(f"| {COLUMNS} |\n|{'---|' * len(COLUMNS.split(' | '))}")
    for r in rows:
        if "exit_code" in r:
            print(f"| {r['network']} | failed with exit code {r['exit_code']} |")
            continue
        low, high = r["speedup_ci95"]
        cells = [
            *(r["network"], r["kernels"], r["candidates"], r["candidates_per_s"]),
            *(f"{r['untuned_ms']:.4g}", f"{r['tuned_ms']:.4g}"),
            *(f"{r['speedup']:.1f} ({low:.1f} to {high:.1f})", r["verdict"]),
            *(f"{r['onnxruntime_ms']:.4g}", f"{r['artifact_ms']:.4g}"),
            *(f"{r['max_rel_err']:.0e}", f"{r['wall_s']:.0f}"),
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--beside"]:
        print(json.dumps(beside(Path(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main()
