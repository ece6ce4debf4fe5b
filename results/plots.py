"""Figures of a job, for MLflow and the report. matplotlib without pyplot: no global state."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_NONE = NullFormatter()
_BASE, _TUNED, _MUTED = "#9aa5b1", "#0b7285", "#ced4da"
_VERDICT_COLOURS = {"FASTER": _TUNED, "SLOWER": "#c92a2a", "SAME": _BASE, "AMBIGUOUS": "#e8a33d"}


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def best_over_trials(curves: dict[str, pd.DataFrame], untuned_ms: dict[str, float]) -> Figure:
    """Best whole-model latency known after each measured candidate, one line per target."""
    figure = _figure(7.5, 4.0)
    axes = figure.add_subplot()
    for target, curve in curves.items():
        if not curve.empty:
            axes.step(curve["trial"], curve["ms"], where="post", label=target, lw=1.8)
        if target in untuned_ms:
            axes.axhline(untuned_ms[target], color=_BASE, lw=1, ls="--")
            axes.annotate(
                f"untuned {untuned_ms[target]:.3g} ms",
                (1, untuned_ms[target]),
                textcoords="offset points",
                xytext=(4, -12),
                color="#5f6b76",
                fontsize=9,
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(_PLAIN)
    axes.yaxis.set_minor_formatter(_NONE)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.set_xlabel("measured candidates")
    axes.set_ylabel("sum of kernel latencies (ms)")
    axes.set_title("Best latency over trials", loc="left")
    axes.grid(True, which="both", axis="y", color=_MUTED, lw=0.4)
    if len(curves) > 1:
        axes.legend(frameon=False)
    return _clean(figure)


def kernel_speedups(kernels: pd.DataFrame, target: str) -> Figure:
    """Speed-up of each kernel over its untuned schedule, with its interval, heaviest first."""
    known = kernels.dropna(subset=["speedup"]).head(40).iloc[::-1]
    figure = _figure(8.0, 1.2 + 0.26 * max(4, len(known)))
    axes = figure.add_subplot()
    if not known.empty:
        labels = [
            f"{kernel}  {shapes.split(' ')[-1]}"
            for kernel, shapes in zip(known["kernel"], known["shapes"], strict=True)
        ]
        errors = [known["speedup"] - known["low"], known["high"] - known["speedup"]]
        axes.barh(
            range(len(known)),
            known["speedup"],
            xerr=[e.clip(lower=0) for e in errors],
            color=[_VERDICT_COLOURS.get(v, _BASE) for v in known["verdict"]],
            error_kw={"lw": 0.9, "ecolor": "#343a40"},
            height=0.68,
        )
        axes.set_yticks(range(len(known)), labels, fontsize=8)
        axes.set_ylim(-0.7, len(known) - 0.3)
    axes.axvline(1.0, color="#343a40", lw=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.xaxis.set_minor_formatter(_NONE)
    axes.set_xlabel("times faster than untuned (95 % interval)")
    axes.set_title(f"Kernels on {target}", loc="left")
    axes.grid(True, axis="x", color=_MUTED, lw=0.4)
    return _clean(figure)


def model_samples(base_ms: list[float], tuned_ms: list[float], target: str) -> Figure:
    """Every latency sample of the whole model, untuned and tuned, in separate panels."""
    figure = _figure(7.5, 3.2)
    sides = (("untuned", base_ms, _BASE), ("tuned", tuned_ms, _TUNED))
    for index, (label, samples, colour) in enumerate(sides):
        axes = figure.add_subplot(1, 2, index + 1)
        if samples:
            axes.hist(samples, bins=min(30, max(5, len(samples) // 3)), color=colour)
            middle = float(pd.Series(samples).median())
            axes.axvline(middle, color="#343a40", lw=1)
            axes.set_title(f"{label}: median {middle:.4g} ms, n = {len(samples)}", loc="left")
        axes.set_xlabel("latency (ms)")
        axes.set_ylabel("samples" if index == 0 else "")
    figure.suptitle(f"Whole model on {target}", x=0.01, ha="left")
    return _clean(figure)


def runtimes(rows: list[dict[str, Any]], model: str) -> Figure:
    """Median latency of a model in each runtime, with its interval, fastest on top; below them, and
    pale, those that compute something else."""
    known = sorted(rows, key=lambda row: (row["right"], -float(row["median_ms"])))
    figure = _figure(7.5, 1.4 + 0.4 * max(2, len(known)))
    axes = figure.add_subplot()
    medians = [row["median_ms"] for row in known]
    axes.barh(
        range(len(known)),
        medians,
        xerr=[
            [max(0.0, row["median_ms"] - _ends(row)[0]) for row in known],
            [max(0.0, _ends(row)[1] - row["median_ms"]) for row in known],
        ],
        color=[_color(row) for row in known],
        error_kw={"lw": 0.9, "ecolor": "#343a40"},
        height=0.66,
    )
    for place, row in enumerate(known):
        axes.annotate(
            f"{row['median_ms']:.3g}" + ("" if row["right"] else "  WRONG"),
            (_ends(row)[1], place),
            textcoords="offset points",
            xytext=(6, -3),
            fontsize=9,
        )
    axes.set_yticks(range(len(known)), [f"{row['runtime']}  {row['setting']}" for row in known])
    if medians and max(medians) > 20 * min(medians):
        axes.set_xscale("log")
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds per inference (median, 95 % interval)")
    axes.set_title(model, loc="left")
    axes.grid(True, axis="x", color=_MUTED, lw=0.4)
    return _clean(figure)


def _color(row: dict[str, Any]) -> str:
    if not row["right"]:
        return _MUTED
    return _TUNED if row["runtime"] == "tunefarm" else _BASE


def _ends(row: dict[str, Any]) -> tuple[float, float]:
    """Of the interval, where there is one."""
    low, high = row["ci95_ms"] or (row["median_ms"], row["median_ms"])
    return float(low), float(high)


def _clean(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure
