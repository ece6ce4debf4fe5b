"""What is known of one target's candidates, how it is written down, and how a state machine is told
of it again: whatever a worker reports is in the journal before the state machine hears of it."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.errors import Failure
from tunefarm.measure.build import BuildOutcome, Library
from tunefarm.measure.calibration import factors
from tunefarm.measure.facts import PREVIOUS, Compared, Raced, Screening, ScreenOutcome
from tunefarm.measure.protocol import Protocol
from tunefarm.results.driver_lock import driver_is_alive
from tunefarm.results.facts import COLD, Job, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.results.known import NONE, Known, known, note_between
from tunefarm.scheduler import messages
from tunefarm.scheduler.messages import (
    Build,
    Built,
    Event,
    Fact,
    Instruction,
    Phase,
    ProcessDone,
    Propose,
    Proposed,
    RunProcess,
    Screen,
    Screened,
    Step,
    StepDone,
)
from tunefarm.scheduler.plausible import (
    check_block,
    check_compared,
    check_samples,
    check_screening,
)
from tunefarm.scheduler.races import process_measurements
from tunefarm.scheduler.state import TargetState
from tunefarm.search.candidate import Candidate
from tunefarm.search.proposer import Result


@dataclass
class Ledger:
    """Takes reports down, each as the fact that it is.

    Attributes:
        candidates: every candidate, the untuned ones included, by id.
        libraries: of those that were built in this life.
        latencies: median seconds of those that were timed to the end.
        dropped: of those, what was to race and cannot be built any more.
        known: results of earlier jobs, which count as this one's.
        news: results that the search has not been told of.
    """

    journal: Journal
    job: Job
    target: JobTarget
    candidates: dict[str, Candidate] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)
    latencies: dict[str, float] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    known: list[Known] = field(default_factory=list)
    news: list[Result] = field(default_factory=list)
    floors_s: dict[str, float] = field(default_factory=dict)
    """By task, the least time that the hardware allows."""
    build_seconds: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    """By unit, the number of its present measuring block."""
    canaries: dict[str, list[float]] = field(default_factory=dict)
    """By unit, seconds of its canaries in this life of the job."""

    def take_known(self, between: int, again: Mapping[str, int] = NONE) -> list[Known]:
        """What earlier jobs measured on this device with this toolchain, of models in which kernels
        are about as cold (see `KernelFacts.between`)."""
        note_between(self.journal, self.job.id, self.target.name, between, again)
        before = {one.id for one in self.journal.candidates(self.job.id, self.target.name)}
        self.known = known(
            self.journal, self.job, self.target, between, besides=before, again=again
        )
        if self.known:
            candidates = [one.candidate for one in self.known]
            self.journal.add_candidates(self.job.id, self.target.name, candidates)
        return self.known

    def hear_of_others(
        self, between: int, room: int, again: Mapping[str, int] = NONE
    ) -> list[Event]:
        """What jobs that run at the same time, and began before this one, have measured since it
        was asked last: done once, it counts for both. At most `room` results."""
        home = self.journal.home
        found = known(
            self.journal,
            self.job,
            self.target,
            between,
            of_jobs=lambda j: driver_is_alive(home, j),
            again=again,
        )
        new = [one for one in found if one.candidate.id not in self.candidates][: max(0, room)]
        if not new:
            return []
        self.journal.add_candidates(self.job.id, self.target.name, [one.candidate for one in new])
        self.known += new
        events: list[Event] = []
        for one in new:
            self.candidates[one.candidate.id] = one.candidate
            self.note(one.candidate.id, one.latency_s, one.truncated)
            events.append(messages.Known(one.candidate.task, one.candidate.id, one.latency_s))
        return events

    def note(self, candidate: str, latency_s: float | None, truncated: bool) -> None:
        """A result that is on record already."""
        if latency_s is not None and not truncated:
            self.latencies[candidate] = latency_s
        if not self.candidates[candidate].untuned:
            self.news.append(Result(self.candidates[candidate], latency_s))

    def drop(self, candidate: str) -> None:
        """It is out of the race: what an earlier job or life measured cannot be built here."""
        self.dropped.add(candidate)
        self.latencies.pop(candidate, None)

    def results(self) -> list[Result]:
        """All that is known of this target's candidates."""
        return [
            Result(self.candidates[candidate], latency)
            for candidate, latency, _ in self.journal.outcomes(self.job.id, self.target.name)
            if candidate in self.candidates and not self.candidates[candidate].untuned
        ] + [Result(one.candidate, one.latency_s) for one in self.known]

    def retell(self, state: TargetState) -> None:
        """Tell `state`, which knows the kernels, every fact on record but for the phases' ends."""
        for one in self.journal.candidates(self.job.id, self.target.name):
            self.candidates[one.id] = one
            state.restore(Proposed(one.task, (one.id,)))
        for candidate, latency, gone in self.journal.outcomes(self.job.id, self.target.name):
            if candidate in self.candidates:  # else its own record is lost, and with it this one
                state.restore(Screened(candidate, latency))
                self.note(candidate, latency, gone)
        for found in self.known:
            state.restore(Screened(found.candidate.id, found.latency_s))
            self.note(found.candidate.id, found.latency_s, found.truncated)

    def retell_processes(self, state: TargetState) -> None:
        """And then what had come of the races; the model is assembled and compared again. A process
        that lacks what others of its phase have (it may have been lost) is run again, unless that
        has faulted, or is an untuned kernel which enough others have called to spare it."""
        enough = Protocol(**self.job.protocol).slow_processes
        job, name = self.job.id, self.target.name
        faulted = {fault["candidate"] for fault in self.journal.faults(job, name)}
        for row in self.journal.processes(job, name):
            if row["phase"] in (Phase.COMPARE, Phase.CHECK):
                continue
            made = self.journal.measurements(job, name, (row["phase"],))
            calls = Counter(m.candidate for m in made)
            mine = {m.candidate for m in made if m.process == row["process"]}
            lacking = set(calls) - mine - faulted
            if all(self._is_untuned(c) and calls[c] >= enough for c in lacking):
                state.restore(ProcessDone(Phase(row["phase"]), row["process"]))

    def _is_untuned(self, candidate: str) -> bool:
        return candidate in self.candidates and self.candidates[candidate].untuned

    def take(self, instruction: Instruction, answer: Any) -> Fact:
        """The answer to an instruction."""
        match instruction:
            case Propose(task, _, _):
                return self.proposed(task, answer)
            case Build(candidate):
                return self.built(candidate, answer)
            case Screen(candidate, _, unit):
                return self.screened(candidate, unit, *answer)
            case RunProcess(phase, process, unit):
                return self.raced(phase, process, unit, answer)
            case Step(phase):
                return StepDone(phase)

    def proposed(self, task: str, answer: Sequence[Candidate]) -> Proposed:
        self.journal.add_candidates(self.job.id, self.target.name, list(answer))
        self.candidates.update({one.id: one for one in answer})
        return Proposed(task, tuple(one.id for one in answer))

    def built(self, candidate: str, outcome: BuildOutcome) -> Built | Screened:
        """A build that failed is the candidate's result."""
        self.build_seconds[candidate] = outcome.seconds
        if outcome.library is None:
            assert outcome.failure is not None
            return self.failed(candidate, outcome.failure)
        self.libraries[candidate] = outcome.library
        self.journal.add_resources(
            self.job.id, self.target.name, candidate, outcome.library.resources
        )
        return Built(candidate, True)

    def failed(self, candidate: str, failure: Failure, unit: str | None = None) -> Screened:
        self.journal.add_failure(self.job.id, self.target.name, candidate, failure, unit)
        self.note(candidate, None, False)
        return Screened(candidate, None)

    def gave_up(self, instruction: Instruction, failure: Failure) -> Fact | None:
        """Work that was lost too often; None where the job needs its answer."""
        match instruction:
            case Build(candidate) | Screen(candidate, _, _):
                return self.failed(candidate, failure)
            case Propose(task, _, _):
                return Proposed(task, ())
        return None

    def screened(self, candidate: str, unit: str, outcome: ScreenOutcome, block: Any) -> Screened:
        """`block` is the measuring conditions that begin with this candidate, None for no new.

        Raises:
            Implausible: it cannot be true; nothing of it is written down.
        """
        check_screening(outcome, self.floors_s.get(self.candidates[candidate].task, 0.0))
        if block is not None:
            check_block(block)
        job, name = self.job.id, self.target.name
        if block is not None:
            number = self.journal.add_block(job, name, block.canary_s, block.conditions, unit)
            self.blocks[unit] = number
            self.canaries.setdefault(unit, []).append(block.canary_s)
        if outcome.failure is not None:
            return self.failed(candidate, outcome.failure, unit)
        assert outcome.screening is not None
        made = self._measurement(candidate, unit, outcome.screening)
        self.journal.add_measurements(job, name, [made])
        latency = statistics.median(outcome.screening.samples)
        latency *= factors(self.canaries).get(unit, 1.0)
        self.note(candidate, latency, outcome.screening.truncated)
        return Screened(candidate, latency)

    def _measurement(self, candidate: str, unit: str, screening: Screening) -> Measurement:
        return Measurement(
            candidate,
            "baseline" if self.candidates[candidate].untuned else "screen",
            0,
            screening.samples,
            screening.truncated,
            self.build_seconds.get(candidate),
            self.blocks.get(unit),
            unit,
        )

    def _of_one_life(self, process: int, made: list[Measurement]) -> list[Measurement]:
        """What a process of the whole model has measured, without a previous build where the same
        process of an earlier life of the job is on record without it: what is on record stays, and
        they would be compared as if they had taken turns."""
        stage = self.journal.measurements(self.job.id, self.target.name, ("model",))
        before = {one.candidate for one in stage if one.process == process}
        if not before or PREVIOUS in before:
            return made
        return [one for one in made if one.candidate != PREVIOUS]

    def raced(self, phase: Phase, process: int, unit: str, answer: Any) -> ProcessDone:
        """Its samples, who faulted, and that it is over.

        Raises:
            Implausible: they cannot be true; nothing of it is written down.
        """
        faults = answer.faults if isinstance(answer, Raced) else {}
        samples = answer.samples if isinstance(answer, Raced | Compared) else answer
        made = process_measurements(phase, process, unit, samples)
        if isinstance(answer, Compared):
            check_compared(answer)
            made = self._of_one_life(process, made)
            if answer.tail:
                made.append(Measurement("tuned", "tail", process, answer.tail, unit=unit))
        for one in made:
            of = self.candidates.get(one.candidate)  # none for a whole model
            alone = of is not None and phase is not Phase.PLACE
            floor_s = self.floors_s.get(of.task, 0.0) if of is not None and alone else 0.0
            check_samples(one.samples, floor_s)
        for candidate, failure in faults.items():
            if candidate in self.candidates:
                self.journal.add_fault(
                    self.job.id, self.target.name, phase.value, candidate, failure, unit
                )
        if isinstance(answer, Compared):
            said = {"process": process, "unit": unit, **dataclasses.asdict(answer.cold)}
            self.journal.add_event(self.job.id, COLD, target=self.target.name, **said)
        self.journal.add_process(self.job.id, self.target.name, phase.value, process, made)
        return ProcessDone(phase, process)
