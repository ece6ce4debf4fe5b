"""The durable record of a farm: what happened.

Facts are appended and never changed; each call is one transaction, durable when it returns; a
fact that is delivered twice is stored once. The driver of a job is the only writer of its rows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tunefarm.errors import Failure
from tunefarm.frontend.program import TuningTask
from tunefarm.home import Home
from tunefarm.measure.cuda.compiler import Resources
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results import schema
from tunefarm.results.facts import FAULT, Job, JobTarget, Measurement
from tunefarm.results.opening import mended_store, open_store
from tunefarm.results.record import Record
from tunefarm.results.salvage import Mended, fact_tables
from tunefarm.results.store import Store, sqlite_path
from tunefarm.search.candidate import Candidate


class Journal(Record):
    """Open the journal of a farm home, making it if there is none.

    Args:
        url: of another database than the home's.
        clock: seconds since the epoch; it may jump.
        mends: whether one that cannot be opened, for its file is damaged, is mended first.

    Attributes:
        mended: what came of that; None where it opened as it was.
    """

    def __init__(
        self,
        home: Home,
        url: str | None = None,
        clock: Callable[[], float] = time.time,
        mends: bool = True,
    ) -> None:
        self.home = home
        self._clock = clock
        self._url = url or home.journal_url
        self._store, self.mended = open_store(self._url, home, mends)

    def close(self) -> None:
        self._store.close()

    @property
    def url(self) -> str:
        return self._url

    def mend(self) -> Mended | None:
        """Look at every record. Where the file or a fact in it is damaged, a journal with all that
        is sound takes its place; None where all was well, and of PostgreSQL, which looks after its
        files itself.

        Raises:
            StoreError: a living driver writes to it.
        """
        if sqlite_path(self._url) is None or self._store.is_whole():
            return None
        self._store.close()
        mended = mended_store(self._url, self.home)
        self._store = Store(self._url)
        return mended

    def damage(self) -> dict[str, int]:
        """See `Store.damage`."""
        return self._store.damage()

    def fact_counts(self) -> dict[str, int]:
        """Sound facts by table."""
        return {name: len(rows) for name, rows in self.all_facts()}

    def all_facts(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Table by table; also what was withdrawn."""
        for table in fact_tables():
            yield table.name, self._store.facts(table)

    # ------------------------------------------------------------------ writing

    def together(self) -> AbstractContextManager[None]:
        """What is written inside is one transaction."""
        return self._store.together()

    def drive(self, job: str) -> int:
        """Become the job's one driver; see `Store.drive`."""
        return self._store.drive(job)

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
        queued = {"job": job.id, "time": self._clock(), "kind": "queued", "detail": {}}
        with self.together():
            self._store.add(schema.jobs, [row])
            self._store.add(schema.job_targets, target_rows)
            self._store.add(schema.job_events, [queued])

    def add_event(self, job: str, kind: str, /, **detail: Any) -> None:
        row = {"job": job, "time": self._clock(), "kind": kind, "detail": detail}
        self._store.add(schema.job_events, [row])

    def add_tasks(self, job: str, target: str, tasks: Iterable[TuningTask]) -> None:
        self._store.add(
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
        self._store.add(
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
        self._store.add(
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
                    "unit": m.unit,
                    "time": self._clock(),
                }
                for m in made
            ],
        )

    def add_resources(
        self, job: str, target: str, candidate: str, found: Iterable[Resources]
    ) -> None:
        """What each of a candidate's GPU kernels takes."""
        key = {"job": job, "target": target, "candidate": candidate}
        rows = [{**key, **dataclasses.asdict(one)} for one in found]
        if rows:
            self._store.add(schema.resources, rows)

    def add_failure(
        self, job: str, target: str, candidate: str, failure: Failure, unit: str | None = None
    ) -> None:
        row = {
            "job": job,
            "target": target,
            "candidate": candidate,
            "kind": failure.kind.value,
            "message": failure.message,
            "unit": unit,
            "time": self._clock(),
        }
        self._store.add(schema.failures, [row])

    def add_fault(
        self, job: str, target: str, phase: str, candidate: str, failure: Failure, unit: str
    ) -> None:
        """One that was sound when it was screened has faulted in a race; see `faults`."""
        detail = {"candidate": candidate, "kind": failure.kind.value, "message": failure.message}
        self.add_event(job, FAULT, target=target, phase=phase, unit=unit, **detail)

    def add_block(
        self, job: str, target: str, canary_s: float, conditions: Any, unit: str | None = None
    ) -> int:
        """A measuring block begins: the canary's time and the machine's condition; its number."""
        row = {
            "job": job,
            "target": target,
            "time": self._clock(),
            "canary_s": canary_s,
            "conditions": conditions,
            "unit": unit,
        }
        return self._store.add_numbered(schema.blocks, row)

    def add_process(
        self, job: str, target: str, phase: str, process: int, made: Iterable[Measurement]
    ) -> None:
        """One fresh process of a phase has reported."""
        row = {
            "job": job,
            "target": target,
            "phase": phase,
            "process": process,
            "time": self._clock(),
        }
        with self.together():
            self.add_measurements(job, target, made)
            self._store.add(schema.processes, [row])

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
        self._store.add(schema.verdicts, [row])

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
            "time": self._clock(),
        }
        self._store.add(schema.artifacts, [row])

    def withdraw(self, unit: str, since: float, until: float | None, reason: str) -> list[str]:
        """What `unit` measured between two moments (seconds since the epoch; None for now) counts
        for nothing any more; the jobs that it had measured for. It stays on record."""
        moment = self._clock()
        last = moment if until is None else until
        row = {"unit": unit, "since": since, "until": last, "reason": reason, "time": moment}
        table = schema.measurements
        during = sa.and_(table.c.unit == unit, table.c.time.between(since, last))
        jobs = {found["job"] for found in self._store.facts(table, during)}
        self._store.add(schema.withdrawals, [row])
        return sorted(jobs)

    def add_tracked(self, job: str, uri: str, what: str, value: str) -> None:
        self._store.add(schema.tracked, [{"job": job, "uri": uri, "what": what, "value": value}])
