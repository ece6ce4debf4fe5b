"""Whole networks: tuned, then side by side with other runtimes.

    python benchmarks/networks.py RESULTS.json [--networks squeezenet,...] [--budget 5m]
        [--no-transfer] [--runtimes tunefarm,onnxruntime,openvino] [--home DIR] [--plot FILE]
    python benchmarks/networks.py RESULTS.json --files MODEL.onnx...
    python benchmarks/networks.py RESULTS.json --again [--home DIR]

Each network of the zoo, or each of the files, goes through `tunefarm submit` and then `tunefarm
bench`, one after another, in one farm home; without `--budget` with submit's default. RESULTS.json
is written after each, and a run that was interrupted goes on where it stood. With `--again` the
artifacts that RESULTS.json names (of the zoo, or of the files that are named) run beside the others
once more, without another job. Prints Markdown tables, and draws how the sum of each network's
kernels falls with time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tunefarm.devices.cpu import cpu_model, usable_cores
from tunefarm.frontend.zoo.networks import write_zoo_model, zoo_names
from tunefarm.home import Home, write_atomically
from tunefarm.results.bench_figures import OURS, summarised
from tunefarm.results.evidence import best_so_far, in_place
from tunefarm.results.journal import Journal

NEAR = 1.05
"""A kernels' sum that is at most this many times the last one is as good as there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--networks", help="of the zoo, with commas between; by default all")
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="instead of the zoo's")
    parser.add_argument("--dtype", default="float32", help="see tunefarm zoo")
    parser.add_argument("--target", default="llvm", help="such as llvm:precision=bfloat16")
    parser.add_argument("--budget")
    parser.add_argument("--runtimes", default="tunefarm,onnxruntime,openvino")
    parser.add_argument("--processes", default="6")
    parser.add_argument("--seconds", default="1", help="of samples in each")
    parser.add_argument("--no-transfer", action="store_true")
    parser.add_argument("--again", action="store_true", help="bench the same artifacts once more")
    parser.add_argument("--home", type=Path, default=Path("networks-home"))
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    machine = {"cpu": cpu_model(), "cores": usable_cores()}
    found: dict[str, Any] = {"machine": machine, "rows": []}
    if arguments.results.exists():
        found = json.loads(arguments.results.read_text())
    home = Home(arguments.home.absolute())
    bench = ["bench", "--runtimes", arguments.runtimes, "--processes", arguments.processes]
    bench += ["--seconds", arguments.seconds]
    how = ["--budget", arguments.budget] if arguments.budget else []
    how += ["--no-transfer"] if arguments.no_transfer else []
    rows = {row["network"]: row for row in found["rows"]}
    if {one.get("target", arguments.target) for one in rows.values()} - {arguments.target}:
        parser.error(f"{arguments.results} has results of another target")
    files = {file.stem: file for file in arguments.files}
    if len(files) < len(arguments.files):
        parser.error("two of the files have one name")
    named = arguments.networks.split(",") if arguments.networks else zoo_names()
    for name in files or named:
        if (name in rows) != arguments.again:
            continue
        print(name, file=sys.stderr, flush=True)
        model = files.get(name) or write_zoo_model(
            name, home.zoo / f"{name}.onnx", dtype=arguments.dtype
        )
        if arguments.again:
            found["machine"] = machine
            artifact = home.root / rows[name]["job"]["artifact"]
            rows[name]["bench"] = tunefarm(home, *bench, model, "--artifact", artifact)
        else:
            job = tunefarm(home, "submit", model, "--targets", arguments.target, *how)
            (target,) = job["targets"]  # as it is spelled in a record
            artifact = job["targets"][target]["artifact"]
            benched = tunefarm(home, *bench, model, "--artifact", artifact)
            found["rows"].append(row(home, name, target, job, benched))
        # Paths inside the home, for it may lie anywhere.
        text = json.dumps(found, indent=1).replace(f"{home.root}/", "")
        write_atomically(arguments.results, f"{text}\n".encode())
    tables(found["rows"])
    if arguments.plot:
        curves(found["rows"]).savefig(arguments.plot)


