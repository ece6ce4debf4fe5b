"""What `compare.py` found, as tables: pure.

Of its JSON: `runs` by kernel, tuner and seed, `processes` (seconds by kernel, pass and entrant),
`finals` (their medians), `roofs` by kernel and pass, and what each kernel is, `kernels`.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

from kernels import KERNELS
from roofs import MULTIPLY_ADDS, SUM


def best_of(run: dict[str, Any]) -> float | None:
    return min((latency for _, latency, _ in run["results"] if latency), default=None)


def geometric(ratios: list[float]) -> str:
    """Geometric mean with the 95 % interval of a bootstrap over workloads."""
    if not ratios:
        return "-"
    logs = [math.log(r) for r in ratios]
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(4000))
    low, high = math.exp(means[100]), math.exp(means[3899])
    return f"{math.exp(statistics.fmean(logs)):.2f} ({low:.2f} to {high:.2f})"


def per_seed(data: dict[str, Any], kernel: str, against: str) -> list[dict[str, float]]:
    """For each seed that both have: ratios of time to the reference's best, quality, rate."""
    rows = []
    runs = data["runs"][kernel]
    for seed, ours in runs["tunefarm"].items():
        theirs = runs.get(against, {}).get(seed)
        best = best_of(ours)
        if theirs is None or best_of(theirs) is None or best is None:
            continue
        # Judged by the harness that timed both; in the tuner's own seconds that is the goal.
        slower = beside(data, kernel, f"{against} {seed}", f"tunefarm {seed}")
        goal = 1.01 * slower * best
        reached = next((at for at, s, _ in ours["results"] if s and s <= goal), math.inf)
        when = next(at for at, s, _ in theirs["results"] if s == best_of(theirs))
        by_then = [s for at, s, _ in ours["results"] if s and at <= theirs["wall_s"]]
        rows.append(
            {
                "time": when / reached,  # 0 where it was never reached
                "trials": slower,
                "wall": slower * best / min(by_then, default=math.inf),
                "rate": (len(ours["results"]) / ours["wall_s"])
                / (len(theirs["results"]) / theirs["wall_s"]),
                "ms": data["finals"][kernel][f"{against} {seed}"],
            }
        )
    return rows


def beside(data: dict[str, Any], kernel: str, name: str, *others: str) -> float:
    """How many times as long `name` takes as `others` in the mean: the median of the passes, each
    of which is a minute of its own."""
    passes: list[dict[str, float]] = list(data["processes"][kernel].values())
    return statistics.median(one[name] / middle([one[o] for o in others]) for one in passes)


def middle(values: list[float]) -> float:
    """Geometric mean; nought where a goal was never reached."""
    if min(values) <= 0:
        return 0.0
    return math.exp(statistics.fmean(math.log(v) for v in values))


def tables(data: dict[str, Any]) -> str:
    lines = []
    for against in ("metaschedule", "metaschedule-warm"):
        if not any(against in runs for runs in data["runs"].values()):
            continue
        lines += [
            f"\nAgainst {against}:\n",
            "| kernel | seeds | tunefarm ms | reference ms | (a) sooner | (b) equal trials "
            "| (c) equal time | (d) rate |",
            "|---|---|---|---|---|---|---|---|",
        ]
        totals: dict[str, list[float]] = {"time": [], "trials": [], "wall": [], "rate": []}
        for kernel in data["finals"]:
            rows = per_seed(data, kernel, against)
            if not rows:
                continue
            means = {key: middle([row[key] for row in rows]) for key in totals}
            for key, value in means.items():
                if value:
                    totals[key].append(value)
            finals = data["finals"][kernel]
            ours = middle([finals[f"tunefarm {s}"] for s in data["runs"][kernel]["tunefarm"]])
            theirs = middle([row["ms"] for row in rows])
            lines.append(
                f"| {kernel} | {len(rows)} | {ours * 1e3:.4g} | {theirs * 1e3:.4g} | "
                + " | ".join(f"{means[key]:.3g}" if means[key] else "never" for key in totals)
                + " |"
            )
        lines.append(
            "| geometric mean (95 %) of those that got there | | | | "
            + " | ".join(map(geometric, totals.values()))
            + " |"
        )
    lines += ["\nAgainst the machine and ONNX Runtime:\n"]
    lines += [
        "| kernel | bound | tunefarm ms | GFLOP/s | of peak | GB/s | of bandwidth "
        "| ONNX Runtime ms | times faster than it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    bounds = {kernel.name: kernel.bound for kernel in KERNELS}
    for kernel, finals in data["finals"].items():
        facts = data["kernels"][kernel]
        seeds = [name for name in finals if name.startswith("tunefarm ")]
        ours = middle([finals[name] for name in seeds])
        flops, moved = facts["flops"] / ours / 1e9, facts["bytes"] / ours / 1e9
        of_peak, of_bandwidth = parts_of_roofs(data, kernel)
        ahead = beside(data, kernel, "onnxruntime", *seeds)
        lines.append(
            f"| {kernel} | {bounds[kernel]} | {ours * 1e3:.4g} | {flops:.0f} | "
            f"{of_peak:.0%} | {moved:.1f} | {of_bandwidth:.0%} | "
            f"{finals['onnxruntime'] * 1e3:.4g} | {ahead:.2f} |"
        )
    peaks = [one[MULTIPLY_ADDS] for k in data["finals"] for one in roofs_of(data, k).values()]
    low, middle_one, high = (statistics.quantiles(peaks, n=20)[at] / 1e9 for at in (0, 9, 18))
    lines.append(f"\nPeak {middle_one:.0f} GFLOP/s in the median pass, {low:.0f} to {high:.0f}.")
    return "\n".join(lines)


def roofs_of(data: dict[str, Any], kernel: str) -> dict[str, dict[str, float]]:
    """By pass. Results of a time when the roofs were measured once have those for all passes."""
    found: dict[str, dict[str, float]] | None = data.get("roofs", {}).get(kernel)
    if found is not None:
        return found
    once, moved = data["roofline"], str(data["kernels"][kernel]["bytes"])
    roof = {MULTIPLY_ADDS: once["gflops"] * 1e9, SUM: once["gbytes_per_s"][moved] * 1e9}
    return dict.fromkeys(data["processes"][kernel], roof)


def parts_of_roofs(data: dict[str, Any], kernel: str) -> tuple[float, float]:
    """Of the peak and of the bandwidth, each pass by the roofs of its own minute: medians."""
    facts, roofs = data["kernels"][kernel], roofs_of(data, kernel)
    of_peak, of_bandwidth = [], []
    for number, found in data["processes"][kernel].items():
        ours = middle([s for name, s in found.items() if name.startswith("tunefarm ")])
        of_peak.append(facts["flops"] / ours / roofs[number][MULTIPLY_ADDS])
        of_bandwidth.append(facts["bytes"] / ours / roofs[number][SUM])
    return statistics.median(of_peak), statistics.median(of_bandwidth)
