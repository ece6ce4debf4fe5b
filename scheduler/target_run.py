"""One target of a job: carries the state machine's instructions out, and keeps the record.

Every fact is in the journal before the state machine hears of it, so that what counted in a
decision is never lost; `restore` tells it all again after a crash.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices.roof import Roof
from tunefarm.errors import Failure, FailureKind, JobFailed, TunefarmError
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.home import Home
from tunefarm.measure.build import BuildOutcome, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.roofline import roof_path
from tunefarm.measure.runner import RaceRequest, ScreenRequest
from tunefarm.results.artifact import Packaged
from tunefarm.results.journal import Job, JobTarget, Journal, Measurement
from tunefarm.results.known import Known, known
from tunefarm.scheduler import actors, learning
from tunefarm.scheduler.budget import closing_s
from tunefarm.scheduler.finals import Finals, process_measurements
from tunefarm.scheduler.losses import LOST_LIMIT, Losses
from tunefarm.scheduler.progress import Reporter, tuning_snapshot
from tunefarm.scheduler.state import (
    BudgetSpent,
    Build,
    Built,
    Event,
    Imported,
    Instruction,
    Limits,
    Lost,
    Phase,
    ProcessDone,
    Propose,
    Proposed,
    RunProcess,
    Screen,
    Screened,
    Step,
    StepDone,
    TargetState,
    Task,
)
from tunefarm.search.candidate import Candidate, baseline
from tunefarm.search.proposer import Result

_SYNC_EVERY_S = 20.0
_LESSONS_LIMIT_S = 60.0


@dataclass
class TargetRun:
    """Runs one target to its end.

    Args:
        deadline: `time.monotonic()` at which all should be done, None for no limit. Tuning stops
            when what follows it will take the rest; at least half of the time is for tuning.
        check: called between events; raises to end the run.
        sync: asks the tracker to catch up; quiet: waits until it has.
        transfer: the cost model to start from.
        roof: of the device, where it is known.
    """

    home: Home
    journal: Journal
    job: Job
    target: JobTarget
    program: Program
    limits: Limits
    protocol: Protocol
    reporter: Reporter
    deadline: float | None
    check: Callable[[], None]
    sync: Callable[[], None]
    quiet: Callable[[], None]
    transfer: Path | None = None
    roof: Roof | None = None
    candidates: dict[str, Candidate] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)
    screened: dict[str, float] = field(default_factory=dict)
    running: dict[Any, Instruction] = field(default_factory=dict)
    news: list[Result] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    asked: dict[Any, Any] = field(default_factory=dict)
    known: list[Known] = field(default_factory=list)
    block: int | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.state = TargetState(self.limits)
        self.directory = self.home.job_dir(self.job.id) / self.target.name.replace("/", "-")
        self.plan = actors.SearchPlan(
            self.program.directory,
            self.target.resolved,
            self.target.toolchain,
            self.job.options["strategy"],
            self.job.options["seed"],
            self.transfer,
        )
        self.builders = [
            actors.spawn(actors.BuildWorker, self.protocol.compile_limit_s)
            for _ in range(self.limits.builders)
        ]
        self.device = actors.spawn(
            actors.MeasureWorker,
            self.target.device.cores,
            self.protocol,
            roof_path(self.home, self.target.device),
            cpus=0,
            device=self.target.device.id,
        )
        self.idle_builders = list(self.builders)
        self.builder_of: dict[Any, Any] = {}
        self.build_seconds: dict[str, float] = {}
        self.finals = Finals(
            self.home,
            self.journal,
            self.job,
            self.target,
            self.program,
            self.protocol,
            self.directory,
            self.candidates,
        )
        self.last_sync = time.monotonic()

    # -------------------------------------------------------------------- run

    def run(self) -> Packaged:
        """Everything from the first candidate to the packaged artifact.

        Raises:
            JobFailed: no valid result.
        """
        instructions = self._restore()
        self._start_search()
        while self.state.phase is not Phase.DONE:
            for instruction in instructions:
                self._carry_out(instruction)
            instructions = []
            self.check()
            for event in self._wait():
                before = self.state.phase
                instructions += self.state.handle(event)
                if self.state.phase is not before:
                    self._phase_changed()
            self._report()
        return self.finals.packaged()

    def _leave_lessons(self) -> None:
        """For later jobs; that they cannot be had is no reason to lose this one."""
        try:
            taught = ray.get(self.search.taught.remote(self.news), timeout=_LESSONS_LIMIT_S)
            learning.leave(self.home, self.journal, self.job, self.target, taught)
        except Exception as error:
            reason = str(error).strip().splitlines()[-1][:200]
            self.reporter.line(f"{self.target.name}: it leaves nothing to learn from: {reason}")

    def _start_search(self) -> None:
        """A new search worker, told of every candidate; with its first task, of every result."""
        self.search = actors.spawn(actors.SearchWorker, self.plan, restarts=0)
        proposed = [c for c in self.candidates.values() if not c.untuned]
        self.search.recall.remote(proposed)
        self.news = self._all_results()

    def _phase_changed(self) -> None:
        self.journal.add_event(
            self.job.id, "phase", target=self.target.name, phase=self.state.phase.value
        )
        self.reporter.line(f"{self.target.name}: {self.state.phase.value}")
        if self.state.phase is Phase.RACE:
            self._leave_lessons()

    def _restore(self) -> list[Instruction]:
        """Tell the state machine every fact on record; its first instructions."""
        job, name = self.job.id, self.target.name
        self.journal.add_tasks(job, name, self.program.tasks)
        baselines = [
            baseline(t.id, self.target.resolved.text, self.target.toolchain)
            for t in self.program.tasks
        ]
        self.candidates.update({c.id: c for c in baselines})
        self.state.restore(
            Imported(
                tuple(
                    Task(t.id, t.weight, b.id, self._floor_s(t))
                    for t, b in zip(self.program.tasks, baselines, strict=True)
                )
            )
        )
        self._take_known()
        for candidate in self.journal.candidates(job, name):
            self.candidates[candidate.id] = candidate
            self.state.restore(Proposed(candidate.task, (candidate.id,)))
        for candidate_id, latency, truncated in self.journal.outcomes(job, name):
            self.state.restore(Screened(candidate_id, latency))
            self._note_result(candidate_id, latency, truncated)
        for one in self.known:
            self.state.restore(Screened(one.candidate.id, one.latency_s))
            self._note_result(one.candidate.id, one.latency_s, one.truncated)
        if self._had_reached(Phase.RACE):
            self.state.restore(BudgetSpent())
        instructions = self.state.resume_work()
        for row in self.journal.processes(job, name):
            if row["phase"] != Phase.COMPARE:  # the model is assembled and compared again
                done = ProcessDone(Phase(row["phase"]), row["process"])
                instructions = self.state.handle(done) or instructions
        return instructions

    def _floor_s(self, task: TuningTask) -> float:
        return self.roof.floor_s(task.flops, task.bytes) if self.roof is not None else 0.0

    def _take_known(self) -> None:
        """Results of earlier jobs, as if they were this one's: they count as trials, unless the job
        is to tune again, and whoever races is measured anew."""
        self.known = found = known(self.journal, self.job, self.target)
        if not found:
            return
        self.journal.add_candidates(self.job.id, self.target.name, [k.candidate for k in found])
        if self.job.options.get("retune"):
            more = self.limits.trials + len(found)
            self.limits = dataclasses.replace(self.limits, trials=more)
            self.state.limits = self.limits
        kernels = len({k.candidate.task for k in found})
        self.reporter.line(
            f"{self.target.name}: {len(found)} results for {kernels} kernels are known "
            "from earlier jobs"
        )

    def _had_reached(self, phase: Phase) -> bool:
        return any(
            e["kind"] == "phase" and e["detail"] == {"target": self.target.name, "phase": phase}
            for e in self.journal.events(self.job.id)
        )

    def _note_result(self, candidate: str, latency_s: float | None, truncated: bool) -> None:
        if latency_s is not None and not truncated:
            self.screened[candidate] = latency_s
        if not self.candidates[candidate].untuned:
            self.news.append(Result(self.candidates[candidate], latency_s))

    # ------------------------------------------------------------ instructions

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Propose(task, count, in_flight):
                news, self.news = self.news, []
                reference = self.search.propose.remote(task, count, in_flight, news)
                self.asked[reference] = self.search
            case Build(candidate):
                self._sync_sometimes()
                worker = self.idle_builders.pop()
                reference = worker.build.remote(self._build_request(candidate))
                self.builder_of[reference] = worker
            case Screen(candidate, incumbent_s):
                self.quiet()
                one = self.candidates[candidate]
                request = ScreenRequest(
                    self.libraries[candidate],
                    self._facts(one.task),
                    self.protocol,
                    incumbent_s,
                    make_reference=one.untuned,
                )
                reference = self.device.screen.remote(request)
            case RunProcess(Phase.COMPARE, process):
                self.quiet()
                reference = self.device.model.remote(self.finals.model_request(process))
            case RunProcess(phase, process):
                self.quiet()
                reference = self.device.race.remote(self._race_request(phase, process))
            case Step(Phase.ASSEMBLE):
                self.finals.decide_kernels()
                requests = self.finals.assemble_requests()
                workers = (self.builders[0], self.builders[-1])
                reference = actors.gather.remote(
                    [w.assemble.remote(r) for w, r in zip(workers, requests, strict=True)]
                )
            case Step():
                self.finals.package_result(time.monotonic() - self.started)
                reference = ray.put(None)
        self.running[reference] = instruction

    def _build_request(self, candidate: str) -> BuildRequest:
        one = self.candidates[candidate]
        return BuildRequest(
            self.program.workload(one.task),
            self.target.resolved,
            one.trace,
            self.directory / "candidates" / f"{one.id}.so",
        )

    def _facts(self, task: str) -> KernelFacts:
        of = self.program.task(task)
        reference = self.directory / "reference" / f"{task}.npz"
        return KernelFacts(of.id, of.args, of.flops, reference)

    def _sync_sometimes(self) -> None:
        """While building; before anything is timed, `quiet` waits for it to be over."""
        if time.monotonic() - self.last_sync > _SYNC_EVERY_S:
            self.last_sync = time.monotonic()
            self.sync()

    # ------------------------------------------------------------------ events

    def _wait(self) -> list[Event]:
        """What has happened since, at the latest after half a second."""
        events: list[Event] = []
        until = self._tune_until()
        if until is not None and time.monotonic() > until:
            self.deadline = None
            events.append(BudgetSpent())
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=0.5)
        for reference in ready:
            instruction = self.running.pop(reference)
            worker = self.builder_of.pop(reference, None)
            if worker is not None:
                self.idle_builders.append(worker)
            try:
                answer = ray.get(reference)
            except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
                asked = self.asked.pop(reference, None)
                if asked is not None and asked is not self.search:
                    events.append(Lost(instruction))  # it waited behind what killed the worker
                else:
                    events += self._lost(instruction, str(error).splitlines()[0])
                continue
            except ray.exceptions.RayTaskError as error:
                events += self._raised(instruction, error)
                continue
            self.asked.pop(reference, None)
            events += self._record(instruction, answer)
        return events

    def _lost(self, instruction: Instruction, reason: str) -> list[Event]:
        """Its worker died: again with a new one, a few times."""
        self.reporter.line(f"{self.target.name}: a worker died ({reason}); giving its work again")
        if isinstance(instruction, Propose):
            self._start_search()
        if self.losses.again(instruction):
            return [Lost(instruction)]
        failure = Failure(FailureKind.INFRASTRUCTURE, f"its worker died {LOST_LIMIT} times")
        match instruction:
            case Build(candidate) | Screen(candidate, _):
                return self._failed(candidate, failure)
            case Propose(task, _, _):
                return [Proposed(task, ())]
        raise JobFailed(f"{instruction}: {failure.message}", hint="See the job's log.")

    def _raised(self, instruction: Instruction, error: ray.exceptions.RayTaskError) -> list[Event]:
        """An exception in a worker: a kernel whose space fails is left alone, all else ends."""
        cause = error.cause
        reason = str(cause or error).strip().splitlines()[-1][:300]
        if isinstance(instruction, Propose):
            self.reporter.line(
                f"{self.target.name}: kernel {instruction.task} has no usable space: {reason}"
            )
            return [Proposed(instruction.task, ())]
        if isinstance(cause, TunefarmError):
            raise cause
        raise JobFailed(
            f"{self.target.name}, phase {self.state.phase}: {reason}",
            hint=f"See the job's log: tunefarm logs {self.job.id}",
        ) from error

    def _all_results(self) -> list[Result]:
        return [
            Result(self.candidates[candidate], latency)
            for candidate, latency, _ in self.journal.outcomes(self.job.id, self.target.name)
            if not self.candidates[candidate].untuned
        ] + [Result(k.candidate, k.latency_s) for k in self.known]

    def _record(self, instruction: Instruction, answer: Any) -> Iterable[Event]:
        """First the journal, then the event."""
        job, name = self.job.id, self.target.name
        match instruction:
            case Propose(task, _, _):
                self.journal.add_candidates(job, name, answer)
                self.candidates.update({c.id: c for c in answer})
                return [Proposed(task, tuple(c.id for c in answer))]
            case Build(candidate):
                return self._built(candidate, answer)
            case Screen(candidate, _):
                outcome, block = answer
                if block is not None:
                    self.block = self.journal.add_block(job, name, block.canary_s, block.conditions)
                if outcome.failure is not None:
                    return self._failed(candidate, outcome.failure)
                return self._screened(candidate, outcome.screening)
            case RunProcess(phase, process):
                made = process_measurements(phase, process, answer)
                self.journal.add_process(job, name, phase.value, process, made)
                return [ProcessDone(phase, process)]
            case Step(phase):
                left = sum(one.packing_left for one in answer or [])
                if left:
                    self.reporter.line(f"{name}: {left} weights are repacked at every inference")
                return [StepDone(phase)]

    def _built(self, candidate: str, outcome: BuildOutcome) -> list[Event]:
        self.build_seconds[candidate] = outcome.seconds
        if outcome.library is None:
            assert outcome.failure is not None
            return self._failed(candidate, outcome.failure)
        self.libraries[candidate] = outcome.library
        return [Built(candidate, True)]

    def _failed(self, candidate: str, failure: Failure) -> list[Event]:
        self.journal.add_failure(self.job.id, self.target.name, candidate, failure)
        self._note_result(candidate, None, False)
        return [Screened(candidate, None)]

    def _screened(self, candidate: str, screening: Any) -> list[Event]:
        stage = "baseline" if self.candidates[candidate].untuned else "screen"
        measurement = Measurement(
            candidate,
            stage,
            0,
            screening.samples,
            screening.truncated,
            self.build_seconds.get(candidate),
            self.block,
        )
        self.journal.add_measurements(self.job.id, self.target.name, [measurement])
        latency = statistics.median(screening.samples)
        self._note_result(candidate, latency, screening.truncated)
        return [Screened(candidate, latency)]

    # ------------------------------------------------------------------- races

    def _race_request(self, phase: Phase, process: int) -> RaceRequest:
        entries = self.finals.race_entries(phase, self.screened)
        self._ensure_built(c for chosen in entries.values() for c in chosen)
        kernels = tuple(
            (self._facts(task), tuple((c, self.libraries[c]) for c in chosen))
            for task, chosen in entries.items()
            if all(c in self.libraries for c in chosen)
        )
        offset = 100 if phase is Phase.FINAL else 0  # other orders than in the race
        rounds = self.protocol.final_rounds if offset else self.protocol.race_rounds
        return RaceRequest(kernels, self.protocol, rounds, process + offset)

    def _ensure_built(self, needed: Iterable[str]) -> None:
        """After a resume, what was built in an earlier life is built again (from its trace)."""
        missing = [c for c in needed if c not in self.libraries]
        if not missing:
            return
        pool = ray.util.ActorPool(self.builders)
        outcomes = pool.map(
            lambda worker, candidate: worker.build.remote(self._build_request(candidate)), missing
        )
        for candidate, outcome in zip(missing, outcomes, strict=True):
            if outcome.library is not None:
                self.libraries[candidate] = outcome.library

    # ------------------------------------------------------------------ report

    def _report(self) -> None:
        self.reporter.update(
            tuning_snapshot(
                self.state,
                job=self.job.id,
                target=self.target.name,
                built=len(self.libraries),
                elapsed_s=time.monotonic() - self.started,
                budget_left_s=None if (u := self._tune_until()) is None else u - time.monotonic(),
            )
        )

    def _tune_until(self) -> float | None:
        """`time.monotonic()` at which tuning must stop for the deadline to be kept."""
        if self.deadline is None:
            return None
        closing = closing_s(self.state.tasks.values(), self.protocol)
        return self.deadline - min(closing, 0.5 * (self.deadline - self.started))
