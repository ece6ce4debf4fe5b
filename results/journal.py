"""The durable record of a farm home: what happened, in SQLite.

Facts are appended and never changed; each call is one transaction, durable when it returns; a
fact that is delivered twice is stored once. The driver of a job is the only writer of its rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.target import Target, target_from_json
from tunefarm.errors import Failure, StoreError, UnknownJob
from tunefarm.frontend.program import TuningTask
from tunefarm.home import Home
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results import schema
from tunefarm.results.driver_lock import driver_is_alive
from tunefarm.search.candidate import Candidate, baseline

TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Job:
    """A job as it was submitted; `status` is derived from its events and its driver's life."""

    id: str
    name: str
    created: float
    model_digest: str
    model_source: str
    options: dict[str, Any]
    protocol: dict[str, Any]


@dataclass(frozen=True)
class JobTarget:
    """A target as the user named it, what it stands for, and the device that serves it."""

    name: str
    resolved: Target
    device: Device
    toolchain: str


@dataclass(frozen=True)
class Measurement:
    """One process's samples (seconds per call) of one candidate at one stage."""

    candidate: str
    stage: str
    process: int
    samples: tuple[float, ...]
    truncated: bool = False
    build_s: float | None = None
    block: int | None = None


class Journal:
    """Open the journal of a farm home, making it if there is none."""

    def __init__(self, home: Home, url: str | None = None) -> None:
        self.home = home
        self._engine = sa.create_engine(url or home.journal_url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _configure_sqlite)
        try:
            schema.metadata.create_all(self._engine)
            self._check_version()
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(
                f"the journal {self._engine.url!r} cannot be used: {_reason(error)}",
                hint="Check that the file is a journal and may be written, or set TUNEFARM_HOME.",
            ) from error

    def close(self) -> None:
        self._engine.dispose()

    def _check_version(self) -> None:
        self._add(schema.meta, [{"key": "schema", "value": str(schema.SCHEMA_VERSION)}])
        found = self._rows(sa.select(schema.meta.c.value).where(schema.meta.c.key == "schema"))
        if int(found[0]["value"]) > schema.SCHEMA_VERSION:
            raise StoreError(
                f"the journal has schema {found[0]['value']}; this tunefarm knows "
                f"{schema.SCHEMA_VERSION}",
                hint="Use the tunefarm that wrote it, or a newer one.",
            )

    # ------------------------------------------------------------------ writing

    def _add(self, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        """Insert, leaving what is there already as it is."""
        if not rows:
            return
        module = sqlite if self._engine.dialect.name == "sqlite" else postgresql
        statement = module.insert(table).on_conflict_do_nothing()
        with self._writing() as connection:
            connection.execute(statement, rows)

    @contextmanager
    def _writing(self) -> Any:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.OperationalError as error:
            raise StoreError(
                f"the journal cannot be written: {_reason(error)}",
                hint="Nothing that was acknowledged is lost; free the disk or mend the store, "
                "then resume the job.",
            ) from error

    def add_job(self, job: Job, targets: Iterable[JobTarget]) -> None:
        """A job with all its targets, or nothing."""
        row = {
            "job": job.id,
            "name": job.name,
            "created": job.created,
            "model_digest": job.model_digest,
            "model_source": job.model_source,
            "options": job.options,
            "protocol": job.protocol,
        }
        target_rows = [
            {
                "job": job.id,
                "target": target.name,
                "resolved": target.resolved.to_json(),
                "device": target.device.to_dict(),
                "toolchain": target.toolchain,
            }
            for target in targets
        ]
        queued = {"job": job.id, "time": time.time(), "kind": "queued", "detail": {}}
        with self._writing() as connection:
            connection.execute(sa.insert(schema.jobs), [row])
            connection.execute(sa.insert(schema.job_targets), target_rows)
            connection.execute(sa.insert(schema.job_events), [queued])

    def add_event(self, job: str, kind: str, **detail: Any) -> None:
        row = {"job": job, "time": time.time(), "kind": kind, "detail": detail}
        self._add(schema.job_events, [row])

    def add_tasks(self, job: str, target: str, tasks: Iterable[TuningTask]) -> None:
        self._add(
            schema.tasks,
            [
                {
                    "job": job,
                    "target": target,
                    "task": task.id,
                    "name": task.name,
                    "weight": task.weight,
                    "flops": task.flops,
                    "bytes": task.bytes,
                    "args": [[list(a.shape), a.dtype] for a in task.args],
                    "position": position,
                }
                for position, task in enumerate(tasks)
            ],
        )

    def add_candidates(self, job: str, target: str, found: Iterable[Candidate]) -> None:
        self._add(
            schema.candidates,
            [
                {
                    "job": job,
                    "target": target,
                    "candidate": candidate.id,
                    "task": candidate.task,
                    "trace": candidate.trace,
                    "origin": candidate.origin,
                }
                for candidate in found
            ],
        )

    def add_measurements(self, job: str, target: str, made: Iterable[Measurement]) -> None:
        self._add(
            schema.measurements,
            [
                {
                    "job": job,
                    "target": target,
                    "candidate": m.candidate,
                    "stage": m.stage,
                    "process": m.process,
                    "samples": list(m.samples),
                    "truncated": m.truncated,
                    "build_s": m.build_s,
                    "block": m.block,
                    "time": time.time(),
                }
                for m in made
            ],
        )

    def add_failure(self, job: str, target: str, candidate: str, failure: Failure) -> None:
        row = {
            "job": job,
            "target": target,
            "candidate": candidate,
            "kind": failure.kind.value,
            "message": failure.message,
            "time": time.time(),
        }
        self._add(schema.failures, [row])

    def add_block(self, job: str, target: str, canary_s: float, conditions: Any) -> int:
        """A measuring block begins: the canary's time and the machine's condition; its number."""
        row = {
            "job": job,
            "target": target,
            "time": time.time(),
            "canary_s": canary_s,
            "conditions": conditions,
        }
        with self._writing() as connection:
            result = connection.execute(sa.insert(schema.blocks).values(row))
            return int(result.inserted_primary_key[0])

    def add_process(
        self, job: str, target: str, phase: str, process: int, made: Iterable[Measurement]
    ) -> None:
        """One fresh process of a phase has reported (its measurements first)."""
        self.add_measurements(job, target, made)  # a kill in between repeats the process, no more
        row = {
            "job": job,
            "target": target,
            "phase": phase,
            "process": process,
            "time": time.time(),
        }
        self._add(schema.processes, [row])

    def add_verdict(
        self,
        job: str,
        target: str,
        subject: str,
        winner: str | None,
        result: Comparison | None,
        otherwise: Verdict = Verdict.UNMEASURED,
    ) -> None:
        """What the evidence says of a kernel (its task id) or of the whole (``model``); without
        a comparison, `otherwise`."""
        row = {
            "job": job,
            "target": target,
            "subject": subject,
            "winner": winner,
            "base_s": result.base_s if result else None,
            "tuned_s": result.tuned_s if result else None,
            "speedup": result.speedup if result else None,
            "low": result.low if result else None,
            "high": result.high if result else None,
            "verdict": (result.verdict if result else otherwise).value,
        }
        self._add(schema.verdicts, [row])

    def add_artifact(
        self, job: str, target: str, name: str, digest: str, path: Path, summary: dict[str, Any]
    ) -> None:
        row = {
            "job": job,
            "target": target,
            "name": name,
            "digest": digest,
            "path": str(path),
            "summary": summary,
            "time": time.time(),
        }
        self._add(schema.artifacts, [row])

    def add_tracked(self, job: str, uri: str, what: str, value: str) -> None:
        self._add(schema.tracked, [{"job": job, "uri": uri, "what": what, "value": value}])

    # ------------------------------------------------------------------ reading

    def _rows(self, query: Any) -> list[dict[str, Any]]:
        with self._engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _of(self, table: sa.Table, job: str, target: str | None = None) -> list[dict[str, Any]]:
        query = sa.select(table).where(table.c.job == job)
        if target is not None:
            query = query.where(table.c.target == target)
        for name in ("seq", "position", "block", "time"):
            if name in table.c:
                query = query.order_by(table.c[name])
                break
        return self._rows(query)

    def job(self, wanted: str) -> Job:
        """The job with this id, the newest of this name, or this unambiguous beginning of an id.

        Raises:
            UnknownJob: there is none, or more than one.
        """
        jobs = self.jobs()
        found = [j for j in jobs if j.id == wanted] or [j for j in jobs if j.name == wanted][:1]
        found = found or [j for j in jobs if j.id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownJob(f"{wanted!r} is the beginning of {len(found)} jobs", hint=_list(found))
        raise UnknownJob(
            f"no job {wanted!r} in {self.home.root}",
            hint=f"There are: {_list(jobs)}" if jobs else "There are none yet: tunefarm submit.",
        )

    def jobs(self) -> list[Job]:
        """Newest first."""
        rows = self._rows(sa.select(schema.jobs).order_by(schema.jobs.c.created.desc()))
        return [
            Job(
                r["job"],
                r["name"],
                r["created"],
                r["model_digest"],
                r["model_source"],
                r["options"],
                r["protocol"],
            )
            for r in rows
        ]

    def events(self, job: str) -> list[dict[str, Any]]:
        return self._of(schema.job_events, job)

    def targets(self, job: str) -> list[JobTarget]:
        return [
            JobTarget(
                r["target"],
                target_from_json(r["resolved"]),
                device_from_dict(r["device"]),
                r["toolchain"],
            )
            for r in self._of(schema.job_targets, job)
        ]

    def tasks(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.tasks, job, target)

    def candidates(self, job: str, target: str) -> list[Candidate]:
        of = next(t for t in self.targets(job) if t.name == target)
        return [
            Candidate(r["task"], of.resolved.text, of.toolchain, r["trace"], r["origin"])
            for r in self._of(schema.candidates, job, target)
        ]

    def measurements(
        self, job: str, target: str, stages: Iterable[str] | None = None
    ) -> list[Measurement]:
        rows = self._of(schema.measurements, job, target)
        wanted = None if stages is None else set(stages)
        return [
            Measurement(
                r["candidate"],
                r["stage"],
                r["process"],
                tuple(r["samples"]),
                r["truncated"],
                r["build_s"],
                r["block"],
            )
            for r in rows
            if wanted is None or r["stage"] in wanted
        ]

    def measurement_times(self, job: str, target: str) -> dict[str, float]:
        """When each candidate was first measured, in seconds since the epoch."""
        times: dict[str, float] = {}
        for row in self._of(schema.measurements, job, target):
            times.setdefault(row["candidate"], row["time"])
        return times

    def baseline_owner(self, job: str, target: str) -> dict[str, str]:
        """The task of each untuned candidate (which no strategy proposed)."""
        of = next(t for t in self.targets(job) if t.name == target)
        tasks = [row["task"] for row in self.tasks(job, target)]
        return {baseline(t, of.resolved.text, of.toolchain).id: t for t in tasks}

    def outcomes(self, job: str, target: str) -> list[tuple[str, float | None, bool]]:
        """What became of each candidate, baselines included, in the order in which it happened:
        its id, median latency in seconds (None for a failure), and whether it was given up."""
        rows: list[tuple[float, str, float | None, bool]] = [
            (r["time"], r["candidate"], statistics.median(r["samples"]), r["truncated"])
            for r in self._of(schema.measurements, job, target)
            if r["stage"] in ("screen", "baseline")
        ]
        rows += [(f["time"], f["candidate"], None, False) for f in self.failures(job, target)]
        return [(c, latency, gone) for _, c, latency, gone in sorted(rows, key=lambda r: r[0])]

    def spent_s(self, job: str) -> float:
        """Seconds that the job's earlier lives were driven, waiting for a device not counted."""
        total = 0.0
        started: float | None = None
        last = 0.0
        for event in self.events(job):
            moment = float(event["time"])
            if event["kind"] == "running":
                total += last - started if started is not None else 0.0
                started = moment
            elif event["kind"] in (*TERMINAL, "interrupted") and started is not None:
                total, started = total + moment - started, None
            last = moment
        if started is None:
            return total
        # Killed without a word: the last thing it wrote is when it was last known to live.
        begun = started
        times = [m for t in self.targets(job) for m in self.measurement_times(job, t.name).values()]
        return total + max([last, *(t for t in times if t > begun)]) - begun

    def failures(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.failures, job, target)

    def blocks(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.blocks, job, target)

    def processes(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.processes, job, target)

    def verdicts(self, job: str, target: str) -> dict[str, dict[str, Any]]:
        return {r["subject"]: r for r in self._of(schema.verdicts, job, target)}

    def artifacts(self, job: str | None = None) -> list[dict[str, Any]]:
        """Newest first."""
        query = sa.select(schema.artifacts).order_by(schema.artifacts.c.time.desc())
        if job is not None:
            query = query.where(schema.artifacts.c.job == job)
        return self._rows(query)

    def tracked(self, job: str, uri: str) -> dict[str, str]:
        table = schema.tracked
        query = sa.select(table).where(table.c.job == job, table.c.uri == uri)
        return {r["what"]: r["value"] for r in self._rows(query)}

    def counts(self, job: str) -> dict[str, int]:
        """How many screened, failed and proposed candidates a job has, over all targets."""
        screened = sa.select(sa.func.count()).where(
            schema.measurements.c.job == job, schema.measurements.c.stage == "screen"
        )
        failed = sa.select(sa.func.count()).where(schema.failures.c.job == job)
        proposed = sa.select(sa.func.count()).where(schema.candidates.c.job == job)
        with self._engine.connect() as connection:
            return {
                "measured": int(connection.scalar(screened) or 0),
                "failed": int(connection.scalar(failed) or 0),
                "proposed": int(connection.scalar(proposed) or 0),
            }

    # ------------------------------------------------------------------- status

    def status(self, job: str) -> str:
        """queued, running, succeeded, failed, cancelled or interrupted."""
        kinds = [e["kind"] for e in self.events(job)]
        last = next((k for k in reversed(kinds) if k in (*TERMINAL, "queued", "running")), "queued")
        if last == "running" and not driver_is_alive(self.home, job):
            return "interrupted"
        driven_before = (self.home.job_dir(job) / "driver.lock").exists()
        if last == "queued" and driven_before and not driver_is_alive(self.home, job):
            return "interrupted"
        return last

    def cancel_requested(self, job: str) -> bool:
        return any(e["kind"] == "cancel_requested" for e in self.events(job))


def _configure_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=15000")
    cursor.close()


def _reason(error: Exception) -> str:
    return str(getattr(error, "orig", error)).splitlines()[0]


def _list(jobs: list[Job]) -> str:
    return ", ".join(f"{j.id} ({j.name})" for j in jobs[:8])
