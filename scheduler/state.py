"""The state of one target's job: a pure function of its events.

`TargetState.handle(event)` returns assignments; nothing here does any I/O, knows a clock, Ray or
TVM. The driver carries assignments out and reports back; on `resume` it feeds the journal's facts
through `restore` and goes on with `resume_work`. In the manner of dask/distributed's
worker state machine.

    IMPORT -> BASELINE -> TUNE -> RACE -> VARIANTS -> PLACE -> FINAL -> ASSEMBLE -> COMPARE
    -> CHECK -> PACKAGE -> DONE

A target has any number of units, devices of one kind, each of which does one thing at a time. Where
builders share the processor with them, building and measuring take turns in small batches, so that
nothing is timed against a busy core.
"""

from __future__ import annotations

import enum
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field

from tunefarm.scheduler.budget import (
    Progress,
    allocate,
    at_the_roof,
    levelled_off,
    plateaued,
)
from tunefarm.scheduler.leases import Leases, Queue
from tunefarm.scheduler.messages import (
    Assignment,
    BudgetSpent,
    Build,
    Builders,
    Built,
    Done,
    Event,
    Imported,
    Instruction,
    Joined,
    Known,
    Left,
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

FEWEST = 100
"""Candidates by which at the least a job is judged to gain nothing any more."""
AHEAD = 2
"""Candidates a unit that are proposed and built ahead, where builders have processors of their
own."""

_AFTER_PROCESSES = {
    Phase.RACE: Phase.VARIANTS,
    Phase.PLACE: Phase.FINAL,
    Phase.FINAL: Phase.ASSEMBLE,
    Phase.COMPARE: Phase.CHECK,
    Phase.CHECK: Phase.PACKAGE,
}
"""The phases of several fresh processes, and what follows them."""
_AFTER_STEP = {
    Phase.VARIANTS: Phase.PLACE,
    Phase.ASSEMBLE: Phase.COMPARE,
    Phase.PACKAGE: Phase.DONE,
}
"""The phases of a single step, and what follows them."""


class Turn(enum.StrEnum):
    BUILD = "build"
    MEASURE = "measure"


@dataclass(frozen=True)
class Limits:
    """What a job may use, and how it is paced.

    Attributes:
        trials: measured candidates; the baselines do not count.
        builders: builds at a time.
        batch: candidates a unit built before a measuring turn, on a shared processor; the first
            turns are shorter, so that the search soon has something to learn from.
        shared_processor: builders and device take turns.
        chunk: candidates proposed at a time.
        patience: results without gain after which a kernel stops.
        enough: the gain of all kernels together below which the job stops (`levelled_off`), None to
            go on until trials or budget are used up.
        processes: fresh processes of the race, place, final and compare phases.
    """

    trials: int
    builders: int = 2
    batch: int = 16
    shared_processor: bool = True
    chunk: int = 2
    patience: int = 32
    enough: float | None = None
    processes: tuple[int, int, int, int] = (2, 3, 3, 5)


@dataclass
class TargetState:
    """What is known, what is under way and who does it."""

    limits: Limits
    leases: Leases = field(default_factory=Leases)
    phase: Phase = Phase.IMPORT
    turn: Turn = Turn.BUILD
    tasks: dict[str, Progress] = field(default_factory=dict)
    owner: dict[str, str] = field(default_factory=dict)
    """Every candidate's task."""
    builders: int = 0
    to_build: Queue = field(default_factory=OrderedDict)
    building: set[str] = field(default_factory=set)
    built: Queue = field(default_factory=OrderedDict)
    measuring: dict[str, str] = field(default_factory=dict)
    """The unit on which each candidate is."""
    flying: dict[str, Queue] = field(default_factory=dict)
    """By task, its candidates between proposal and result."""
    done: set[str] = field(default_factory=set)
    proposing: dict[str, int] = field(default_factory=dict)
    baselines: dict[str, str] = field(default_factory=dict)
    measured: int = 0
    failed: int = 0
    known: int = 0
    """Results from before this life of the job, of earlier jobs' among them."""
    first: int = 0
    """Candidates that kernels are to be given since then before any gets more."""
    sums: list[tuple[int, float]] = field(default_factory=list)
    """(results since then, seconds of an inference in all kernels) at each improvement."""
    stopping: bool = False
    reported: set[int] = field(default_factory=set)
    """Processes of the present phase."""

    def __post_init__(self) -> None:
        self.builders = self.limits.builders

    def handle(self, event: Event) -> list[Assignment]:
        """Take one event in; what is to be done now. Events that no longer matter do nothing."""
        self.restore(event)
        return self._advance()

    def resume_work(self) -> list[Assignment]:
        """After `restore` of all recorded facts: what is to be done now."""
        return self._advance()

    # ------------------------------------------------------------------ events

    def restore(self, event: Event) -> None:
        """Take a recorded fact in without asking what follows from it."""
        match event:
            case Done(lease, fact):
                if self.leases.holds(lease):
                    self.leases.release(lease)
                    self.restore(fact)
            case Lost(lease):
                if self.leases.holds(lease):
                    self._lost(self.leases.release(lease))
            case Imported(tasks):
                self._imported(tasks)
            case Proposed(task, candidates):
                self._proposed(task, candidates)
            case Built(candidate, ok):
                self._built(candidate, ok)
            case Screened(candidate, latency_s):
                self._screened(candidate, latency_s)
            case Known(task, candidate, latency_s):
                self._known(task, candidate, latency_s)
            case ProcessDone(phase, process):
                self._skip_to(phase)
                if phase is self.phase and phase in _AFTER_PROCESSES:
                    self._process_done(process)
            case StepDone(phase):
                if phase is self.phase and phase in _AFTER_STEP:
                    self._enter(_AFTER_STEP[phase])
            case BudgetSpent():
                self._stop_tuning()
            case Joined(unit):
                self.leases.join(unit)
            case Left(unit):
                if (left := self.leases.leave(unit)) is not None:
                    self._lost(left)
            case Builders(count):
                self.builders = count

    def _imported(self, tasks: tuple[Task, ...]) -> None:
        if self.phase is not Phase.IMPORT:
            return
        for task in tasks:
            self.tasks[task.id] = Progress(
                task.id, task.weight, floor_s=task.floor_s, in_model=task.in_model
            )
            self.flying[task.id] = OrderedDict()
            self.baselines[task.baseline] = task.id
            self.owner[task.baseline] = task.id
            self.to_build[task.baseline] = None
        self.phase = Phase.BASELINE

    def _proposed(self, task: str, candidates: tuple[str, ...]) -> None:
        progress = self.tasks[task]
        asked = self.proposing.pop(task, 0)
        fresh = [c for c in dict.fromkeys(candidates) if c not in self.owner]
        if asked and not candidates:
            progress.closed = True
        for candidate in fresh:
            self.owner[candidate] = task
            if self.stopping:
                self.done.add(candidate)
            else:
                progress.pending += 1
                self.flying[task][candidate] = None
                self.to_build[candidate] = None

    def _known(self, task: str, candidate: str, latency_s: float) -> None:
        """It comes with its result: there is nothing to be built or asked for."""
        if candidate not in self.owner:
            self.owner[candidate] = task
            self.tasks[task].pending += 1
            self.flying[task][candidate] = None
        self._screened(candidate, latency_s)

    def _built(self, candidate: str, ok: bool) -> None:
        if candidate not in self.building:
            if candidate not in self.to_build:
                return
            del self.to_build[candidate]  # known from the journal, not built by us
        self.building.discard(candidate)
        if ok:
            self.built[candidate] = None
        else:
            self._finish(candidate, None)

    def _screened(self, candidate: str, latency_s: float | None) -> None:
        if candidate in self.done or candidate not in self.owner:
            return
        self.measuring.pop(candidate, None)
        self.built.pop(candidate, None)
        self.to_build.pop(candidate, None)
        self.building.discard(candidate)
        self._finish(candidate, latency_s)

    def _finish(self, candidate: str, latency_s: float | None) -> None:
        self.done.add(candidate)
        progress = self.tasks[self.owner[candidate]]
        if candidate in self.baselines:
            progress.baseline_s = latency_s
            progress.closed = latency_s is None  # nothing to check candidates against
            self.failed += latency_s is None
            return
        self._landed(candidate)
        progress.record(latency_s)
        self.measured += latency_s is not None
        self.failed += latency_s is None
        if plateaued(progress, patience=self.limits.patience) or at_the_roof(progress):
            progress.closed = True
        if self.phase is Phase.TUNE and self._has_levelled_off():
            self._stop_tuning()

    def _landed(self, candidate: str) -> None:
        task = self.owner[candidate]
        self.tasks[task].pending -= 1
        del self.flying[task][candidate]

    def _has_levelled_off(self) -> bool:
        if self.limits.enough is None:
            return False
        total, since = self._inference_s(), self.measured - self.known
        if total < self.sums[-1][1]:
            self.sums.append((since, total))
        return levelled_off(self.sums, since, self.first, fewest=FEWEST, gain=self.limits.enough)

    def _inference_s(self) -> float:
        return sum(p.weight * (p.latency_s or 0.0) for p in self.tasks.values())

    def _begin_tuning(self) -> None:
        self.phase = Phase.TUNE
        self.known = self.measured
        self.first = sum(not p.results for p in self.tasks.values() if not p.closed)
        self.sums = [(0, self._inference_s())]

    def _stop_tuning(self) -> None:
        """Also before every baseline is known: kernels without one stay untuned."""
        if self.phase not in (Phase.BASELINE, Phase.TUNE):
            return
        self.stopping = True
        for candidate in [c for c in self.to_build if c not in self.baselines]:
            del self.to_build[candidate]
            self._landed(candidate)
            self.done.add(candidate)

    def _skip_to(self, phase: Phase) -> None:
        """A step leaves no record of its own, and an older tunefarm's journal knows no `PLACE`: a
        process of what comes after says that they are done with."""
        before = {
            Phase.PLACE: (Phase.VARIANTS,),
            Phase.FINAL: (Phase.VARIANTS, Phase.PLACE),
        }
        if self.phase in before.get(phase, ()):
            self._enter(phase)

    def _process_done(self, process: int) -> None:
        self.reported.add(process)
        if len(self.reported) >= self._processes():
            self._enter(_AFTER_PROCESSES[self.phase])

    def processes(self) -> tuple[int, int] | None:
        """How many of the present phase have reported, of how many; None where it has none."""
        of = self._processes()
        return (len(self.reported), of) if self.phase in _AFTER_PROCESSES and of > 1 else None

    def _processes(self) -> int:
        """How many the present phase has."""
        several = (Phase.RACE, Phase.PLACE, Phase.FINAL, Phase.COMPARE)
        return dict(zip(several, self.limits.processes, strict=True)).get(self.phase, 1)

    def _lost(self, instruction: Instruction) -> None:
        match instruction:
            case Propose(task, _, _):
                self.proposing.pop(task, None)
            case Build(candidate) if candidate in self.building:
                self.building.discard(candidate)
                self.to_build[candidate] = None
                self.to_build.move_to_end(candidate, last=False)
            case Screen(candidate, _, _) if candidate in self.measuring:
                del self.measuring[candidate]
                self.built[candidate] = None
                self.built.move_to_end(candidate, last=False)
            case _:
                pass  # of processes and steps the lease is all that there was

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.reported = set()

    # ------------------------------------------------------------ instructions

    def _advance(self) -> list[Assignment]:
        return [self.leases.give(instruction) for instruction in self._instructions()]

    def _instructions(self) -> list[Instruction]:
        if self.phase in (Phase.BASELINE, Phase.TUNE):
            instructions = self._tune()
            if not self._tuning_is_over():
                return instructions
            self._enter(Phase.RACE)
        if self.phase in _AFTER_PROCESSES:
            return self._next_processes()
        if self.phase in _AFTER_STEP and Step(self.phase) not in self.leases.held.values():
            return [Step(self.phase)]
        return []

    def _next_processes(self) -> list[Instruction]:
        """One for each unit that does nothing, so that where there are two, both are heard."""
        running = {i.process for i in self.leases.held.values() if isinstance(i, RunProcess)}
        left = [n for n in range(self._processes()) if n not in running | self.reported]
        return [
            RunProcess(self.phase, process, unit)
            for process, unit in zip(left, self.leases.idle, strict=False)
        ]

    def _tuning_is_over(self) -> bool:
        busy = self.to_build or self.building or self.built or self.measuring or self.proposing
        return not busy

    def _tune(self) -> list[Instruction]:
        if self.phase is Phase.BASELINE and all(b in self.done for b in self.baselines):
            self._begin_tuning()
        if not self.limits.shared_processor:
            return self._proposals() + self._builds() + self._screenings()
        self._change_turn()
        if self.turn is Turn.BUILD:
            return self._proposals() + self._builds()
        return self._screenings()

    def _change_turn(self) -> None:
        if self.turn is Turn.MEASURE:
            if not self.built and not self.measuring:
                self.turn = Turn.BUILD
        elif self._batch_is_built() and not self.building and not self.proposing and self.built:
            self.turn = Turn.MEASURE

    def _batch(self) -> int:
        """Of candidates that are built before any is measured, on a shared processor: one, then
        half, then all, so that the first result is soon there to learn from. Else of those that
        are kept ahead of the units."""
        whole = self.limits.batch * max(1, len(self.leases.units))
        if not self.limits.shared_processor:
            return max(whole, AHEAD * len(self.leases.units) + self.builders)
        results = self.measured + self.failed
        if not results:
            return 1
        return whole if results > whole // 2 else whole // 2

    def _batch_is_built(self) -> bool:
        if len(self.built) + len(self.building) >= self._batch():
            return True
        return not self.to_build and not self.building and not self.room()

    def room(self) -> int:
        """Candidates that may still be proposed within `trials`."""
        if self.stopping or self.phase is not Phase.TUNE:
            return 0
        pending = sum(p.pending for p in self.tasks.values()) + sum(self.proposing.values())
        wanted = allocate(self.tasks.values(), 1, chunk=self.limits.chunk)
        return max(0, self.limits.trials - self.measured - pending) if wanted else 0

    def _proposals(self) -> list[Instruction]:
        """Keep one batch proposed ahead of the builders."""
        if self.limits.shared_processor and self._batch_is_built():
            return []
        waiting = len(self.to_build) + sum(self.proposing.values())
        if not self.limits.shared_processor:
            waiting += len(self.building) + len(self.built)
            if 2 * waiting > self._batch():
                return []  # not one by one
        room = min(self.room(), self._batch() - waiting)
        if room <= 0:
            return []
        wanted = allocate(
            (p for p in self.tasks.values() if p.task not in self.proposing),
            room,
            chunk=self.limits.chunk,
        )
        instructions: list[Instruction] = []
        for task, count in wanted:
            self.proposing[task] = count
            instructions.append(Propose(task, count, tuple(self.flying[task])))
        return instructions

    def _builds(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self.to_build and len(self.building) < self.builders:
            if self.limits.shared_processor and (
                len(self.built) + len(self.building) >= self._batch()
            ):
                break
            candidate, _ = self.to_build.popitem(last=False)
            self.building.add(candidate)
            instructions.append(Build(candidate))
        return instructions

    def _screenings(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for unit in itertools.islice(self.leases.idle, len(self.built)):
            candidate, _ = self.built.popitem(last=False)
            self.measuring[candidate] = unit
            incumbent_s = self.tasks[self.owner[candidate]].latency_s
            instructions.append(Screen(candidate, incumbent_s, unit))
        return instructions

    # --------------------------------------------------------------- checking

    def validate(self) -> None:
        """Every candidate is in exactly one place, and the counts add up.

        Raises:
            AssertionError: with what does not.
        """
        places = [self.to_build, self.building, self.built, self.measuring, self.done]
        seen = [candidate for place in places for candidate in place]
        assert len(seen) == len(set(seen)), "a candidate is in two places"
        assert set(seen) == set(self.owner), "a candidate is nowhere, or unknown"
        flying = [c for c in seen if c not in self.done and c not in self.baselines]
        assert sorted(flying) == sorted(c for queue in self.flying.values() for c in queue)
        for task, progress in self.tasks.items():
            assert progress.pending == len(self.flying[task]), f"{task}: {progress.pending}"
        assert self.measured + len(flying) <= self.limits.trials, "more candidates than trials"
        if self.limits.shared_processor:
            assert not (self.building and self.measuring), "built and measured at once"
        self._validate_leases()

    def _validate_leases(self) -> None:
        """What is held is what is going on."""
        self.leases.validate()
        held = list(self.leases.held.values())
        building = [i.candidate for i in held if isinstance(i, Build)]
        assert len(building) == len(set(building)), "a candidate is built twice"
        assert self.building <= set(building), "a build that nobody has"
        assert set(self.measuring) <= {i.candidate for i in held if isinstance(i, Screen)}
        assert set(self.proposing) <= {i.task for i in held if isinstance(i, Propose)}
