"""One target of a job: what each instruction comes to, and how its answer is taken down.

`restore` tells the state machine all that is on record, after a crash as at the beginning.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices.roof import Roof
from tunefarm.errors import Failure, JobFailed, TunefarmError, last_line
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.home import Home
from tunefarm.measure.assemble import Assembled
from tunefarm.measure.bundles.runtime_files import runtime_files
from tunefarm.measure.calibration import strangers
from tunefarm.measure.facts import Raced
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import RaceRequest
from tunefarm.measure.roofline import roof_path
from tunefarm.results.artifact import Packaged
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.known import in_models
from tunefarm.results.record import refuse_withdrawn
from tunefarm.scheduler import actors, farm, learning
from tunefarm.scheduler.conductor import Conductor
from tunefarm.scheduler.crew import Heard
from tunefarm.scheduler.deadline import Budget, Deadline
from tunefarm.scheduler.exchange import WHEELS, ByFile, Exchange, device_of
from tunefarm.scheduler.finals import Finals
from tunefarm.scheduler.fleet import Plan
from tunefarm.scheduler.leases import Leases
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import (
    Assignment,
    BudgetSpent,
    Build,
    Event,
    Fact,
    Imported,
    Instruction,
    Phase,
    Propose,
    Proposed,
    RunProcess,
    Screen,
    Step,
    StepDone,
    Task,
)
from tunefarm.scheduler.progress import Reporter, tuning_snapshot
from tunefarm.scheduler.races import Races
from tunefarm.scheduler.ray_crew import RayCrew
from tunefarm.scheduler.requests import Requests
from tunefarm.scheduler.sharing import WEIGHTS
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import baseline

_HEAR_EVERY_S = 20.0
"""Between two looks at what other jobs have found out."""
_SYNC_EVERY_S = 20.0
_LESSONS_LIMIT_S = 60.0


@dataclass
class TargetRun:
    """Runs one target to its end.

    Args:
        epoch: of this driver.
        budget: in which all should be done, None for no limit. Tuning stops when what follows it
            will take the rest; at least a quarter of its share is for tuning, from when that
            begins.
        check: called between events; raises to end the run.
        sync: asks the tracker to catch up; quiet: waits until it has.
        on_farm: units and builders are those of a farm; else of this machine alone.
        exchange: where the device is reached by file.
        transfer: the cost model to start from.
        roof: of the device, where it is known.
    """

    home: Home
    journal: Journal
    job: Job
    target: JobTarget
    program: Program
    limits: Limits
    epoch: int
    protocol: Protocol
    reporter: Reporter
    budget: Budget | None
    check: Callable[[], None]
    sync: Callable[[], None]
    quiet: Callable[[], None]
    waited: Callable[[float], None]
    on_farm: bool = False
    exchange: ByFile | None = None
    transfer: Path | None = None
    roof: Roof | None = None

    def __post_init__(self) -> None:
        self.state = TargetState(self.limits, Leases(self.epoch))
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
        self.races = Races(
            self.journal,
            self.job,
            self.target,
            self.program,
            self.protocol,
            self.ledger.candidates,
        )
        self.requests = Requests(self.ledger, self.races, self.directory)
        self.finals = Finals(self.home, self.races, self.directory)
        self.crew: RayCrew | None = None
        self.last_sync = self.last_heard = now = time.monotonic()
        self.deadline = Deadline(self.protocol, self.budget, now)
        self.waits = False

    # -------------------------------------------------------------------- run

    def run(self) -> Packaged:
        """Everything from the first candidate to the packaged artifact.

        Raises:
            JobFailed: no valid result.
        """
        assignments = self._restore()
        if self.state.phase in (Phase.FINAL, Phase.ASSEMBLE):
            self.finals.drop_variants()  # an earlier life may have ended before it did
        self.crew = self._crew()
        conductor = Conductor(
            self.state,
            self.crew,
            self._work,
            self._record,
            self._gave_up,
            self._raised,
            self._stale,
            self._flag,
            self._say,
            self.journal.together,
            self._entered,
        )
        conductor.give(assignments)
        while self.state.phase is not Phase.DONE:
            self.check()
            began = time.monotonic()
            conductor.turn(0.5, self._clock())
            if self.on_farm:
                self._note_waiting(time.monotonic() - began)
            self._report()
        return self.finals.packaged()

    def _note_waiting(self, seconds: float) -> None:
        """Without a unit time passes, but not on the job's account."""
        waits = not self.state.leases.units
        if waits:
            self.deadline.started += seconds
            self.waited(seconds)
        if waits != self.waits:
            self.journal.add_event(self.job.id, "waits" if waits else "goes_on")
        if waits and not self.waits:
            self._say("waits for its turn on a device")
        self.waits = waits

    def close(self) -> None:
        """End its workers."""
        if self.crew is not None:
            self.crew.close()

    def _crew(self) -> RayCrew:
        device = self.target.device
        builds_beside = self.limits.shared_processor or device.target.kind == "cuda"
        plan = Plan(
            self.home,
            device,
            self.job.id,
            self.target.toolchain,
            self.protocol,
            self._start_search,
            roof_path(self.home, device),
            self.on_farm,
            builds_beside,
            WEIGHTS[self.job.options.get("priority", "normal")],
            self._say,
            None if self.on_farm else self.limits.builders,
        )
        devices = farm.Devices()
        if self.exchange is not None:
            return RayCrew(plan, devices, exchange=self._exchange(self.exchange))
        if not self.on_farm:  # known without asking
            devices.known[farm.this_node()] = {device.id: device}
        return RayCrew(plan, devices)

    def _exchange(self, way: ByFile) -> Exchange:
        root = self.home.job_dir(self.job.id)
        device, resolved = self.target.device, self.target.resolved
        runtime = runtime_files(way.directory / WHEELS, resolved.kind == "cuda")
        return Exchange(way.directory, root, resolved, device, self._say, runtime, way.size)

    def _leave_lessons(self) -> None:
        """For later jobs; that they cannot be had is no reason to lose this one."""
        if self.target.device.is_emulated:
            return
        try:
            assert self.crew is not None
            asked = self.crew.search.taught.remote(self.ledger.news)
            taught = ray.get(asked, timeout=_LESSONS_LIMIT_S)
            learning.leave(self.home, self.journal, self.job, self.target, taught)
        except Exception as error:
            reason = last_line(error, 200)
            self.reporter.line(f"{self.target.name}: it leaves nothing to learn from: {reason}")

    def _start_search(self) -> Any:
        """A new search worker, told of every candidate; with its first task, of every result."""
        here = farm.this_node()  # its files are
        search = actors.spawn(actors.SearchWorker, self.plan, cpus=0, node=here, restarts=0)
        proposed = [c for c in self.ledger.candidates.values() if not c.untuned]
        search.recall.remote(proposed)
        self.ledger.news = self.ledger.results()
        return search

    def _say(self, text: str) -> None:
        self.reporter.line(f"{self.target.name}: {text}")

    def _entered(self, phase: Phase) -> None:
        name = self.target.name
        self.journal.add_event(self.job.id, "phase", target=name, phase=phase.value)
        self._say(phase.value)
        if phase in (Phase.RACE, Phase.PACKAGE):
            refuse_withdrawn(self.journal, self.job.id)
        if phase is Phase.RACE and self.state.stopping and not self.deadline.spent:
            self._say(
                f"the latest third of the candidates gained less than "
                f"{self.limits.enough or 0.0:.0%}; that is enough"
            )
        if phase is Phase.RACE:
            tasks = self.state.tasks.values()
            for unit in strangers(self.ledger.canaries):
                self._say(
                    f"{unit} is more than a quarter slower or faster than the others of its kind; "
                    "look at it, or keep it out: tunefarm devices quarantine"
                )
            self.races.settle(self.deadline.affordable(tasks))
            self._leave_lessons()
        if phase is Phase.FINAL:
            self.finals.drop_variants()
            told, changed = self.races.overturned()
            if told:
                self._say(
                    f"close calls decided inside the model: {told}, "
                    f"of which it decided otherwise: {changed}"
                )
        if phase is Phase.COMPARE and (said := self.finals.find_previous()):
            self._say(said)
        if phase is Phase.TUNE and self.budget is not None:
            over = self.deadline.overrun_s(self.state.tasks.values(), time.monotonic())
            if over > 0.25 * self.budget.share_s:
                self._say(
                    f"a quarter of the budget is for tuning, and what comes before and after "
                    f"it takes longer than the rest: about {over:.0f} s over the budget"
                )

    def _restore(self) -> list[Assignment]:
        """Tell the state machine every fact on record; its first assignments."""
        job, name = self.job.id, self.target.name
        self.journal.add_tasks(job, name, self.program.tasks)
        baselines = [
            baseline(t.id, self.target.resolved.text, self.target.toolchain)
            for t in self.program.tasks
        ]
        self.ledger.candidates.update({c.id: c for c in baselines})
        self.ledger.floors_s = {t.id: self._floor_s(t) for t in self.program.tasks}
        longer = in_models(self.journal, self.job, self.target)
        self.state.restore(
            Imported(
                tuple(
                    Task(t.id, t.weight, b.id, self.ledger.floors_s[t.id], longer.get(t.id, 1.0))
                    for t, b in zip(self.program.tasks, baselines, strict=True)
                )
            )
        )
        self._take_known()
        self.ledger.retell(self.state)
        if self._had_reached(Phase.RACE):
            self.state.restore(BudgetSpent())
        self.deadline.tuned_before = self._had_reached(Phase.TUNE) and self.state.measured > 0
        assignments = self.state.resume_work()  # of races none: units join when they are ready
        self.ledger.retell_processes(self.state)
        return assignments

    def _floor_s(self, task: TuningTask) -> float:
        if self.roof is None:
            return 0.0
        return self.roof.floor_s(task.fewest_flops(self.target.device.features), task.bytes)

    def _take_known(self) -> None:
        """Results of earlier jobs, as if they were this one's: they count as trials, unless the job
        is to tune again, and whoever races is measured anew."""
        found = self.ledger.take_known(self.program.between_bytes, self.program.again)
        if not found:
            return
        if self.job.options.get("retune"):
            more = self.limits.trials + len(found)
            self.limits = dataclasses.replace(self.limits, trials=more)
            self.state.limits = self.limits
        kernels = len({k.candidate.task for k in found})
        self._say(f"{len(found)} results for {kernels} kernels are known from earlier jobs")

    def _had_reached(self, phase: Phase) -> bool:
        return any(
            e["kind"] == "phase" and e["detail"] == {"target": self.target.name, "phase": phase}
            for e in self.journal.events(self.job.id)
        )

    # ------------------------------------------------------------ instructions

    def _work(self, instruction: Instruction) -> Any:
        """What a worker is handed; whatever is to be timed waits until nothing else goes on."""
        match instruction:
            case Propose(task, count, in_flight):
                news, self.ledger.news = self.ledger.news, []
                return task, count, in_flight, news
            case Build(candidate):
                self._sync_sometimes()
                return self.requests.build(candidate)
            case Screen(candidate, incumbent_s, _):
                self.quiet()
                return self.requests.screen(candidate, incumbent_s)
            case RunProcess(Phase.COMPARE, process, _):
                self.quiet()
                return self.finals.model_request(process)
            case RunProcess(Phase.CHECK, _, _):
                self.quiet()
                return self.finals.check_request()
            case RunProcess(Phase.PLACE, process, _):
                self.quiet()
                return self.finals.place_request(process)
            case RunProcess(phase, process, _):
                self.quiet()
                return self._race_request(phase, process)
            case Step(Phase.VARIANTS):
                return self.finals.variant_requests()
            case Step(Phase.ASSEMBLE):
                for task in self.races.decide_kernels():
                    self._say(f"kernel {task} stays untuned: its races or finals have failed")
                return (*self.finals.assemble_requests(), self.finals.expected_request())
            case Step():
                self.quiet()
                if why := self.finals.package_result(time.monotonic() - self.deadline.started):
                    self._say(f"the untuned build ships: {why}")
                return None

    def _sync_sometimes(self) -> None:
        """While building; before anything is timed, `quiet` waits for it to be over."""
        if time.monotonic() - self.last_sync > _SYNC_EVERY_S:
            self.last_sync = time.monotonic()
            self.sync()

    # ------------------------------------------------------------------ events

    def _clock(self) -> list[Event]:
        now, tunes = time.monotonic(), self.state.phase is Phase.TUNE
        if tunes:
            self.deadline.tuning_begins(now)
        until = self.deadline.tune_until(self.state.tasks.values(), now)
        if until is not None and now > until:
            self.deadline.spent = True
            return [BudgetSpent()]
        if self.on_farm and tunes and now - self.last_heard > _HEAR_EVERY_S:
            self.last_heard = now
            return self._hear_of_others()
        return []

    def _hear_of_others(self) -> list[Event]:
        if self.job.options.get("retune"):
            return []
        between, again = self.program.between_bytes, self.program.again
        found = self.ledger.hear_of_others(between, self.state.room(), again)
        if found:
            self._say(f"{len(found)} results of jobs that run beside this one are taken over")
        return found

    def _stale(self, heard: Heard) -> None:
        self.journal.add_event(
            self.job.id, "stale", target=self.target.name, what=type(heard).__name__
        )

    def _flag(self, unit: str, reason: str) -> None:
        unit = device_of(unit)
        self.journal.add_event(
            self.job.id, "implausible", target=self.target.name, unit=unit, reason=reason
        )
        self._say(f"{unit} reports what cannot be true: {reason}")

    def _gave_up(self, instruction: Instruction, failure: Failure) -> Fact | None:
        match instruction:
            case Step(Phase.VARIANTS) | RunProcess(Phase.PLACE, _, _):
                return self._record(instruction, [])
        return self.ledger.gave_up(instruction, failure)

    def _raised(self, instruction: Instruction, error: Exception) -> Fact:
        """A kernel whose space fails is left alone, all else ends the job."""
        reason = last_line(error)
        if instruction == Step(Phase.VARIANTS):  # then the races decide alone
            self._say(f"not raced inside the model: {reason}")
            return StepDone(Phase.VARIANTS)
        if isinstance(instruction, Propose):
            self._say(f"kernel {instruction.task} has no usable space: {reason}")
            return Proposed(instruction.task, ())
        if isinstance(error, TunefarmError):
            raise error
        raise JobFailed(
            f"{self.target.name}, phase {self.state.phase}: {reason}",
            hint=f"See the job's log: tunefarm logs {self.job.id}",
        ) from error

    def _record(self, instruction: Instruction, answer: Any) -> Fact:
        """Takes an answer down; the fact that it is."""
        if isinstance(instruction, Screen | RunProcess):
            instruction = dataclasses.replace(instruction, unit=device_of(instruction.unit))
        match instruction:
            case RunProcess(Phase.PLACE, _, _):
                answer = self.races.placed(answer)
            case RunProcess(Phase.COMPARE, _, _):
                if said := self.finals.previous.said_of(answer):
                    self._say(said)
            case RunProcess(Phase.CHECK, _, _):
                self.finals.note_checked(answer)
                answer = {}
            case RunProcess(Phase.RACE | Phase.FINAL, _, _):
                self._say_who_faulted(answer)
            case Step(Phase.ASSEMBLE):
                made = [one for one in answer if isinstance(one, Assembled)]
                if left := sum(one.packing_left for one in made):
                    self._say(f"{left} weights are repacked at every inference")
                if joined := sum(one.joined for one in made):
                    self._say(f"concatenations written in place: {joined}")
        return self.ledger.take(instruction, answer)

    def _say_who_faulted(self, raced: Raced) -> None:
        for candidate, failure in raced.faults.items():
            known = self.ledger.candidates.get(candidate)
            task = known.task if known is not None else "?"
            self._say(f"a schedule of kernel {task} faulted in a race: {failure.message}")

    # ------------------------------------------------------------------- races

    def _race_request(self, phase: Phase, process: int) -> RaceRequest:
        """The request, once all who race are built: from their traces, after a resume and where an
        earlier job has left them. Instead of one that cannot be built the next best races."""
        while missing := self.requests.unbuilt(racers := self.requests.racers(phase)):
            assert self.crew is not None
            reasons = dict.fromkeys(missing, "it ended its builders")
            for candidate, outcome in self.crew.build_all(missing, self.check):
                if outcome.library is not None:
                    self.ledger.libraries[candidate] = outcome.library
                elif outcome.failure is not None:
                    reasons[candidate] = outcome.failure.message
            for candidate in missing.keys() - self.ledger.libraries.keys():
                self.ledger.drop(candidate)
                task = self.ledger.candidates[candidate].task
                self._say(
                    f"a schedule of kernel {task} can no longer be built: {reasons[candidate]}"
                )
        return self.requests.race(racers, phase, process)

    # ------------------------------------------------------------------ report

    def _report(self) -> None:
        now = time.monotonic()
        until = self.deadline.tune_until(self.state.tasks.values(), now)
        self.reporter.update(
            tuning_snapshot(
                self.state,
                job=self.job.id,
                target=self.target.name,
                built=len(self.ledger.libraries),
                elapsed_s=now - self.deadline.started,
                budget_left_s=None if until is None else until - now,
            )
        )
