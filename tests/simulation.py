"""A farm on paper: workers, a network and clocks, in the hands of a seed.

The state machine, the conductor, the ledger and the journal are the real ones; only what has no
truth without machines is made up here: how long work takes, what is lost, late or said twice.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.errors import Failure, FailureKind, Fenced
from tunefarm.home import Home
from tunefarm.measure.build import BuildOutcome, Library
from tunefarm.measure.facts import Raced, Screening, ScreenOutcome
from tunefarm.measure.protocol import Protocol
from tunefarm.results import schema
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.store import Store
from tunefarm.scheduler.conductor import Conductor
from tunefarm.scheduler.crew import Answered, Died, Heard
from tunefarm.scheduler.leases import Leases
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import (
    Assignment,
    BudgetSpent,
    Build,
    Fact,
    Imported,
    Instruction,
    Joined,
    Left,
    Phase,
    Propose,
    RunProcess,
    Screen,
    Screened,
    Task,
)
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate, baseline

TARGET = "llvm"
TOOLCHAIN = "tc"


@dataclass(frozen=True)
class Faults:
    """How likely each is, for a piece of work."""

    worker_dies: float = 0.04
    """The worker is gone, and said to be."""
    unit_leaves: float = 0.04
    """Its machine is lost, and comes back."""
    hangs: float = 0.03
    """No answer in time; the worker is given up."""
    zombie: float = 0.5
    """Of those that were given up or lost: the answer comes all the same, later."""
    repeated: float = 0.05
    """An answer comes twice."""
    late: float = 0.1
    """An answer is overtaken by others."""
    fails: float = 0.1
    """The candidate itself is faulty."""
    driver_dies: float = 0.01
    """For each turn: between a report and its record, or after it."""
    second_driver: float = 0.01
    """For each turn: another driver takes the job, and the first does not know."""
    clock_jumps: float = 0.02
    """For each turn: by up to an hour, either way."""
    liars: tuple[str, ...] = ()
    """Units that report what no hardware can do."""


NONE = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Crash(BaseException):
    """A driver's end, as by SIGKILL."""


