"""What earlier jobs found out about a job's kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tunefarm.measure.stats import Verdict
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.search.candidate import Candidate


@dataclass(frozen=True)
class Known:
    """A result of an earlier job: median seconds of its screening there, and whether it was given
    up as too slow."""

    candidate: Candidate
    latency_s: float
    truncated: bool
    job: str


EVENT = "between"
"""Kind of the event that says how cold a target's kernels are: bytes between two uses."""
NONE: Mapping[str, int] = MappingProxyType({})
ALIKE = 2.0
"""Ratio of two such figures up to which results of one model stand for the other's."""


def known(
    journal: Journal,
    job: Job,
    target: JobTarget,
    between: int,
    top: int = 64,
    of_jobs: Callable[[str], bool] = lambda job: True,
    besides: Collection[str] = (),
    again: Mapping[str, int] = NONE,
) -> list[Known]:
    """What earlier jobs found out about this job's kernels: same workload, target, toolchain
    and kind of device, in models between two of whose calls about as much is read (`between`
    bytes, or by task `again`). Of each kernel the best `top` results, best first;
    failures are left out, and what has faulted in a race.

    Those of the candidates `besides` are among it, however slow: the job has counted them before.
    Only jobs that are older than this one count, so that a resumed job knows what it knew; with
    `of_jobs`, only those among them for which it is true.
    """
    mine = {row["task"] for row in journal.tasks(job.id, target.name)}
    mine_of = _Between(between, again)
    found: dict[str, Known] = {}
    for other in journal.jobs():
        if other.created >= job.created or other.id == job.id or not of_jobs(other.id):
            continue
        for of in journal.targets(other.id):
            if not _is_alike(of, target):
                continue
            theirs = _between(journal, other.id, of.name)
            if theirs is None:
                continue
            alike = {
                task for task in mine if 1 / ALIKE <= theirs.of(task) / mine_of.of(task) <= ALIKE
            }
            candidates = {c.id: c for c in journal.candidates(other.id, of.name)}
            faulted = {f["candidate"] for f in journal.faults(other.id, of.name)} - {*besides}
            for candidate, latency, gone in journal.outcomes(other.id, of.name):
                one = candidates.get(candidate)
                if one is None or one.untuned or one.task not in alike or candidate in faulted:
                    continue
                if latency is not None and candidate not in found:
                    found[candidate] = Known(one, latency, gone, other.id)
    ranked = sorted(found.values(), key=lambda one: (one.truncated, one.latency_s))
    by_task: dict[str, list[Known]] = {}
    for result in ranked:
        by_task.setdefault(result.candidate.task, []).append(result)
    return [
        one
        for task in sorted(by_task)
        for rank, one in enumerate(by_task[task])
        if rank < top or one.candidate.id in besides
    ]


def in_models(journal: Journal, job: Job, target: JobTarget) -> dict[str, float]:
    """How many times longer a call of this job's kernels takes inside a model than alone, by task,
    as the newest of the earlier jobs on this kind of device has found it."""
    mine = {row["task"] for row in journal.tasks(job.id, target.name)}
    found: dict[str, float] = {}
    for other in journal.jobs():
        if mine <= set(found):
            break
        if other.created >= job.created or other.id == job.id or journal.has_withdrawn(other.id):
            continue
        for of in journal.targets(other.id):
            if _is_alike(of, target):
                seconds = alone_and_in_place(journal, other.id, of.name)
                ratios = {task: placed / alone for task, (alone, placed) in seconds.items()}
                found.update({t: r for t, r in ratios.items() if t in mine and t not in found})
    return found


def alone_and_in_place(journal: Journal, job: str, target: str) -> dict[str, tuple[float, float]]:
    """Seconds of an inference that a job has found for each kernel that ships, by task: all its
    calls alone, in the held-out final, and inside the model."""
    placed = (last_in_place(journal, job, target) or {}).get("kernels", {})
    verdicts = journal.verdicts(job, target)
    found = {}
    for row in journal.tasks(job, target):
        verdict = verdicts.get(row["task"])
        if verdict is None or row["task"] not in placed:
            continue
        ships = "tuned_s" if verdict["verdict"] == Verdict.FASTER else "base_s"
        if verdict[ships] and placed[row["task"]]:
            found[row["task"]] = (row["weight"] * verdict[ships], placed[row["task"]])
    return found


def last_in_place(journal: Journal, job: str, target: str) -> dict[str, Any] | None:
    """Where the time of the model that ships goes, as the job found it last: `model_s`, seconds of
    an inference (see `InPlace`); `kernels`, of these the seconds in each kernel, by task. None
    where it is not known."""
    for event in reversed(journal.events(job)):
        if event["kind"] == "in_place" and event["detail"]["target"] == target:
            found: dict[str, Any] = event["detail"]
            return found
    return None


def _is_alike(one: JobTarget, other: JobTarget) -> bool:
    return (one.resolved, one.toolchain, one.device.fingerprint) == (
        other.resolved,
        other.toolchain,
        other.device.fingerprint,
    )


def twin(journal: Journal, job: Job, targets: Sequence[JobTarget]) -> Job | None:
    """The job that is to do the same as `job`, which is not on record yet, and is not over."""
    wanted = _what(job, targets)
    for other in journal.jobs():
        if journal.status(other.id) in ("queued", "running") and wanted == _what(
            other, journal.targets(other.id)
        ):
            return other
    return None


_HOW = ("model", "priority", "tracking_uri")
"""Options that change nothing about what is done."""


def _what(job: Job, targets: Sequence[JobTarget]) -> tuple[str, list[JobTarget]]:
    options = {key: value for key, value in job.options.items() if key not in _HOW}
    asked = [job.name, job.model_digest, options, job.protocol]
    return json.dumps(asked, sort_keys=True), list(targets)


def known_before(journal: Journal, job: str, target: str) -> dict[str, float]:
    """Seconds of the best result that a job knew of each kernel when it began, by task."""
    between = _between(journal, job, target)
    if between is None:
        return {}
    of = next(one for one in journal.targets(job) if one.name == target)
    best: dict[str, float] = {}
    cold, again = between.general, between.again
    for one in known(journal, journal.job(job), of, cold, top=1, again=again):
        if not one.truncated:
            best[one.candidate.task] = one.latency_s
    return best


@dataclass(frozen=True)
class _Between:
    """Bytes, in general and `again` by task."""

    general: int
    again: Mapping[str, int]

    def of(self, task: str) -> int:
        return min(self.general, self.again.get(task, self.general))


def note_between(
    journal: Journal,
    job: str,
    target: str,
    between: int,
    again: Mapping[str, int] = NONE,
) -> None:
    """For later jobs: how cold this one's kernels are; a second time changes nothing."""
    if _between(journal, job, target) is None:
        journal.add_event(job, EVENT, target=target, bytes=between, again=dict(again))


def _between(journal: Journal, job: str, target: str) -> _Between | None:
    for event in journal.events(job):
        if event["kind"] == EVENT and event["detail"]["target"] == target:
            detail = event["detail"]
            return _Between(int(detail["bytes"]), detail.get("again", {}))
    return None
