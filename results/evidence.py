"""The journal's facts as tables: DataFrames for reports, Parquet for artifacts and export."""

from __future__ import annotations

import io
import statistics
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tunefarm.frontend.program import as_floats
from tunefarm.measure.roofline import known_roof
from tunefarm.results.facts import JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.known import known_before, last_in_place

KERNEL_COLUMNS = [
    *("task", "kernel", "calls", "mflop", "candidates", "verdict", "untuned_ms", "tuned_ms"),
    *("speedup", "low", "high", "gflops", "of_roof", "in_place_ms", "shapes"),
]
CANDIDATE_COLUMNS = [
    *("candidate", "task", "kernel", "origin", "median_ms", "samples", "truncated", "build_s"),
    *("failure", "message"),
]


def kernel_table(journal: Journal, job: str, target: str) -> pd.DataFrame:
    """One row per kernel: work, verdict, latencies (ms), speed-up with interval, GFLOP/s, and how
    near it is to what the device can do at best (1 is there; missing where that is not known; more
    than 1 where minimal filtering, or a table, takes fewer operations than are counted);
    `in_place_ms` is one call's in the model that ships."""
    placed = (in_place(journal, job, target) or {}).get("kernels", {})
    verdicts = journal.verdicts(job, target)
    owners = {c.id: c.task for c in journal.candidates(job, target)}
    tried: dict[str, int] = {}
    for m in journal.measurements(job, target, ("screen",)):
        if m.candidate in owners:  # else its own record is lost
            tried[owners[m.candidate]] = tried.get(owners[m.candidate], 0) + 1
    device = next(t.device for t in journal.targets(job) if t.name == target)
    roof = known_roof(journal.home, device)
    rows = []
    for task in journal.tasks(job, target):
        row = verdicts.get(task["task"], {})
        tuned_s = row.get("tuned_s")
        flops = as_floats(task["name"], task["flops"], task["args"], device.features)
        floor_s = roof.floor_s(flops, task["bytes"]) if roof is not None else None
        shapes = " ".join("x".join(map(str, shape)) for shape, _ in task["args"])
        rows.append(
            {
                "task": task["task"],
                "kernel": task["name"],
                "calls": task["weight"],
                "mflop": round(task["flops"] / 1e6, 3),
                "candidates": tried.get(task["task"], 0),
                "verdict": row.get("verdict", "UNMEASURED"),
                "untuned_ms": _ms(row.get("base_s")),
                "tuned_ms": _ms(tuned_s),
                "speedup": _round(row.get("speedup")),
                "low": _round(row.get("low")),
                "high": _round(row.get("high")),
                "gflops": _round(task["flops"] / tuned_s / 1e9) if tuned_s else None,
                "of_roof": _round(floor_s / tuned_s) if floor_s and tuned_s else None,
                "in_place_ms": _ms(_per_call(placed.get(task["task"]), task["weight"])),
                "shapes": shapes,
            }
        )
    return pd.DataFrame(rows, columns=KERNEL_COLUMNS)


def in_place(journal: Journal, job: str, target: str) -> dict[str, Any] | None:
    """See `known.last_in_place`; and `outside`, the share of the time that is in no kernel
    (reshapes that the runtime does itself are none)."""
    found = last_in_place(journal, job, target)
    if found is None:
        return None
    outside = 1 - sum(found["kernels"].values()) / found["model_s"]  # an older job does not tell it
    return {"outside": max(0.0, outside), **found}


def _per_call(seconds: float | None, calls: int) -> float | None:
    return None if seconds is None else seconds / max(1, calls)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def candidate_table(journal: Journal, job: str, target: str) -> pd.DataFrame:
    """One row per proposed candidate, in the order of proposal."""
    names = {t["task"]: t["name"] for t in journal.tasks(job, target)}
    screened = {m.candidate: m for m in journal.measurements(job, target, ("screen",))}
    failed = {f["candidate"]: f for f in journal.failures(job, target)}
    rows = []
    for candidate in journal.candidates(job, target):
        measurement = screened.get(candidate.id)
        failure = failed.get(candidate.id)
        rows.append(
            {
                "candidate": candidate.id,
                "task": candidate.task,
                "kernel": names.get(candidate.task, ""),
                "origin": candidate.origin,
                "median_ms": _ms(statistics.median(measurement.samples)) if measurement else None,
                "samples": len(measurement.samples) if measurement else 0,
                "truncated": bool(measurement and measurement.truncated),
                "build_s": _round(measurement.build_s) if measurement else None,
                "failure": failure["kind"] if failure else "",
                "message": failure["message"] if failure else "",
            }
        )
    return pd.DataFrame(rows, columns=CANDIDATE_COLUMNS)


def model_samples_ms(journal: Journal, job: str, target: str) -> tuple[list[float], list[float]]:
    """Every whole-model sample in milliseconds: untuned, tuned."""
    sides: dict[str, list[float]] = {"base": [], "tuned": []}
    for m in journal.measurements(job, target, ("model",)):
        if m.candidate in sides:
            sides[m.candidate] += [s * 1e3 for s in m.samples]
    return sides["base"], sides["tuned"]


def best_so_far(journal: Journal, job: str, target: str) -> pd.DataFrame:
    """After each screened candidate: seconds since the first, and the sum over kernels of
    weight times best latency (ms), untuned schedules and what was known before included."""
    tasks = {t["task"]: t for t in journal.tasks(job, target)}
    owners = {c.id: c.task for c in journal.candidates(job, target)}
    owners |= journal.baseline_owner(job, target)
    best = known_before(journal, job, target)
    rows: list[dict[str, Any]] = []
    times = journal.measurement_times(job, target)
    for m in journal.measurements(job, target, ("baseline", "screen")):
        task = owners.get(m.candidate, "")
        if task not in tasks:  # its own record is lost, or its kernel's
            continue
        latency = statistics.median(m.samples)
        best[task] = min(latency, best.get(task, latency))
        if m.stage == "screen":
            total = sum(tasks[t]["weight"] * s for t, s in best.items() if t in tasks)
            rows.append({"trial": len(rows) + 1, "time": times[m.candidate], "ms": total * 1e3})
    return pd.DataFrame(rows, columns=["trial", "time", "ms"])


def measurements(journal: Journal, job: str, target: JobTarget) -> bytes:
    """Every raw sample of a target, as Parquet."""
    made = journal.measurements(job, target.name)
    owners = {c.id: c.task for c in journal.candidates(job, target.name)}
    owners |= journal.baseline_owner(job, target.name)
    table = pa.table(
        {
            "candidate": [m.candidate for m in made],
            "task": [owners.get(m.candidate, "") for m in made],
            "stage": [m.stage for m in made],
            "process": [m.process for m in made],
            "samples_s": pa.array([list(m.samples) for m in made], pa.list_(pa.float64())),
            "truncated": [m.truncated for m in made],
            "block": pa.array([m.block for m in made], pa.int64()),
        },
        metadata={"device": target.device.fingerprint, "target": target.resolved.text},
    )
    return _parquet(table)


def verdicts(journal: Journal, job: str, target: JobTarget) -> bytes:
    rows = list(journal.verdicts(job, target.name).values())
    names = ("subject", "winner", "base_s", "tuned_s", "speedup", "low", "high", "verdict")
    text = {"subject", "winner", "verdict"}
    table = pa.table(
        {n: pa.array([r[n] for r in rows], pa.string() if n in text else None) for n in names}
    )
    return _parquet(table)


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
