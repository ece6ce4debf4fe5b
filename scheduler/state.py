"""The state of one target's job: a pure function of its events.

`TargetState.handle(event)` returns instructions; nothing here does any I/O, knows a clock, Ray or
TVM. The driver carries instructions out and reports back; on `resume` it feeds the journal's facts
through `restore` and goes on with `resume_work`. In the manner of dask/distributed's
worker state machine.

    IMPORT -> BASELINE -> TUNE -> RACE -> VARIANTS -> PLACE -> FINAL -> ASSEMBLE -> COMPARE
    -> PACKAGE -> DONE

Where builders share the processor with the device, building and measuring take turns in small
batches, so that nothing is timed against a busy core.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from tunefarm.scheduler.budget import (
    Progress,
    allocate,
    at_the_roof,
    levelled_off,
    plateaued,
)
from tunefarm.scheduler.messages import (
    BudgetSpent,
    Build,
    Built,
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

FEWEST = 100
"""Candidates by which at the least a job is judged to gain nothing any more."""

_AFTER_PROCESSES = {
    Phase.RACE: Phase.VARIANTS,
    Phase.PLACE: Phase.FINAL,
    Phase.FINAL: Phase.ASSEMBLE,
    Phase.COMPARE: Phase.PACKAGE,
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
        batch: candidates built before a measuring turn, on a shared processor; the first turns
            are shorter, so that the search soon has something to learn from.
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
    chunk: int = 4
    patience: int = 32
    enough: float | None = None
    processes: tuple[int, int, int, int] = (2, 3, 3, 5)

    def warm_up(self, tasks: int) -> int:
        """First candidates of each kernel: two, for what a kernel gains is not known before."""
        return max(1, min(2, self.trials // (2 * max(1, tasks))))


@dataclass
class TargetState:
    limits: Limits
    phase: Phase = Phase.IMPORT
    turn: Turn = Turn.BUILD
    tasks: dict[str, Progress] = field(default_factory=dict)
    owner: dict[str, str] = field(default_factory=dict)
    """Every candidate's task."""
    to_build: deque[str] = field(default_factory=deque)
    building: set[str] = field(default_factory=set)
    built: deque[str] = field(default_factory=deque)
    measuring: str | None = None
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
    next_process: int = 0
    given_out: Instruction | None = None
    """The one outstanding step or process of a phase after tuning."""

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event in; what is to be done now. Events that no longer matter do nothing."""
        self.restore(event)
        return self._advance()

    def resume_work(self) -> list[Instruction]:
        """After `restore` of all recorded facts: what is to be done now."""
        return self._advance()

    # ------------------------------------------------------------------ events

    def restore(self, event: Event) -> None:
        """Take a recorded fact in without asking what follows from it."""
        match event:
            case Imported(tasks):
                self._imported(tasks)
            case Proposed(task, candidates):
                self._proposed(task, candidates)
            case Built(candidate, ok):
                self._built(candidate, ok)
            case Screened(candidate, latency_s):
                self._screened(candidate, latency_s)
            case ProcessDone(phase, process):
                self._skip_to(phase)
                if phase is self.phase and process == self.next_process:
                    self._process_done()
            case StepDone(phase):
                if phase is self.phase and phase in _AFTER_STEP:
                    self._enter(_AFTER_STEP[phase])
            case BudgetSpent():
                self._stop_tuning()
            case Lost(instruction):
                self._lost(instruction)

    def _imported(self, tasks: tuple[Task, ...]) -> None:
        if self.phase is not Phase.IMPORT:
            return
        for task in tasks:
            self.tasks[task.id] = Progress(task.id, task.weight, floor_s=task.floor_s)
            self.baselines[task.baseline] = task.id
            self.owner[task.baseline] = task.id
            self.to_build.append(task.baseline)
        self.phase = Phase.BASELINE

    def _proposed(self, task: str, candidates: tuple[str, ...]) -> None:
        progress = self.tasks[task]
        asked = self.proposing.pop(task, 0)
        fresh = [c for c in candidates if c not in self.owner]
        if asked and not candidates:
            progress.closed = True
        for candidate in fresh:
            self.owner[candidate] = task
            if self.stopping:
                self.done.add(candidate)
            else:
                progress.pending += 1
                self.to_build.append(candidate)

    def _built(self, candidate: str, ok: bool) -> None:
        if candidate not in self.building:
            if candidate not in self.to_build:
                return
            self.to_build.remove(candidate)  # known from the journal, not built by us
        self.building.discard(candidate)
        if ok:
            self.built.append(candidate)
        else:
            self._finish(candidate, None)

    def _screened(self, candidate: str, latency_s: float | None) -> None:
        if candidate in self.done or candidate not in self.owner:
            return
        if self.measuring == candidate:
            self.measuring = None
        elif candidate in self.built:
            self.built.remove(candidate)
        elif candidate in self.to_build:
            self.to_build.remove(candidate)
        else:
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
        progress.pending -= 1
        progress.record(latency_s)
        self.measured += latency_s is not None
        self.failed += latency_s is None
        if plateaued(progress, patience=self.limits.patience) or self._at_the_roof(progress):
            progress.closed = True
        if self.phase is Phase.TUNE and self._has_levelled_off():
            self._stop_tuning()

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
        each = self._warm_up()
        self.first = sum(max(0, each - p.results) for p in self.tasks.values() if not p.closed)
        self.sums = [(0, self._inference_s())]

    def _at_the_roof(self, progress: Progress) -> bool:
        return progress.results >= self._warm_up() and at_the_roof(progress)

    def _stop_tuning(self) -> None:
        """Also before every baseline is known: kernels without one stay untuned."""
        if self.phase not in (Phase.BASELINE, Phase.TUNE):
            return
        self.stopping = True
        for candidate in [c for c in self.to_build if c not in self.baselines]:
            self.to_build.remove(candidate)
            self.tasks[self.owner[candidate]].pending -= 1
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

    def _process_done(self) -> None:
        self.next_process += 1
        counts = dict(zip(_AFTER_PROCESSES, self.limits.processes, strict=True))
        if self.next_process >= counts[self.phase]:
            self._enter(_AFTER_PROCESSES[self.phase])

    def _lost(self, instruction: Instruction) -> None:
        match instruction:
            case Propose(task, _, _):
                self.proposing.pop(task, None)
            case Build(candidate) if candidate in self.building:
                self.building.discard(candidate)
                self.to_build.appendleft(candidate)
            case Screen(candidate, _) if candidate == self.measuring:
                self.measuring = None
                self.built.appendleft(candidate)
            case RunProcess() | Step() if instruction == self.given_out:
                self.given_out = None
            case _:
                pass

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.next_process = 0
        self.given_out = None

    # ------------------------------------------------------------ instructions

    def _advance(self) -> list[Instruction]:
        if self.phase in (Phase.BASELINE, Phase.TUNE):
            instructions = self._tune()
            if self._tuning_is_over():
                self._enter(Phase.RACE)
            else:
                return instructions
        if self.phase in _AFTER_PROCESSES:
            return self._give_out(RunProcess(self.phase, self.next_process))
        if self.phase in _AFTER_STEP:
            return self._give_out(Step(self.phase))
        return []

    def _give_out(self, instruction: Instruction) -> list[Instruction]:
        if self.given_out == instruction:
            return []
        self.given_out = instruction
        return [instruction]

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
            if not self.built and self.measuring is None:
                self.turn = Turn.BUILD
        elif self._batch_is_built() and not self.building and not self.proposing and self.built:
            self.turn = Turn.MEASURE

    def _batch(self) -> int:
        """One, then half, then all: the first result is soon there to learn from."""
        results = self.measured + self.failed
        if not results:
            return 1
        return self.limits.batch if results > self.limits.batch // 2 else self.limits.batch // 2

    def _batch_is_built(self) -> bool:
        if len(self.built) + len(self.building) >= self._batch():
            return True
        return not self.to_build and not self.building and not self._room()

    def _room(self) -> int:
        """Candidates that may still be proposed within `trials`."""
        if self.stopping or self.phase is not Phase.TUNE:
            return 0
        pending = sum(p.pending for p in self.tasks.values()) + sum(self.proposing.values())
        wanted = allocate(self.tasks.values(), 1, warm_up=self._warm_up(), chunk=self.limits.chunk)
        return max(0, self.limits.trials - self.measured - pending) if wanted else 0

    def _warm_up(self) -> int:
        return self.limits.warm_up(len(self.tasks))

    def _proposals(self) -> list[Instruction]:
        """Keep one batch proposed ahead of the builders."""
        if self.limits.shared_processor and self._batch_is_built():
            return []
        waiting = len(self.to_build) + sum(self.proposing.values())
        room = min(self._room(), self._batch() - waiting)
        if room <= 0:
            return []
        wanted = allocate(
            (p for p in self.tasks.values() if p.task not in self.proposing),
            room,
            warm_up=self._warm_up(),
            chunk=self.limits.chunk,
        )
        instructions: list[Instruction] = []
        for task, count in wanted:
            self.proposing[task] = count
            instructions.append(Propose(task, count, self._in_flight(task)))
        return instructions

    def _in_flight(self, task: str) -> tuple[str, ...]:
        flying = [*self.to_build, *self.building, *self.built]
        flying += [self.measuring] if self.measuring else []
        return tuple(c for c in flying if self.owner[c] == task and c not in self.baselines)

    def _builds(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        while self.to_build and len(self.building) < self.limits.builders:
            if self.limits.shared_processor and (
                len(self.built) + len(self.building) >= self._batch()
            ):
                break
            candidate = self.to_build.popleft()
            self.building.add(candidate)
            instructions.append(Build(candidate))
        return instructions

    def _screenings(self) -> list[Instruction]:
        if self.measuring is not None or not self.built:
            return []
        candidate = self.built.popleft()
        self.measuring = candidate
        return [Screen(candidate, self.tasks[self.owner[candidate]].latency_s)]

    # --------------------------------------------------------------- checking

    def validate(self) -> None:
        """Every candidate is in exactly one place, and the counts add up.

        Raises:
            AssertionError: with what does not.
        """
        places = [
            list(self.to_build),
            list(self.building),
            list(self.built),
            [self.measuring] if self.measuring else [],
            list(self.done),
        ]
        seen = [candidate for place in places for candidate in place]
        assert len(seen) == len(set(seen)), "a candidate is in two places"
        assert set(seen) == set(self.owner), "a candidate is nowhere, or unknown"
        for task, progress in self.tasks.items():
            flying = self._in_flight(task)
            assert progress.pending == len(flying), f"{task}: pending {progress.pending}"
        assert len(self.building) <= self.limits.builders
        pending = sum(p.pending for p in self.tasks.values())
        assert self.measured + pending <= self.limits.trials, "more candidates than trials"
        if self.limits.shared_processor:
            assert not (self.building and self.measuring), "built and measured at once"
