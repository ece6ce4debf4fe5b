"""Tuning kernels in this process: the state machine without Ray, journal or model.

For whoever has a TensorIR kernel and wants a schedule: a compiler engineer at a prompt, and the
benchmarks. What decides is the same as in a job (`TargetState`, `Proposer`, `Builder`, `Runner`);
what is left out is what makes a job durable and wide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tunefarm.costmodel.ranker import Ranker
from tunefarm.costmodel.transfer import Transfer
from tunefarm.devices.device import Device
from tunefarm.devices.roof import Roof
from tunefarm.errors import Failure
from tunefarm.frontend.program import TuningTask
from tunefarm.measure.build import Builder, BuildOutcome, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts, ScreenOutcome
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.runner import Runner
from tunefarm.scheduler.conductor import Conductor
from tunefarm.scheduler.crew import Answered, Heard
from tunefarm.scheduler.messages import (
    Assignment,
    BudgetSpent,
    Build,
    Built,
    Event,
    Fact,
    Imported,
    Instruction,
    Joined,
    Phase,
    Propose,
    Proposed,
    Screen,
    Screened,
    Task,
)
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate, baseline
from tunefarm.search.proposer import Proposer, Result, Taught


@dataclass(frozen=True)
class Trial:
    """One result, as it came in.

    Attributes:
        task: id of the kernel.
        candidate: with its trace.
        latency_s: median seconds of its screening; None for a failure.
        failure: of which kind, else None.
        elapsed_s: seconds since tuning began, starting the workers included.
    """

    task: str
    candidate: Candidate
    latency_s: float | None
    failure: Failure | None
    elapsed_s: float


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        trials: every result in order; the untuned schedule of each kernel comes first.
        taught: what a cost model can learn from.
    """

    trials: tuple[Trial, ...]
    taught: tuple[Taught, ...]


@dataclass
class LocalTuner:
    """Tunes kernels on this machine.

    Args:
        tasks: with the files of their workloads.
        device: this machine, as `devices.probe` found it.
        directory: for libraries and references.
        limits: trials over all kernels, and pacing; `processes` is not used.
        between: bytes that are read between two calls of a kernel where it is used
            (`Program.between_bytes`): it is timed as cold as that; 0 with everything at hand.
        budget_s: seconds after which nothing new begins.
        transfer: what earlier jobs have taught, to start from.
        gauge: file of the device's gauge (`measure.steady`).
        roof: of the device; kernels that have reached it are left alone.
        report: hears of every result.
    """

    tasks: Mapping[str, tuple[TuningTask, Path]]
    device: Device
    toolchain: str
    directory: Path
    limits: Limits
    strategy: str = "portfolio"
    seed: int = 0
    protocol: Protocol = field(default_factory=Protocol)
    between: int = 0
    budget_s: float | None = None
    transfer: Transfer | None = None
    roof: Roof | None = None
    gauge: Path | None = None
    report: Callable[[Trial], None] = lambda trial: None

    def run(self) -> Tuning:
        """Tune until the trials or the time are spent."""
        started = time.monotonic()
        builders = [Builder(self.protocol.compile_limit_s) for _ in range(self.limits.builders)]
        device = self.device
        runner = Runner(
            device.cores, self.protocol.memory_bytes, self.gauge, device.target.kind, device.uuid
        )
        with ThreadPoolExecutor(len(builders) + 2) as pool:
            try:
                # The other builders start with their first build: three compilers that are imported
                # at once on two cores would all be late for the first candidate.
                builders[-1].start()
                runner.start()
                return _Run(self, started, builders, runner, pool).loop()
            finally:
                for builder in builders:
                    builder.close()
                runner.close()


