"""What a farm says of itself, as plain data: the JSON of the commands, and what a farm's door gives
out. Everything is read off the journal and the farm home."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.devices.lock import DeviceLock
from tunefarm.devices.standing import standing
from tunefarm.home import Home
from tunefarm.measure.roofline import known_roof
from tunefarm.results.facts import Job
from tunefarm.results.journal import Journal
from tunefarm.results.tracking_record import run_ids
from tunefarm.results.uris import without_password

_EXIT = {"succeeded": 0, "interrupted": 130}


_OUTCOME = ("job", "status", "name", "targets", "mlflow")


def outcome(found: dict[str, Any]) -> dict[str, Any]:
    """Of a job's status, what `submit --json` prints."""
    return {key: found[key] for key in _OUTCOME}


def status(journal: Journal, job: Job) -> dict[str, Any]:
    """A job's outcome, its phase and counts; `exit_code` is that of one that is over."""
    uri = job.options["tracking_uri"]
    targets = {row["target"]: row["summary"] for row in journal.artifacts(job.id)}
    skipped = {name: {"skipped": reason} for name, reason in job.options["skipped"].items()}
    events = journal.events(job.id)
    phases = [e["detail"] for e in events if e["kind"] == "phase"]
    errors = [e["detail"] for e in events if e["kind"] == "failed"]
    now = journal.status(job.id)
    has_failed = bool(errors) and now == "failed"
    report = journal.home.job_dir(job.id) / "report.html"
    return {
        "job": job.id,
        "status": now,
        "name": job.name,
        "targets": {**targets, **skipped},
        "mlflow": {
            "tracking_uri": without_password(uri),  # whoever may ask the door is told this
            "run_id": run_ids(journal, job.id, uri).get("run"),
        },
        "phase": phases[-1]["phase"] if phases else "import",
        "started": moment(job.created),
        "counts": journal.counts(job.id),
        "error": errors[-1]["error"] if has_failed else None,
        "exit_code": _EXIT.get(now, errors[-1]["exit_code"] if errors else 5),
        "report": str(report) if report.exists() else None,
    }


def jobs(journal: Journal) -> list[dict[str, Any]]:
    """Newest first."""
    return [
        {
            "job": job.id,
            "name": job.name,
            "status": journal.status(job.id),
            "targets": [t.name for t in journal.targets(job.id)],
            "candidates": journal.counts(job.id)["measured"],
            "started": moment(job.created),
        }
        for job in journal.jobs()
    ]


def log(journal: Journal, job: Job) -> dict[str, Any]:
    path = journal.home.job_dir(job.id) / "job.log"
    failures = [
        f"{target.name}: candidate {row['candidate']}: {row['kind']}: {row['message']}"
        for target in journal.targets(job.id)
        for row in journal.failures(job.id, target.name) + journal.faults(job.id, target.name)
    ]
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return {"job": job.id, "lines": lines, "failures": failures}


def artifacts(journal: Journal) -> list[dict[str, Any]]:
    """Newest first."""
    return [
        {
            "name": row["name"],
            "target": row["target"],
            "verdict": row["summary"]["verdict"],
            "speedup": row["summary"]["speedup"],
            "tuned_ms": row["summary"]["tuned_ms"],
            "digest": row["digest"],
            "path": row["path"],
            "job": row["job"],
            "created": moment(row["time"]),
        }
        for row in journal.artifacts()
    ]


def device(home: Home, of: Device) -> dict[str, Any]:
    """A device of this machine: what it is and can do, who has it, and the machine's load."""
    roof = known_roof(home, of)
    lock = DeviceLock(of)
    holder: dict[str, Any] | None = None
    if lock.acquire({"job": "devices list"}):
        lock.release()
    else:
        holder = lock.holder()
    return {
        **of.to_dict(),
        "roof": roof.to_dict() if roof is not None else None,
        "busy": holder,
        "standing": standing(home, of.id).to_dict(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def noise(journal: Journal, unit: str) -> float | None:
    """By how much the canary of the unit's latest measuring blocks varies: their median distance
    from their median, as a part of it; None where it has measured too little."""
    found = journal.canaries(unit)
    if len(found) < 3:
        return None
    middle = statistics.median(found)
    return statistics.median(abs(one - middle) for one in found) / middle


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
