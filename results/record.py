"""What is on record, read back."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from tunefarm.devices.device import device_from_dict
from tunefarm.devices.target import target_from_json
from tunefarm.errors import JobError, UnknownJob
from tunefarm.home import Home
from tunefarm.measure.calibration import factors
from tunefarm.measure.cuda.compiler import Resources
from tunefarm.results import life, schema
from tunefarm.results.driver_lock import driver_is_alive
from tunefarm.results.facts import FAULT, Job, JobTarget, Measurement
from tunefarm.results.store import Store
from tunefarm.search.candidate import Candidate, baseline

BEGINS_WITHIN_S = 120.0
"""A job that nobody drives by then has lost whoever submitted it."""


class Record:
    """Facts of a farm home's journal, as they are asked for: without what was damaged and, where
    they count for something, without what was withdrawn."""

    home: Home
    _store: Store

    def _of(self, table: sa.Table, job: str, target: str | None = None) -> list[dict[str, Any]]:
        where = table.c.job == job
        if target is not None:
            where = sa.and_(where, table.c.target == target)
        names = [n for n in ("seq", "position", "block", "time") if n in table.c]
        return self._store.facts(table, where, table.c[names[0]] if names else None)

    def _counting(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that were not withdrawn."""
        gone = self._store.facts(schema.withdrawals)
        return [
            row
            for row in rows
            if not any(
                w["unit"] == row["unit"] and w["since"] <= row["time"] <= w["until"] for w in gone
            )
        ]

    def has_withdrawn(self, job: str) -> bool:
        """Whether something that was measured for `job` counts no more."""
        rows = self._of(schema.measurements, job)
        return len(self._counting(rows)) < len(rows)

    def job(self, wanted: str) -> Job:
        """The job with this id, the newest of this name, or this unambiguous beginning of an id.

        Raises:
            UnknownJob: there is none, or more than one.
        """
        jobs = self.jobs()
        if not wanted:
            raise UnknownJob("no job is named", hint=f"There are: {_list(jobs)}" if jobs else "")
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
        rows = self._store.facts(schema.jobs, order=schema.jobs.c.created.desc())
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
                r["unit"],
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
        its id, median latency in seconds (None for a failure), and whether it was given up. What
        was withdrawn is not among it; latencies of several units are made comparable
        (`calibration`)."""
        canaries: dict[str, list[float]] = {}
        for block in self.blocks(job, target):
            canaries.setdefault(block["unit"], []).append(block["canary_s"])
        factor = factors(canaries)
        rows: list[tuple[float, str, float | None, bool]] = [
            (
                r["time"],
                r["candidate"],
                statistics.median(r["samples"]) * factor.get(r["unit"], 1.0),
                r["truncated"],
            )
            for r in self._counting(self._of(schema.measurements, job, target))
            if r["stage"] in ("screen", "baseline")
        ]
        failed = self._counting(self.failures(job, target))
        rows += [(f["time"], f["candidate"], None, False) for f in failed]
        return [(c, latency, gone) for _, c, latency, gone in sorted(rows, key=lambda r: r[0])]

    def spent_s(self, job: str) -> float:
        """See `life.spent_s`."""
        times = [self.measurement_times(job, target.name) for target in self.targets(job)]
        return life.spent_s(self.events(job), (t for one in times for t in one.values()))

    def failures(self, job: str, target: str) -> list[dict[str, Any]]:
        """Of candidates that were not screened to the end, one each."""
        return self._of(schema.failures, job, target)

    def faults(self, job: str, target: str) -> list[dict[str, Any]]:
        """Of candidates that were screened and have faulted in a race, its first one each:
        `candidate`, `kind`, `message` as in `failures`, `unit`, and `phase`, which an older
        tunefarm's journal does not say."""
        found: dict[str, dict[str, Any]] = {}
        for event in self.events(job):
            if event["kind"] == FAULT and event["detail"]["target"] == target:
                found.setdefault(event["detail"]["candidate"], event["detail"])
        return list(found.values())

    def resources(self, job: str, target: str) -> dict[str, tuple[Resources, ...]]:
        """By candidate, of each of its GPU kernels."""
        names = [field.name for field in dataclasses.fields(Resources)]
        found: dict[str, tuple[Resources, ...]] = {}
        for row in self._of(schema.resources, job, target):
            one = Resources(**{name: row[name] for name in names})
            found[row["candidate"]] = (*found.get(row["candidate"], ()), one)
        return found

    def blocks(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.blocks, job, target)

    def canaries(self, unit: str, latest: int = 32) -> list[float]:
        """Seconds of the canary in the unit's latest measuring blocks, of whatever job."""
        table = schema.blocks
        rows = self._store.facts(table, table.c.unit == unit, table.c.time)
        return [row["canary_s"] for row in rows[-latest:]]

    def processes(self, job: str, target: str) -> list[dict[str, Any]]:
        return self._of(schema.processes, job, target)

    def verdicts(self, job: str, target: str) -> dict[str, dict[str, Any]]:
        return {r["subject"]: r for r in self._of(schema.verdicts, job, target)}

    def artifacts(self, job: str | None = None) -> list[dict[str, Any]]:
        """Newest first."""
        table = schema.artifacts
        where = table.c.job == job if job is not None else None
        return self._store.facts(table, where, table.c.time.desc())

    def tracked(self, job: str, uri: str) -> dict[str, str]:
        table = schema.tracked
        found = self._store.facts(table, sa.and_(table.c.job == job, table.c.uri == uri))
        return {r["what"]: r["value"] for r in found}

    def counts(self, job: str) -> dict[str, int]:
        """How many screened, failed and proposed candidates a job has, over all targets."""
        screened = sa.select(sa.func.count()).where(
            schema.measurements.c.job == job, schema.measurements.c.stage == "screen"
        )
        failed = sa.select(sa.func.count()).where(schema.failures.c.job == job)
        proposed = sa.select(sa.func.count()).where(schema.candidates.c.job == job)
        return {
            "measured": int(self._store.scalar(screened) or 0),
            "failed": int(self._store.scalar(failed) or 0),
            "proposed": int(self._store.scalar(proposed) or 0),
        }

    def status(self, job: str) -> str:
        """See `life.status`."""
        events = self.events(job)
        had_driver = (self.home.job_dir(job) / "driver.lock").exists()
        # Whoever submitted it drives it, or has somebody drive it, within moments, or has died.
        late = bool(events) and time.time() - events[-1]["time"] > BEGINS_WITHIN_S
        kinds = [event["kind"] for event in events]
        return life.status(kinds, driver_is_alive(self.home, job), had_driver or late)

    def cancel_requested(self, job: str) -> bool:
        return any(e["kind"] == "cancel_requested" for e in self.events(job))


def refuse_withdrawn(record: Record, job: str) -> None:
    """A job may not go on from results that count no more.

    Raises:
        JobError: some of its own were withdrawn.
    """
    if record.has_withdrawn(job):
        raise JobError(
            f"results that job {job} counted on were withdrawn",
            hint="Submit its model anew: what other units measured is known.",
        )


def _list(jobs: list[Job]) -> str:
    return ", ".join(f"{j.id} ({j.name})" for j in jobs[:8])