@dataclass
class Network:
    """Everything that goes on outside of drivers.

    Attributes:
        now: simulated seconds.
        skew: how wrong the drivers' clock is.
    """

    seed: int
    faults: Faults
    now: float = 0.0
    skew: float = 0.0
    on_the_way: list[tuple[float, int, Any, Heard]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._numbers = itertools.count()

    def clock(self) -> float:
        return 1.8e9 + self.now + self.skew

    def likely(self, chance: float) -> bool:
        return self.rng.random() < chance

    def send(self, crew: SimulatedCrew, heard: Heard, after: float) -> None:
        heapq.heappush(self.on_the_way, (self.now + after, next(self._numbers), crew, heard))

    def arriving(self, crew: SimulatedCrew, limit_s: float) -> list[Heard]:
        """What reaches `crew` next, with all that comes with it; what was for a crew that is no
        more reaches it too, for workers do not know."""
        until = self.now + limit_s
        found: list[Heard] = []
        others = []
        while self.on_the_way and self.on_the_way[0][0] <= until:
            message = heapq.heappop(self.on_the_way)
            moment, _, whose, heard = message
            if whose is not crew and whose.is_alive:
                others.append(message)
                continue
            self.now = max(self.now, moment)
            if whose is crew or isinstance(heard, Answered | Died):
                found.append(heard)
                until = min(until, moment + 0.01)
        for message in others:
            heapq.heappush(self.on_the_way, message)
        if not found:
            self.now = max(self.now, until)
        return found


class SimulatedCrew:
    """See `crew.Crew`."""

    def __init__(self, network: Network, target: str) -> None:
        self._network = network
        self._target = target
        self.is_alive = True
        self.used: set[str | None] = set()

    def give(self, assignment: Assignment, work: Any) -> None:
        network, faults = self._network, self._network.faults
        took = network.rng.uniform(0.05, 0.5)
        answer = Answered(assignment.lease, self._answer(assignment.instruction))
        unit = getattr(assignment.instruction, "unit", None)
        self.used.add(unit)
        if network.likely(faults.worker_dies):
            network.send(self, Died(assignment.lease, "killed"), took)
        elif unit is not None and network.likely(faults.unit_leaves):
            network.send(self, Left(unit), took + 14.6)
            network.send(self, Joined(unit), took + network.rng.uniform(15, 60))
            if network.likely(faults.zombie):
                network.send(self, answer, took + network.rng.uniform(15, 40))
        elif network.likely(faults.hangs):
            network.send(self, Died(assignment.lease, "no answer"), took + 30)
            if network.likely(faults.zombie):
                network.send(self, answer, took + network.rng.uniform(30, 60))
        else:
            late = network.rng.uniform(0, 5) if network.likely(faults.late) else 0.0
            network.send(self, answer, took + late)
            if network.likely(faults.repeated):
                network.send(self, answer, took + late + network.rng.uniform(0, 5))

    def _answer(self, instruction: Instruction) -> Any:
        match instruction:
            case Propose(task, count, in_flight):
                return self._proposal(task, count, in_flight)
            case Build(candidate):
                if draw(candidate, "build") < self._network.faults.fails / 2:
                    failure = Failure(FailureKind.COMPILE_ERROR, "on paper")
                    return BuildOutcome(None, failure, 0.1)
                return BuildOutcome(Library(Path(candidate), ()), None, 0.1)
            case Screen(candidate, _, unit):
                if draw(candidate, "run") < self._network.faults.fails / 2:
                    return ScreenOutcome(None, Failure(FailureKind.CRASH, "on paper")), None
                seconds = latency_s(candidate)
                if unit in self._network.faults.liars:
                    seconds /= 1e4
                return ScreenOutcome(Screening((seconds,) * 3, False), None), None
            case RunProcess(Phase.RACE | Phase.FINAL, _, _):
                return Raced({}, {})
            case RunProcess():
                return {}
        return []

    def _proposal(self, task: str, count: int, in_flight: tuple[str, ...]) -> tuple[Candidate, ...]:
        """Any of a hundred: some are proposed again, as by a search that has lost its memory."""
        rng = self._network.rng
        found = [
            Candidate(task, self._target, TOOLCHAIN, f"[[{rng.randrange(100)}],[]]", "paper")
            for _ in range(count)
        ]
        return tuple(one for one in found if one.id not in in_flight)

    def wait(self, limit_s: float) -> list[Heard]:
        return self._network.arriving(self, limit_s)


def draw(candidate: str, what: str) -> float:
    """Between 0 and 1, always the same for the same."""
    digest = hashlib.sha256(f"{candidate} {what}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def latency_s(candidate: str) -> float:
    return 1e-4 * (1 + 9 * draw(candidate, "latency"))


@dataclass
class Driver:
    """One life of a job's driver."""

    farm: SimulatedJob

    def __post_init__(self) -> None:
        farm, network = self.farm, self.farm.network
        self.journal = Journal(farm.home, clock=network.clock)
        self.epoch = self.journal.drive(farm.job.id)
        self.ledger = Ledger(self.journal, farm.job, farm.target)
        self.state = TargetState(farm.limits, Leases(self.epoch))
        self.crew = SimulatedCrew(network, farm.target.resolved.text)
        self.told: list[str] = []
        untuned = [baseline(task, farm.target.resolved.text, TOOLCHAIN) for task in farm.tasks]
        self.ledger.candidates.update({one.id: one for one in untuned})
        self.ledger.floors_s = dict.fromkeys(farm.tasks, 1e-4)
        self.state.restore(Imported(tuple(Task(b.task, 1, b.id) for b in untuned)))
        self.ledger.retell(self.state)
        if any(e["kind"] == "phase" for e in self.journal.events(farm.job.id)):
            self.state.restore(BudgetSpent())
        assignments = self.state.resume_work()
        self.ledger.retell_processes(self.state)
        self.conductor = Conductor(
            self.state,
            self.crew,
            lambda instruction: instruction,
            self._record,
            self._gave_up,
            _raised,
            self._stale,
            self._flag,
            together=self.journal.together,
            entered=self._entered,
        )
        self.conductor.give(assignments)
        for unit in farm.units:
            self.conductor.give(self.state.handle(Joined(unit)))
        self.state.validate()

    def _record(self, instruction: Instruction, answer: Any) -> Fact:
        fact = self.ledger.take(instruction, answer)
        if isinstance(fact, Screened):
            self.told.append(fact.candidate)
        self._perhaps_die()
        return fact

    def _gave_up(self, instruction: Instruction, failure: Failure) -> Fact | None:
        return self.ledger.gave_up(instruction, failure) or self.ledger.take(instruction, {})

    def _flag(self, unit: str, reason: str) -> None:
        self.farm.flagged[unit] += 1

    def _stale(self, heard: Heard) -> None:
        self.farm.stale += 1

    def _entered(self, phase: Phase) -> None:
        if phase is Phase.RACE:
            self.journal.add_event(self.farm.job.id, "phase", phase=phase.value)

    def _perhaps_die(self) -> None:
        if self.farm.network.likely(self.farm.network.faults.driver_dies):
            raise Crash

    def turn(self) -> None:
        self.told.clear()
        self.conductor.turn(0.5)
        self.farm.acknowledged.update(self.told)
        self._perhaps_die()

    def close(self) -> None:
        self.crew.is_alive = False
        self.journal.close()


def _raised(instruction: Instruction, error: Exception) -> Fact:
    raise error


class SimulatedJob:
    """One job on a farm of `units`, driven to its end whatever befalls it."""

    def __init__(
        self,
        home: Home,
        device: Device,
        seed: int,
        faults: Faults,
        *,
        tasks: int = 2,
        units: int = 3,
        limits: Limits,
    ) -> None:
        self.home, self.limits = home, limits
        self.network = Network(seed, faults)
        self.tasks = [f"t{number}" for number in range(tasks)]
        self.units = [f"unit{number}" for number in range(units)]
        self.job = Job(f"paper-{seed}", "paper", 0.0, "0", "m", {}, Protocol().to_dict())
        self.target = JobTarget(TARGET, device.target, device, TOOLCHAIN)
        self.acknowledged: set[str] = set()
        """Candidates whose result a driver has taken down and gone on from."""
        self.epochs: list[int] = []
        self.fenced = self.stale = 0
        self.flagged: Counter[str] = Counter()
        journal = Journal(home, clock=self.network.clock)
        journal.add_job(self.job, [self.target])
        journal.close()

    def run(self, turns: int = 20_000) -> None:
        """To the end.

        Raises:
            AssertionError: a promise is broken.
        """
        driver: Driver | None = None
        for _ in range(turns):
            try:
                driver = driver or self._next_driver()
                driver.turn()
            except Crash:
                if driver is not None:
                    driver.close()
                driver = None
                continue
            driver.state.validate()
            if driver.state.phase is Phase.DONE:
                break
            if self.network.likely(self.network.faults.clock_jumps):
                self.network.skew += self.network.rng.uniform(-3600, 3600)
            if self.network.likely(self.network.faults.second_driver):
                driver = self._taken_over(driver)
        else:
            raise AssertionError("it does not end")
        self._check(driver.journal)
        self.used = driver.crew.used
        driver.close()

    def _next_driver(self) -> Driver:
        driver = Driver(self)
        assert driver.epoch > max(self.epochs, default=0), "an epoch comes again"
        self.epochs.append(driver.epoch)
        assert self.acknowledged <= driver.state.done, "an acknowledged result is lost"
        return driver

    def _taken_over(self, old: Driver) -> Driver:
        """Another driver begins while the old one lives: from its first look on, the old one can
        write nothing."""
        new = self._next_driver()
        before = self._rows()
        try:
            for _ in range(50):
                old.turn()
            raise AssertionError("two drivers write")
        except (Fenced, Crash):
            self.fenced += 1
        assert self._rows() == before, "the old driver has written"
        old.close()
        return new

    def _rows(self) -> int:
        store = Store(self.home.journal_url)
        tables = (schema.measurements, schema.failures, schema.candidates, schema.processes)
        found = sum(len(store.facts(table, table.c.job == self.job.id)) for table in tables)
        store.close()
        return found

    def _check(self, journal: Journal) -> None:
        job = self.job.id
        stored = [m for m in journal.measurements(job, TARGET) if m.stage in ("screen", "baseline")]
        failed = [row["candidate"] for row in journal.failures(job, TARGET)]
        for one in stored:
            assert one.samples == (latency_s(one.candidate),) * 3, "a result is not its own"
        results = [one.candidate for one in stored]
        assert len(results) == len(set(results)), "a measurement is stored twice"
        assert len(failed) == len(set(failed)), "a failure is stored twice"
        missing = self.acknowledged - set(results) - set(failed)
        assert not missing, f"acknowledged, and not there: {missing}"
        screened = [one for one in stored if one.stage == "screen"]
        assert len(screened) <= self.limits.trials, "more than its trials"


def jobs(
    home: Home, device: Device, seeds: Iterator[int], faults: Faults
) -> Iterator[SimulatedJob]:
    """A finished job for each seed, each of its own size."""
    for seed in seeds:
        rng = random.Random(seed)
        limits = Limits(
            trials=rng.randint(1, 16),
            builders=rng.randint(1, 4),
            batch=4,
            shared_processor=rng.random() < 0.5,
            processes=(2, 2, 3, 2),
        )
        job = SimulatedJob(
            home,
            device,
            seed,
            faults,
            tasks=rng.randint(1, 3),
            units=rng.randint(1, 4),
            limits=limits,
        )
        job.run()
        yield job
