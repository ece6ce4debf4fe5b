"""The crew of Ray's actors: one search worker, builders, and a measure worker for each unit.

Units and builders are on whichever machines offer them, and come and go with these. What a worker
on another machine needs is sent along, and what it makes is kept here (`shipping`).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from tunefarm.devices.device import Device
from tunefarm.devices.registry import register
from tunefarm.devices.standing import Use, standing
from tunefarm.errors import JobFailed, last_line
from tunefarm.home import Home
from tunefarm.measure.build import BuildOutcome, BuildRequest
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.runner import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.scheduler import actors, farm
from tunefarm.scheduler.crew import Answered, Died, Heard, Raised
from tunefarm.scheduler.messages import (
    Assignment,
    Build,
    Builders,
    Joined,
    Left,
    Propose,
    RunProcess,
    Screen,
    Step,
)
from tunefarm.scheduler.pulse import Pulses
from tunefarm.scheduler.shipping import Depot

_DEATHS = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
)
_METHODS: dict[type, str] = {
    ScreenRequest: "screen",
    RaceRequest: "race",
    PlaceRequest: "place",
    ModelRequest: "model",
    CheckRequest: "check",
}
"""What a measure worker is asked to do, by the request."""
LIMITS: dict[type, float] = {
    Propose: 300.0,
    Build: 300.0,
    Screen: 600.0,
    RunProcess: 3600.0,
    Step: 7200.0,
}
"""Seconds after which an answer is not waited for any more, far beyond the limits that workers keep
of their own."""
SCAN_EVERY_S = 5.0
"""Between two looks at which machines are there."""
STARTS = 3
"""How often what cannot start, or kills who starts it, is tried."""


@dataclass(frozen=True)
class Plan:
    """Whom a target needs.

    Attributes:
        device: any unit is of its kind.
        job: whose directory in `home` requests are about.
        start_search: makes a search worker that knows all; called again when one dies.
        gauge: of the device on this machine.
        takes: units take their devices for the job; else the driver has taken it.
        is_shared: builders and units on one machine take turns; else such builders are left alone.
        say: tells people.
        most_builders: None for as many as are offered.
    """

    home: Home
    device: Device
    job: str
    protocol: Protocol
    start_search: Callable[[], Any]
    gauge: Path
    takes: bool = False
    is_shared: bool = True
    say: Callable[[str], None] = lambda text: None
    most_builders: int | None = None

    @property
    def root(self) -> Path:
        return self.home.job_dir(self.job)

    def is_unit(self, device: Device) -> bool:
        mine = (self.device.fingerprint, self.device.toolchain)
        return (device.fingerprint, device.toolchain) == mine


@dataclass(eq=False)
class _Worker:
    """An actor, and whether what it needs must be sent there."""

    actor: Any
    node: str
    is_away: bool


@dataclass
class _Asked:
    assignment: Assignment
    worker: _Worker | None
    due: float
    """`time.monotonic()` at which it is given up."""


@dataclass
class RayCrew:
    """See `crew.Crew`. The work of a `Propose` is the arguments of `SearchWorker.propose`, of a
    `Step` the models to assemble, of the others a request; None is answered by nothing."""

    plan: Plan
    devices: farm.Devices = field(default_factory=farm.Devices)
    limits: Mapping[type, float] = field(default_factory=LIMITS.copy)
    pulses: Pulses = field(default_factory=Pulses)
    _units: dict[str, _Worker] = field(default_factory=dict)
    _coming: dict[Any, str] = field(default_factory=dict)
    """Units that are starting, by what they will answer."""
    _builders: list[_Worker] = field(default_factory=list)
    _idle: list[_Worker] = field(default_factory=list)
    _waiting: list[tuple[Assignment, Any]] = field(default_factory=list)
    """Builds that were given out when a builder had just gone."""
    _asked: dict[Any, _Asked] = field(default_factory=dict)
    _scanned: float = 0.0
    _has_had_a_unit: bool = False
    _failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._here = farm.this_node()
        self._depot = Depot(self.plan.root, ray.put)
        self._start_search()
        self._news = self._scan()

    def _start_search(self) -> None:
        self._searcher = _Worker(self.plan.start_search(), self._here, False)

    @property
    def search(self) -> Any:
        """The search worker's actor."""
        return self._searcher.actor

    # ----------------------------------------------------------------- machines

    def _tend(self) -> list[Heard]:
        """Whoever is frozen is ended; now and then, look who is there."""
        heard: list[Heard] = []
        for worker in [*self.pulses.frozen(), *self._overdue()]:
            self.plan.say("a worker does not answer any more; ending it")
            heard += self._end(worker)
        if time.monotonic() - self._scanned > SCAN_EVERY_S:
            heard += self._scan()
            self.pulses.ask([self._searcher, *self._builders, *self._units.values()])
        return heard

    def _overdue(self) -> list[_Worker]:
        """Whoever has had something in hand for too long, though it lives."""
        now = time.monotonic()
        late = (asked.worker for asked in self._asked.values() if now > asked.due)
        return [worker for worker in late if worker is not None]

    def _end(self, worker: Any) -> list[Heard]:
        """What it had in hand fails at once, and is given out again."""
        for unit, one in list(self._units.items()):
            if one is worker:
                return self._drop(unit)
        if worker in self._builders:
            self._replace_builder(worker)
        else:
            ray.kill(worker.actor)
        return []

    def _scan(self) -> list[Heard]:
        """Look which machines are there: workers for those that are new, none for the others."""
        self._scanned = time.monotonic()
        there = {node.id: node for node in farm.nodes()}
        heard: list[Heard] = []
        for unit, worker in list(self._units.items()):
            if worker.node not in there or self._standing(unit) is Use.QUARANTINED:
                heard += self._drop(unit)
        before = len(self._builders)
        for worker in [one for one in self._builders if one.node not in there]:
            self._drop_builder(worker)
        for node in there.values():
            self._take_units(node)
            self._take_builders(node)
        if len(self._builders) != before:
            heard.append(Builders(len(self._builders)))
        return heard

    def _take_units(self, node: farm.Node) -> None:
        if all(unit in self._units for unit in node.devices):
            return
        try:
            offered = self.devices.of(node)
        except ray.exceptions.RayError:
            return  # gone since, or not ready: the next scan asks again
        for unit, device in offered.items():
            if unit in self._units or not self.plan.is_unit(device):
                continue
            register(self.plan.home, device)  # so that people see it, and may keep it out
            if self._standing(unit) is Use.FREE:
                away = self._away(node.id)
                actor = actors.spawn(
                    actors.MeasureWorker,
                    away,
                    device,
                    self.plan.protocol,
                    self.plan.gauge if away is None else None,
                    self.plan.job if self.plan.takes else None,
                    cpus=0,
                    resources={f"{farm.DEVICE}{unit}": 1},
                )
                self._units[unit] = self._worker(actor, node.id)
                self._coming[actor.ready.remote()] = unit

    def _standing(self, unit: str) -> Use:
        return standing(self.plan.home, unit).use

    def _take_builders(self, node: farm.Node) -> None:
        if self.plan.takes and not self._has_had_a_unit:
            return  # a job that waits for its devices keeps no builder from another
        if not self.plan.is_shared and any(unit in self._units for unit in node.devices):
            return  # they would build while it measures
        mine = sum(worker.node == node.id for worker in self._builders)
        most = self.plan.most_builders
        for _ in range(node.builders - mine):
            if most is not None and len(self._builders) >= most:
                return
            actor = actors.spawn(
                actors.BuildWorker,
                self._away(node.id),
                self.plan.protocol.compile_limit_s,
                resources={farm.BUILDER: 1},
                node=node.id,
            )
            worker = self._worker(actor, node.id)
            self._builders.append(worker)
            self._idle.append(worker)

    def _away(self, node: str) -> actors.Away | None:
        return None if node == self._here else actors.Away(self.plan.root)

    def _worker(self, actor: Any, node: str) -> _Worker:
        return _Worker(actor, node, node != self._here)

    def _drop(self, unit: str) -> list[Heard]:
        """A unit that is not there any more."""
        worker = self._units.pop(unit)
        ray.kill(worker.actor)
        self._coming = {r: name for r, name in self._coming.items() if name != unit}
        return [Left(unit)]

    # --------------------------------------------------------------------- work

    def give(self, assignment: Assignment, work: Any) -> None:
        worker = None
        match assignment.instruction:
            case Propose():
                worker = self._searcher
                reference = self.search.propose.remote(*work)
            case Build():
                if not self._idle:
                    self._waiting.append((assignment, work))
                    return
                worker = self._idle.pop()
                reference = self._ask(worker, "build", work)
            case Screen(_, _, unit) | RunProcess(_, _, unit) if work is not None:
                if unit not in self._units:
                    return  # gone, as was said: its lease is not held any more
                worker = self._units[unit]
                reference = self._ask(worker, _METHODS[type(work)], work)
            case Step() if work and not self._builders:
                self._waiting.append((assignment, work))
                return
            case Step() if work:
                workers = itertools.cycle(self._at_home() or self._builders)
                made = [
                    self._ask(one, "assemble", r) for one, r in zip(workers, work, strict=False)
                ]
                reference = actors.gather.remote(made)
            case _:
                reference = ray.put([])
        self._asked[reference] = _Asked(
            assignment, worker, time.monotonic() + self.limits[type(assignment.instruction)]
        )

    def _at_home(self) -> list[_Worker]:
        """Builders to which a whole model need not be sent."""
        return [worker for worker in self._builders if not worker.is_away]

    def _ask(self, worker: _Worker, method: str, request: Any) -> Any:
        parcels = self._depot.parcels(request) if worker.is_away else {}
        return getattr(worker.actor, method).remote(request, parcels)

    def _unpacked(self, instruction: Any, answer: Any) -> Any:
        """The answer alone; files that came with it are kept."""
        match instruction:
            case Build() | Screen() | RunProcess() if isinstance(answer, actors.Made):
                self._depot.receive(answer.files)
                return answer.answer
            case Step():
                for one in answer:
                    self._depot.receive(one.files)
                return [one.answer for one in answer]
        return answer

    def wait(self, limit_s: float) -> list[Heard]:
        heard, self._news = self._news, []
        waiting = [*self._asked, *self._coming]
        if waiting:
            ray.wait(waiting, num_returns=1, timeout=0.0 if heard else limit_s)
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
            for reference in ready:
                heard += self._heard(reference)
        elif not heard:
            time.sleep(limit_s)
        heard += self._tend()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self.give(*one)
        return heard

    def _heard(self, reference: Any) -> list[Heard]:
        if reference in self._coming:
            return self._arrived(reference, self._coming.pop(reference))
        if reference not in self._asked:
            return []  # of a unit that was dropped just now
        asked = self._asked.pop(reference)
        instruction, lease = asked.assignment.instruction, asked.assignment.lease
        try:
            answer = ray.get(reference)
        except _DEATHS as error:  # a `RayTaskError` too, of what waited for one that died
            return self._death(asked, str(error).splitlines()[0])
        except ray.exceptions.RayTaskError as error:
            self._is_idle(asked)
            return [Raised(lease, error.cause or error)]
        except ray.exceptions.RayError as error:  # whatever Ray calls it: nobody has answered
            return self._death(asked, str(error).splitlines()[0])
        self._is_idle(asked)
        return [Answered(lease, self._unpacked(instruction, answer))]

    def _is_idle(self, asked: _Asked) -> None:
        if isinstance(asked.assignment.instruction, Build) and asked.worker in self._builders:
            self._idle.append(asked.worker)

    def _arrived(self, reference: Any, unit: str) -> list[Heard]:
        try:
            ray.get(reference)
        except ray.exceptions.RayError as error:
            return self._cannot_start(unit, error)
        self._has_had_a_unit = True
        return [Joined(unit)]

    def _cannot_start(self, unit: str, error: ray.exceptions.RayError) -> list[Heard]:
        """It is tried again at the next scan.

        Raises:
            JobFailed: no unit has ever started, and this one has been tried often enough.
        """
        reason = last_line(getattr(error, "cause", None) or error)
        self.plan.say(f"{unit} cannot start: {reason}")
        self._failures[unit] += 1
        if not self._has_had_a_unit and self._failures[unit] >= STARTS:
            raise JobFailed(
                f"{unit} cannot start: {reason}", hint="tunefarm doctor, on its machine"
            )
        return self._drop(unit) if unit in self._units else []

    def _death(self, asked: _Asked, reason: str) -> list[Heard]:
        lease = asked.assignment.lease
        match asked.assignment.instruction:
            case Propose():
                innocent = asked.worker is not self._searcher
                if not innocent:
                    self._start_search()
                return [Died(lease, reason, innocent)]
            case Screen(_, _, unit) | RunProcess(_, _, unit) if (
                asked.worker is not None and self._units.get(unit) is asked.worker
            ):
                # Ray starts it again where its machine is there; else the next scan drops it.
                self._coming[self._units[unit].actor.ready.remote()] = unit
                return [Left(unit)]
            case Build() if asked.worker in self._builders:
                # This one may be away for long, and would be asked first.
                self._replace_builder(asked.worker)
                return [Died(lease, reason), Builders(len(self._builders))]
        return [Died(lease, reason)]

    def build_all(
        self, requests: Mapping[str, BuildRequest], check: Callable[[], None]
    ) -> Iterator[tuple[str, BuildOutcome]]:
        """Build these at once, and wait for them: nothing else is in hand. What kills its builders
        `STARTS` times is left out; `check` is called meanwhile, and raises to end it."""
        for _ in range(STARTS):
            while not self._builders:
                check()
                time.sleep(0.5)
                self._scanned = 0.0
                self._news += self._tend()
            workers = itertools.cycle(self._builders)
            asked = {
                self._ask(worker, "build", request): (candidate, worker)
                for worker, (candidate, request) in zip(workers, requests.items(), strict=False)
            }
            left = list(asked)
            while left:
                check()
                self._news += self._tend()
                ready, left = ray.wait(left, num_returns=1, timeout=0.5)
                for reference in ready:
                    candidate, worker = asked[reference]
                    try:
                        made = ray.get(reference)
                    except ray.exceptions.RayError:
                        self._replace_builder(worker)
                        continue
                    self._depot.receive(made.files)
                    requests = {c: r for c, r in requests.items() if c != candidate}
                    yield candidate, made.answer
            if not requests:
                return

    def _replace_builder(self, worker: _Worker) -> None:
        """By another one at the next turn, should its machine be there."""
        self._drop_builder(worker)
        self._scanned = 0.0

    def _drop_builder(self, worker: _Worker) -> None:
        if worker in self._builders:
            self._builders.remove(worker)
            ray.kill(worker.actor)
        if worker in self._idle:
            self._idle.remove(worker)

    def close(self) -> None:
        workers = (*self._builders, *self._units.values())
        for actor in (self.search, *(worker.actor for worker in workers)):
            ray.kill(actor)