class _Run:
    """One tuning, from its first instruction to its last result."""

    def __init__(
        self,
        tuner: LocalTuner,
        started: float,
        builders: Sequence[Builder],
        runner: Runner,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._tuner = tuner
        self._started = started
        self._pool = pool
        self._state = TargetState(tuner.limits)
        self._crew = _Threads(pool, builders, runner, self._propose)
        self._candidates: dict[str, Candidate] = {}
        self._libraries: dict[str, Library] = {}
        prior = tuner.transfer.ranking if tuner.transfer else None
        self._ranker = Ranker(seed=tuner.seed, prior=prior)
        self._searching = threading.Lock()
        self._proposers: dict[str, Proposer] = {}
        self._news: list[Result] = []
        self._trials: list[Trial] = []

    def loop(self) -> Tuning:
        conductor = Conductor(
            self._state, self._crew, self._work, self._record, _cannot_be_lost, _raise
        )
        self._state.restore(self._imported())
        conductor.give(self._state.handle(Joined(self._tuner.device.id)))
        for task in self._tuner.tasks:  # the compiler's import is most of what a start takes
            self._pool.submit(self._propose, task, 0, (), ())
        while self._state.phase in (Phase.BASELINE, Phase.TUNE):
            conductor.turn(0.5, self._clock())
        with self._searching:
            self._observe(self._news)
            taught = [one for proposer in self._proposers.values() for one in proposer.taught()]
        return Tuning(tuple(self._trials), tuple(taught))

    def _clock(self) -> list[Event]:
        budget = self._tuner.budget_s
        over = budget is not None and time.monotonic() - self._started > budget
        return [BudgetSpent()] if over else []

    def _imported(self) -> Imported:
        target, toolchain = self._tuner.device.target, self._tuner.toolchain
        tasks = []
        for name, (task, _) in self._tuner.tasks.items():
            untuned = baseline(name, target.text, toolchain)
            self._candidates[untuned.id] = untuned
            roof, flops = self._tuner.roof, task.float_flops(self._tuner.device.features)
            floor_s = roof.floor_s(flops, task.bytes) if roof is not None else 0.0
            tasks.append(Task(name, task.weight, untuned.id, floor_s))
        return Imported(tuple(tasks))

    # ------------------------------------------------------------ instructions

    def _work(self, instruction: Instruction) -> Any:
        match instruction:
            case Propose(task, count, in_flight):
                news, self._news = self._news, []
                return task, count, in_flight, news
            case Build(candidate):
                return self._build_request(candidate)
            case Screen(candidate, incumbent_s, _):
                return self._screen_request(candidate, incumbent_s)
        return None  # races are not part of tuning

    def _propose(
        self, task: str, count: int, in_flight: Sequence[str], news: Sequence[Result]
    ) -> tuple[Candidate, ...]:
        """One at a time: proposers share their ranking."""
        with self._searching:
            self._observe(news)
            proposer = self._proposer(task)
            return proposer.propose(count, in_flight) if count else ()

    def _observe(self, news: Sequence[Result]) -> None:
        for name in {result.candidate.task for result in news}:
            self._proposer(name).observe([one for one in news if one.candidate.task == name])

    def _proposer(self, task: str) -> Proposer:
        if task not in self._proposers:
            from tunefarm.search.replay import load_workload
            from tunefarm.search.spaces import design_space

            tuner = self._tuner
            self._proposers[task] = Proposer(
                task,
                tuner.device.target,
                tuner.toolchain,
                design_space(
                    load_workload(tuner.tasks[task][1]), tuner.device.target, tuner.transfer
                ),
                tuner.strategy,
                self._ranker,
                seed=tuner.seed,
            )
        return self._proposers[task]

    def _build_request(self, candidate: str) -> BuildRequest:
        one = self._candidates[candidate]
        library = self._tuner.directory / "candidates" / f"{one.id}.so"
        return BuildRequest(
            self._tuner.tasks[one.task][1], self._tuner.device.target, one.trace, library
        )

    def _screen_request(self, candidate: str, incumbent_s: float | None) -> ScreenRequest:
        one = self._candidates[candidate]
        task, _ = self._tuner.tasks[one.task]
        reference = self._tuner.directory / "reference" / f"{one.task}.npz"
        between = self._tuner.between
        facts = KernelFacts.of(task, reference, between)
        return ScreenRequest(
            self._libraries[candidate], facts, self._tuner.protocol, incumbent_s, one.untuned
        )

    # ----------------------------------------------------------------- results

    def _record(self, instruction: Instruction, answer: Any) -> Fact:
        match instruction:
            case Propose(task, _, _):
                self._candidates.update({c.id: c for c in answer})
                return Proposed(task, tuple(c.id for c in answer))
            case Build(candidate):
                built: BuildOutcome = answer
                if built.library is None:
                    return self._result(candidate, None, built.failure)
                self._libraries[candidate] = built.library
                return Built(candidate, True)
            case Screen(candidate, _, _):
                screened: ScreenOutcome = answer
                if screened.screening is None:
                    return self._result(candidate, None, screened.failure)
                return self._result(candidate, median(screened.screening.samples), None)
        raise AssertionError(f"no answer to {instruction}")

    def _result(self, candidate: str, latency_s: float | None, failure: Failure | None) -> Screened:
        one = self._candidates[candidate]
        elapsed = time.monotonic() - self._started
        trial = Trial(one.task, one, latency_s, failure, elapsed)
        self._trials.append(trial)
        self._tuner.report(trial)
        if not one.untuned:
            self._news.append(Result(one, latency_s))
        return Screened(candidate, latency_s)


class _Threads:
    """A crew of threads, each of which waits for a child process or proposes; see `crew.Crew`. What
    tuning does not ask for is not done: it ends there."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        builders: Sequence[Builder],
        runner: Runner,
        propose: Callable[..., Any],
    ) -> None:
        self._pool = pool
        self._idle = list(builders)
        self._runner = runner
        self._propose = propose
        self._busy: dict[Future[Any], tuple[Assignment, Builder | None]] = {}

    def give(self, assignment: Assignment, work: Any) -> None:
        builder = None
        match assignment.instruction:
            case Propose():
                future: Future[Any] = self._pool.submit(self._propose, *work)
            case Build():
                builder = self._idle.pop()
                future = self._pool.submit(builder.build, work)
            case Screen():
                future = self._pool.submit(self._runner.screen, work)
            case _:
                return
        self._busy[future] = (assignment, builder)

    def wait(self, limit_s: float) -> list[Heard]:
        finished, _ = wait(self._busy, timeout=limit_s, return_when=FIRST_COMPLETED)
        heard: list[Heard] = []
        for future in finished:
            assignment, builder = self._busy.pop(future)
            if builder is not None:
                self._idle.append(builder)
            heard.append(Answered(assignment.lease, future.result()))
        return heard


def _cannot_be_lost(instruction: Instruction, failure: Failure) -> Fact | None:
    """Threads do not die by themselves."""
    return None


def _raise(instruction: Instruction, error: Exception) -> Fact:
    raise error
