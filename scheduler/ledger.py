"""What is known of one target's candidates, and how it is written down: whatever a worker reports
is in the journal before the state machine hears of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.errors import Failure
from tunefarm.measure.build import BuildOutcome, Library
from tunefarm.measure.facts import Screening
from tunefarm.measure.runner import ScreenOutcome
from tunefarm.results.journal import Job, JobTarget, Journal, Measurement
from tunefarm.results.known import Known, known, note_between
from tunefarm.scheduler.messages import Built, Phase, ProcessDone, Proposed, Screened
from tunefarm.scheduler.races import process_measurements
from tunefarm.search.candidate import Candidate
from tunefarm.search.proposer import Result


@dataclass
class Ledger:
    """Each method takes one report and returns the event that it is.

    Attributes:
        candidates: every candidate, the untuned ones included, by id.
        libraries: of those that were built in this life.
        latencies: median seconds of those that were timed to the end.
        known: results of earlier jobs, which count as this one's.
        news: results that the search has not been told of.
    """

    journal: Journal
    job: Job
    target: JobTarget
    candidates: dict[str, Candidate] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)
    latencies: dict[str, float] = field(default_factory=dict)
    known: list[Known] = field(default_factory=list)
    news: list[Result] = field(default_factory=list)
    build_seconds: dict[str, float] = field(default_factory=dict)
    block: int | None = None

    def take_known(self, between: int) -> list[Known]:
        """What earlier jobs measured on this device with this toolchain, of models in which kernels
        are about as cold (see `KernelFacts.between`)."""
        note_between(self.journal, self.job.id, self.target.name, between)
        self.known = known(self.journal, self.job, self.target, between)
        if self.known:
            candidates = [one.candidate for one in self.known]
            self.journal.add_candidates(self.job.id, self.target.name, candidates)
        return self.known

    def note(self, candidate: str, latency_s: float | None, truncated: bool) -> None:
        """A result that is on record already."""
        if latency_s is not None and not truncated:
            self.latencies[candidate] = latency_s
        if not self.candidates[candidate].untuned:
            self.news.append(Result(self.candidates[candidate], latency_s))

    def results(self) -> list[Result]:
        """All that is known of this target's candidates."""
        return [
            Result(self.candidates[candidate], latency)
            for candidate, latency, _ in self.journal.outcomes(self.job.id, self.target.name)
            if not self.candidates[candidate].untuned
        ] + [Result(one.candidate, one.latency_s) for one in self.known]

    def proposed(self, task: str, answer: Sequence[Candidate]) -> Proposed:
        self.journal.add_candidates(self.job.id, self.target.name, list(answer))
        self.candidates.update({one.id: one for one in answer})
        return Proposed(task, tuple(one.id for one in answer))

    def built(self, candidate: str, outcome: BuildOutcome) -> Built | Screened:
        self.build_seconds[candidate] = outcome.seconds
        if outcome.library is None:
            assert outcome.failure is not None
            return self.failed(candidate, outcome.failure)
        self.libraries[candidate] = outcome.library
        return Built(candidate, True)

    def failed(self, candidate: str, failure: Failure) -> Screened:
        self.journal.add_failure(self.job.id, self.target.name, candidate, failure)
        self.note(candidate, None, False)
        return Screened(candidate, None)

    def screened(self, candidate: str, outcome: ScreenOutcome, block: Any) -> Screened:
        """`block` is the measuring conditions that begin with this candidate, None for no new."""
        job, name = self.job.id, self.target.name
        if block is not None:
            self.block = self.journal.add_block(job, name, block.canary_s, block.conditions)
        if outcome.failure is not None:
            return self.failed(candidate, outcome.failure)
        assert outcome.screening is not None
        self.journal.add_measurements(job, name, [self._measurement(candidate, outcome.screening)])
        latency = statistics.median(outcome.screening.samples)
        self.note(candidate, latency, outcome.screening.truncated)
        return Screened(candidate, latency)

    def _measurement(self, candidate: str, screening: Screening) -> Measurement:
        return Measurement(
            candidate,
            "baseline" if self.candidates[candidate].untuned else "screen",
            0,
            screening.samples,
            screening.truncated,
            self.build_seconds.get(candidate),
            self.block,
        )

    def raced(self, phase: Phase, process: int, answer: dict[str, Any]) -> ProcessDone:
        made = process_measurements(phase, process, answer)
        self.journal.add_process(self.job.id, self.target.name, phase.value, process, made)
        return ProcessDone(phase, process)
