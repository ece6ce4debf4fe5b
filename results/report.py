"""The HTML report of a job: one file, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import html
import io
import time
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from tunefarm.devices.device import EMULATED
from tunefarm.home import write_atomically
from tunefarm.measure.facts import PREVIOUS
from tunefarm.measure.stats import Verdict
from tunefarm.results import evidence, plots, whole
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.reported import as_of
from tunefarm.results.shipped import previous

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#212529}
body{max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.2rem;margin:2.2rem 0 .6rem}
.sub{color:#5f6b76;margin:.2rem 0 1.2rem}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.card{border:1px solid #dee2e6;border-radius:8px;padding:.6rem 1rem;min-width:8.5rem}
.card b{display:block;font-size:1.35rem}.card span{color:#5f6b76;font-size:.85rem}
.FASTER b{color:#0b7285}.SLOWER b{color:#c92a2a}.AMBIGUOUS b{color:#b76e00}
table{border-collapse:collapse;font-size:.84rem;width:100%}
th,td{padding:.25rem .55rem;border-bottom:1px solid #e9ecef;text-align:right;white-space:nowrap}
th:nth-child(-n+1),td:nth-child(-n+1),.l{text-align:left}
.scroll{overflow-x:auto}img{max-width:100%;height:auto}
details{margin:.8rem 0}summary{cursor:pointer;color:#0b7285}
code{background:#f1f3f5;padding:.1rem .3rem;border-radius:4px;font-size:.85em}
"""


def write(journal: Journal, job: Job, path: Path) -> Path:
    """Render the report of a job to `path`."""
    written = as_of(journal, job)
    parts = [_head(journal, job)]
    for target in journal.targets(job.id):
        parts.append(_target(journal, job, target))
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8>{written}"
        f"<title>{html.escape(job.name)} - tunefarm</title>"
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>"
    )
    write_atomically(path, page.encode())
    return path


def _head(journal: Journal, job: Job) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(job.created))
    return (
        f"<h1>{html.escape(job.name)}</h1><p class=sub>job <code>{job.id}</code>, submitted "
        f"{when}, {journal.status(job.id)}; model <code>{html.escape(job.model_source)}</code> "
        f"<code>{job.model_digest[:12]}</code></p>"
    )


def _target(journal: Journal, job: Job, target: JobTarget) -> str:
    artifact = next((a for a in journal.artifacts(job.id) if a["target"] == target.name), None)
    kernels = evidence.kernel_table(journal, job.id, target.name)
    curve = evidence.best_so_far(journal, job.id, target.name)
    base, tuned = evidence.model_samples_ms(journal, job.id, target.name)
    untuned = {target.name: float(pd.Series(base).median())} if base else {}
    body = [
        f"<h2>{html.escape(target.name)}</h2><p class=sub>{html.escape(target.resolved.text)} "
        f"{_measured_on(target)}</p>"
    ]
    if artifact is not None:
        placed = evidence.in_place(journal, job.id, target.name)
        body.append(_cards(artifact["summary"], placed))
    if len(curve):
        body.append(_image(plots.best_over_trials({target.name: curve}, untuned)))
    if base:
        body.append(_image(plots.model_samples(base, tuned, target.name)))
        body.append(_builds(journal, job, target))
    if not kernels.empty and kernels["speedup"].notna().any():
        body.append(_image(plots.kernel_speedups(kernels, target.name)))
    body.append(f"<h2>Kernels</h2><div class=scroll>{_table(kernels)}</div>")
    body.append(_failures(journal, job, target))
    body.append(_conditions(journal, job, target))
    if artifact is not None:
        body.append(
            f"<p>Artifact <code>{html.escape(artifact['path'])}</code><br>digest "
            f"<code>{artifact['digest']}</code></p>"
        )
    return "".join(body)


def _measured_on(target: JobTarget) -> str:
    device = target.device
    if device.is_none:
        return "of which there is no device: models chose the schedules, and nothing was measured"
    return f"on {html.escape(device.sku)}, {device.cores} cores"


_BUILDS = {"base": "untuned", "tuned": "tuned", PREVIOUS: "shipped before"}
_BUILD_COLUMNS = {
    "build": "build",
    "median_ms": "median ms",
    "p90_ms": "90th percentile ms",
    "p99_ms": "99th percentile ms",
    "load_ms": "load ms",
    "first_ms": "first inference ms",
    "peak_mb": "peak memory MB",
}


def _builds(journal: Journal, job: Job, target: JobTarget) -> str:
    rows = whole.builds(journal, job.id, target.name)
    rows["build"] = rows["build"].map(_BUILDS)
    before = previous(journal, job.id, target.name)
    return (
        f"<h2>The whole model</h2><div class=scroll>{_table(rows, _BUILD_COLUMNS)}</div>"
        "<p class=sub>Medians of rounds in which all builds take turns, in fresh processes. "
        "Percentiles are of the tuned build alone, one inference after another, whatever else the "
        "machine did. A process loads one build before the others: what that took with its files "
        f"in memory, its first inference, and the most memory held by then.{_against(before)}</p>"
    )