def tunefarm(home: Home, *words: Any) -> dict[str, Any]:
    """What a command prints with ``--json``."""
    done = subprocess.run(
        [sys.executable, "-m", "tunefarm", *map(str, words), "--json"],
        env={**os.environ, "TUNEFARM_HOME": str(home.root)},
        stdout=subprocess.PIPE,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row(
    home: Home, name: str, target: str, job: dict[str, Any], bench: dict[str, Any]
) -> dict[str, Any]:
    """One network's results: the job's, the benchmark's, the curve as (seconds since the job began,
    sum over kernels in ms), and the share of its time outside of kernels."""
    journal = Journal(home)
    curve = best_so_far(journal, job["job"], target)
    placed = in_place(journal, job["job"], target)
    begun = journal.job(job["job"]).created
    journal.close()
    return {
        "network": name,
        "target": target,
        "job": job["targets"][target],
        "bench": bench,
        "curve": [
            (round(t - begun, 2), round(ms, 4)) for t, ms in curve[["time", "ms"]].to_numpy()
        ],
        "outside": None if placed is None else round(placed["outside"], 4),
    }


def near_s(curve: list[tuple[float, float]]) -> float:
    """Seconds from the start of the job until its kernels' sum is within `NEAR` of the last one."""
    return next((seconds for seconds, ms in curve if ms <= NEAR * curve[-1][1]), 0.0)


def tables(rows: list[dict[str, Any]]) -> None:
    runtimes = list(dict.fromkeys(r["runtime"] for one in rows for r in one["bench"]["runtimes"]))
    others = [name for name in runtimes if name != OURS]
    head = [
        "network",
        "tunefarm ms (95 %)",
        *(f"{n} ms: ours faster" for n in others),
        "best other",
    ]
    print(_line(head) + _line(["---"] * len(head)), end="")
    summary = summarised([one["bench"] for one in rows])
    for one, against in zip(rows, summary["models"], strict=True):
        of = {r["runtime"]: r for r in one["bench"]["runtimes"]}
        ratio = against["ours_faster"]
        cells = [one["network"], _interval(of.get(OURS)), *(_beside(of.get(n)) for n in others)]
        print(_line([*cells, "" if ratio is None else f"{ratio:.2f}"]), end="")
    if summary["geometric_mean"] is not None:
        mean = f"geometric mean {summary['geometric_mean']:.3f}"
        print(f"\n{mean}; at least as fast on {summary['won']} of {summary['counted']}\n")
    head = ["network", "job s", "within 5 % after s", "untuned ms", "tried", "max rel. error"]
    head += ["outside of kernels", *(f"{name} MiB" for name in runtimes)]
    print(_line(head) + _line(["---"] * len(head)), end="")
    for one in rows:
        of = {r["runtime"]: r for r in one["bench"]["runtimes"]}
        job, outside = one["job"], one["outside"]
        cells = [one["network"], f"{job['wall_s']:.0f}", f"{near_s(one['curve']):.0f}"]
        cells += [_number(job["baseline_ms"], ".4g"), str(job["candidates"])]
        cells += [
            _number(job["parity"]["max_rel_err"], ".0e"),
            "" if outside is None else f"{outside:.1%}",
        ]
        print(_line([*cells, *(_mebibytes(of.get(name)) for name in runtimes)]), end="")


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _interval(row: dict[str, Any] | None) -> str:
    if row is None or "out" in row:
        return "-"
    low, high = row["ci95_ms"] or (None, None)
    return f"{row['median_ms']:.4g}" + (f" ({low:.4g} to {high:.4g})" if low else "")


def _beside(row: dict[str, Any] | None) -> str:
    if row is None or "out" in row:
        return "-"
    faster = row.get("ours_faster")
    text = f"{row['median_ms']:.4g}"
    if faster is None:
        return text
    interval = faster["ci95"]
    text += f": {faster['speedup']:.2f}"
    return text + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def _mebibytes(row: dict[str, Any] | None) -> str:
    return "-" if row is None or "out" in row else f"{row['peak_bytes'] / 2**20:.0f}"


def curves(rows: list[dict[str, Any]]) -> Figure:
    """The sum of each network's best kernels, over the last one, against time."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for one in (row for row in rows if row["curve"]):
        seconds, sums = zip(*one["curve"], strict=True)
        axes.step(seconds, [ms / sums[-1] for ms in sums], where="post", label=one["network"])
    axes.set(ylim=(0.95, 2.0), xlabel="seconds since the job began")
    axes.set_ylabel("kernels' sum, times the last one")
    axes.axhline(NEAR, color="0.7", linewidth=0.8)
    axes.legend(ncols=2, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
