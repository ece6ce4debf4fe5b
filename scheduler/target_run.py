"""One target of a job: carries the state machine's instructions out, and keeps the record.

Every fact is in the journal before the state machine hears of it, so that what counted in a
decision is never lost; `restore` tells it all again after a crash.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices.roof import Roof
from tunefarm.errors import Failure, FailureKind, JobFailed, TunefarmError, last_line
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.home import Home
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.build import BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.roofline import roof_path
from tunefarm.measure.runner import RaceRequest, ScreenRequest
from tunefarm.results.artifact import Packaged
from tunefarm.results.journal import Job, JobTarget, Journal
from tunefarm.scheduler import actors, learning
from tunefarm.scheduler.budget import affordable, overrun_s, tuning_s
from tunefarm.scheduler.finals import Finals
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.losses import LOST_LIMIT, Losses
from tunefarm.scheduler.messages import (
    BudgetSpent,
    Build,
    Event,
    Imported,
    Instruction,
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
    Task,
)
from tunefarm.scheduler.progress import Reporter, tuning_snapshot
from tunefarm.scheduler.races import Races
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import baseline

_SYNC_EVERY_S = 20.0
_LESSONS_LIMIT_S = 60.0


@dataclass
class TargetRun:
    """Runs one target to its end.

    Args:
        budget_s: seconds in which all should be done, None for no limit. Tuning stops when what
            follows it will take the rest; at least a quarter of the time is for tuning.
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
    budget_s: float | None
    check: Callable[[], None]
    sync: Callable[[], None]
    quiet: Callable[[], None]
    transfer: Path | None = None
    roof: Roof | None = None
    running: dict[Any, Instruction] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    asked: dict[Any, Any] = field(default_factory=dict)
    spent: bool = False
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.state = TargetState(self.limits)
        self.ledger = Ledger(self.journal, self.job, self.target)
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
        self.races = Races(
            self.journal,
            self.job,
            self.target,
            self.program,
            self.protocol,
            self.ledger.candidates,
        )
        self.finals = Finals(self.home, self.races, self.directory)
        self.last_sync = time.monotonic()

    # -------------------------------------------------------------------- run

    def run(self) -> Packaged:
        """Everything from the first candidate to the packaged artifact.

        Raises:
            JobFailed: no valid result.
        """
        instructions = self._restore()
        if self.state.phase in (Phase.FINAL, Phase.ASSEMBLE, Phase.COMPARE, Phase.PACKAGE):
            self.finals.drop_variants()  # an earlier life may have ended before it did
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
            taught = ray.get(self.search.taught.remote(self.ledger.news), timeout=_LESSONS_LIMIT_S)
            learning.leave(self.home, self.journal, self.job, self.target, taught)
        except Exception as error:
            reason = last_line(error, 200)
            self.reporter.line(f"{self.target.name}: it leaves nothing to learn from: {reason}")

    def _start_search(self) -> None:
        """A new search worker, told of every candidate; with its first task, of every result."""
        self.search = actors.spawn(actors.SearchWorker, self.plan, restarts=0)
        proposed = [c for c in self.ledger.candidates.values() if not c.untuned]
        self.search.recall.remote(proposed)
        self.ledger.news = self.ledger.results()

    def _phase_changed(self) -> None:
        self.journal.add_event(
            self.job.id, "phase", target=self.target.name, phase=self.state.phase.value
        )
        self.reporter.line(f"{self.target.name}: {self.state.phase.value}")
        if self.state.phase is Phase.RACE and self.state.stopping and not self.spent:
            self.reporter.line(
                f"{self.target.name}: the latest third of the candidates gained less than "
                f"{self.limits.enough or 0.0:.0%}; that is enough"
            )
        if self.state.phase is Phase.RACE:
            tasks = self.state.tasks.values()
            self.races.settle(affordable(tasks, self.protocol, self.budget_s))
            self._leave_lessons()
        if self.state.phase is Phase.FINAL:
            self.finals.drop_variants()
            told, changed = self.races.overturned()
            if told:
                self.reporter.line(
                    f"{self.target.name}: close calls decided inside the model: {told}, "
                    f"of which it decided otherwise: {changed}"
                )
        if self.state.phase is Phase.TUNE and self.budget_s is not None:
            over = overrun_s(self.state.tasks.values(), self.protocol, self.budget_s)
            if over > 0.25 * self.budget_s:
                self.reporter.line(
                    f"{self.target.name}: a quarter of the budget is for tuning, and what follows "
                    f"it takes longer than the rest: about {over:.0f} s over the budget"
                )

    def _restore(self) -> list[Instruction]:
        """Tell the state machine every fact on record; its first instructions."""
        job, name = self.job.id, self.target.name
        self.journal.add_tasks(job, name, self.program.tasks)
        baselines = [
            baseline(t.id, self.target.resolved.text, self.target.toolchain)
            for t in self.program.tasks
        ]
        self.ledger.candidates.update({c.id: c for c in baselines})
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
            self.ledger.candidates[candidate.id] = candidate
            self.state.restore(Proposed(candidate.task, (candidate.id,)))
        for candidate_id, latency, truncated in self.journal.outcomes(job, name):
            self.state.restore(Screened(candidate_id, latency))
            self.ledger.note(candidate_id, latency, truncated)
        for one in self.ledger.known:
            self.state.restore(Screened(one.candidate.id, one.latency_s))
            self.ledger.note(one.candidate.id, one.latency_s, one.truncated)
        if self._had_reached(Phase.RACE):
            self.state.restore(BudgetSpent())
        instructions = self.state.resume_work()
        for row in self.journal.processes(job, name):
            if row["phase"] != Phase.COMPARE:  # the model is assembled and compared again
                done = ProcessDone(Phase(row["phase"]), row["process"])
                instructions = self.state.handle(done) or instructions
        return instructions

    def _floor_s(self, task: TuningTask) -> float:
        if self.roof is None:
            return 0.0
        return self.roof.floor_s(task.fewest_flops, task.bytes)

    def _take_known(self) -> None:
        """Results of earlier jobs, as if they were this one's: they count as trials, unless the job
        is to tune again, and whoever races is measured anew."""
        found = self.ledger.take_known(self.program.between_bytes)
        if not found:
            return
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

    # ------------------------------------------------------------ instructions

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Propose(task, count, in_flight):
                news, self.ledger.news = self.ledger.news, []
                reference = self.search.propose.remote(task, count, in_flight, news)
                self.asked[reference] = self.search
            case Build(candidate):
                self._sync_sometimes()
                worker = self.idle_builders.pop()
                reference = worker.build.remote(self._build_request(candidate))
                self.builder_of[reference] = worker
            case Screen(candidate, incumbent_s):
                self.quiet()
                one = self.ledger.candidates[candidate]
                request = ScreenRequest(
                    self.ledger.libraries[candidate],
                    self._facts(one.task),
                    self.protocol,
                    incumbent_s,
                    make_reference=one.untuned,
                )
                reference = self.device.screen.remote(request)
            case RunProcess(Phase.COMPARE, process):
                self.quiet()
                whole = self.finals.model_request(process)
                reference = self.device.model.remote(whole)
            case RunProcess(Phase.PLACE, process):
                self.quiet()
                placing = self.finals.place_request(process)
                reference = self.device.place.remote(placing) if placing else ray.put([])
            case RunProcess(phase, process):
                self.quiet()
                reference = self.device.race.remote(self._race_request(phase, process))
            case Step(Phase.VARIANTS):
                reference = self._assemble(self.finals.variant_requests())
            case Step(Phase.ASSEMBLE):
                self.races.decide_kernels()
                reference = self._assemble(self.finals.assemble_requests())
            case Step():
                self.quiet()
                self.finals.package_result(time.monotonic() - self.started)
                reference = ray.put(None)
        self.running[reference] = instruction

    def _assemble(self, requests: Sequence[AssembleRequest]) -> Any:
        """Several builds of the model at once, by as many builders."""
        workers = itertools.cycle(self.builders)
        made = [w.assemble.remote(r) for w, r in zip(workers, requests, strict=False)]
        return actors.gather.remote(made)

    def _build_request(self, candidate: str) -> BuildRequest:
        one = self.ledger.candidates[candidate]
        return BuildRequest(
            self.program.workload(one.task),
            self.target.resolved,
            one.trace,
            self.directory / "candidates" / f"{one.id}.so",
        )

    def _facts(self, task: str) -> KernelFacts:
        of = self.program.task(task)
        reference = self.directory / "reference" / f"{task}.npz"
        between = self.program.between_bytes
        return KernelFacts(of.id, of.args, of.flops, reference, of.constants, between)

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
            self.spent = True
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
                return [self.ledger.failed(candidate, failure)]
            case Propose(task, _, _):
                return [Proposed(task, ())]
            case Step(Phase.VARIANTS) | RunProcess(Phase.PLACE, _):
                return self._record(instruction, [])
        raise JobFailed(f"{instruction}: {failure.message}", hint="See the job's log.")

    def _raised(self, instruction: Instruction, error: ray.exceptions.RayTaskError) -> list[Event]:
        """An exception in a worker: a kernel whose space fails is left alone, all else ends."""
        cause = error.cause
        reason = last_line(cause or error)
        if instruction == Step(Phase.VARIANTS):  # then the races decide alone
            self.reporter.line(f"{self.target.name}: not raced inside the model: {reason}")
            return [StepDone(Phase.VARIANTS)]
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

    def _record(self, instruction: Instruction, answer: Any) -> list[Event]:
        """First the journal, then the event."""
        match instruction:
            case Propose(task, _, _):
                return [self.ledger.proposed(task, answer)]
            case Build(candidate):
                return [self.ledger.built(candidate, answer)]
            case Screen(candidate, _):
                return [self.ledger.screened(candidate, *answer)]
            case RunProcess(phase, process):
                if phase is Phase.PLACE:
                    answer = self.races.placed(answer)
                return [self.ledger.raced(phase, process, answer)]
            case Step(Phase.VARIANTS):
                return [StepDone(Phase.VARIANTS)]
            case Step(phase):
                left = sum(one.packing_left for one in answer or [])
                if left:
                    self.reporter.line(
                        f"{self.target.name}: {left} weights are repacked at every inference"
                    )
                if joined := sum(one.joined for one in answer or []):
                    self.reporter.line(
                        f"{self.target.name}: concatenations written in place: {joined}"
                    )
                return [StepDone(phase)]

    # ------------------------------------------------------------------- races

    def _race_request(self, phase: Phase, process: int) -> RaceRequest:
        entries = self.races.entries(phase, self.ledger.latencies)
        self._ensure_built(c for chosen in entries.values() for c in chosen)
        kernels = tuple(
            (self._facts(task), tuple((c, self.ledger.libraries[c]) for c in chosen))
            for task, chosen in entries.items()
            if all(c in self.ledger.libraries for c in chosen)
        )
        offset = 100 if phase is Phase.FINAL else 0  # other orders than in the race
        rounds = self.protocol.final_rounds if offset else self.protocol.race_rounds
        return RaceRequest(kernels, self.races.settled(), rounds, process + offset)

    def _ensure_built(self, needed: Iterable[str]) -> None:
        """After a resume, what was built in an earlier life is built again (from its trace)."""
        missing = [c for c in needed if c not in self.ledger.libraries]
        if not missing:
            return
        pool = ray.util.ActorPool(self.builders)
        outcomes = pool.map(
            lambda worker, candidate: worker.build.remote(self._build_request(candidate)), missing
        )
        for candidate, outcome in zip(missing, outcomes, strict=True):
            if outcome.library is not None:
                self.ledger.libraries[candidate] = outcome.library

    # ------------------------------------------------------------------ report

    def _report(self) -> None:
        self.reporter.update(
            tuning_snapshot(
                self.state,
                job=self.job.id,
                target=self.target.name,
                built=len(self.ledger.libraries),
                elapsed_s=time.monotonic() - self.started,
                budget_left_s=None if (u := self._tune_until()) is None else u - time.monotonic(),
            )
        )

    def _tune_until(self) -> float | None:
        """`time.monotonic()` at which tuning must stop for the deadline to be kept."""
        if self.budget_s is None or self.spent:
            return None
        return self.started + tuning_s(self.state.tasks.values(), self.protocol, self.budget_s)