def _against(before: dict[str, Any] | None) -> str:
    if before is None:
        return ""
    what = f" What shipped before is <code>{before['digest'][:12]}</code> of {before['job']}"
    if before["speedup"]:
        low, high = before["speedup_ci95"]
        return (
            f"{what}: this artifact is {before['verdict']}, {before['speedup']:.4g}x as fast "
            f"({low:.4g} to {high:.4g})."
        )
    return f"{what}: {'the same bytes' if before['verdict'] == Verdict.SAME else 'not compared'}."


def _cards(summary: dict[str, Any], placed: dict[str, Any] | None) -> str:
    interval, before = summary["speedup_ci95"], summary.get("previous")
    service, parity = summary.get("service") or {}, summary["parity"]
    entries = [
        (summary["verdict"], "verdict"),
        (f"{summary['speedup']:.4g}x" if summary["speedup"] else "", "faster than untuned"),
        (f"{interval[0]:.4g} to {interval[1]:.4g}" if interval else "", "95 % interval"),
        (_latency(summary["tuned_ms"]), "tuned, median"),
        (_latency(service.get("p90_ms")), "90th percentile"),
        (_latency(service.get("p99_ms")), "99th percentile"),
        (_latency(summary["baseline_ms"]), "untuned, median"),
        (
            f"{parity['max_rel_err']:.1e}" if parity["max_rel_err"] is not None else "",
            "largest relative error"
            + (" (too large)" if parity["passed"] is False else "")
            + (f", on a {EMULATED}" if parity.get("ran_on") == EMULATED else ""),
        ),
        (str(summary["candidates"] or ""), "candidates measured"),
        (f"{summary['wall_s']:.0f} s", "wall time"),
    ]
    if before is not None and before["speedup"]:
        entries.append((f"{before['speedup']:.4g}x", "as fast as what shipped before"))
    if placed is not None:
        entries.append((f"{placed['outside']:.1%}", "of its time outside of kernels"))
    cards = "".join(
        f"<div class='card {html.escape(value) if label == 'verdict' else ''}'>"
        f"<b>{html.escape(value)}</b><span>{label}</span></div>"
        for value, label in entries
        if value
    )
    why = summary.get("why_untuned")  # an older tunefarm's says nothing
    said = f"<p>The untuned build ships: {html.escape(why)}.</p>" if why else ""
    return f"<div class=cards>{cards}</div>{said}"


def _latency(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.4g} ms"


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<p><img alt='' src='data:image/png;base64,{data}'></p>"


_COLUMNS = {
    "kernel": "kernel",
    "shapes": "arguments",
    "calls": "calls",
    "mflop": "MFLOP",
    "candidates": "tried",
    "untuned_ms": "untuned ms",
    "tuned_ms": "tuned ms",
    "in_place_ms": "in place ms",
    "speedup": "faster",
    "gflops": "GFLOP/s",
    "of_roof": "of roof",
    "verdict": "verdict",
}


def _table(frame: pd.DataFrame, labels: dict[str, str] = _COLUMNS) -> str:
    columns = {n: label for n, label in labels.items() if frame.empty or _says(frame[n])}
    head = "".join(f"<th>{label}</th>" for label in columns.values())
    rows = []
    for row in frame.to_dict("records"):
        cells = "".join(f"<td>{_cell(row[name])}</td>" for name in columns)
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _says(column: pd.Series) -> bool:
    """Anything at all: where nothing was measured, most do not."""
    return any(_cell(value) not in ("", "0") for value in column)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


def _failures(journal: Journal, job: Job, target: JobTarget) -> str:
    rows = journal.failures(job.id, target.name) + journal.faults(job.id, target.name)
    if not rows:
        return ""
    items = "".join(
        f"<tr><td>{r['candidate']}</td><td class=l>{r['kind']}</td>"
        f"<td class=l>{html.escape(r['message'][:160])}</td></tr>"
        for r in rows[:100]
    )
    return (
        f"<details><summary>{len(rows)} candidates failed</summary>"
        f"<div class=scroll><table><tr><th>candidate</th><th class=l>kind</th>"
        f"<th class=l>what</th></tr>{items}</table></div></details>"
    )


def _conditions(journal: Journal, job: Job, target: JobTarget) -> str:
    """The canary's spread over the job: how quiet the machine was."""
    canaries = [block["canary_s"] for block in journal.blocks(job.id, target.name)]
    if not canaries:
        return ""
    series = pd.Series(canaries)
    limit = job.protocol["canary_drift"]
    drifted = int((series > series.median() * (1 + limit)).sum())
    return (
        f"<p class=sub>Canary over {len(series)} measuring blocks: median "
        f"{series.median() * 1e3:.3g} ms, from {series.min() * 1e3:.3g} to "
        f"{series.max() * 1e3:.3g}; {drifted} blocks more than {limit:.0%} slower. Verdicts come "
        "from interleaved races and held-out runs in fresh processes, not from these blocks.</p>"
    )
