"""The crew of Ray's actors: one search worker, builders, and a measure worker for each unit.

Who they are is the fleet's to say (`fleet`); what they are asked, and what they answer, is here.
What a worker on another machine needs is sent along, and what it makes is kept here (`shipping`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from tunefarm.errors import DeviceLost
from tunefarm.measure.build import BuildOutcome, BuildRequest
from tunefarm.measure.runner import METHODS
from tunefarm.scheduler import actors, farm
from tunefarm.scheduler.crew import Answered, Died, Heard, Raised
from tunefarm.scheduler.exchange import Exchange
from tunefarm.scheduler.fleet import STARTS, Fleet, Plan, Worker
from tunefarm.scheduler.messages import (
    Assignment,
    Build,
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
LIMITS: dict[type, float] = {
    Propose: 300.0,
    Build: 300.0,
    Screen: 600.0,
    RunProcess: 3600.0,
    Step: 7200.0,
}
"""Seconds after which an answer is not waited for any more, far beyond the limits that workers keep
of their own."""


@dataclass
class _Asked:
    assignment: Assignment
    worker: Worker | None
    helpers: Sequence[Worker]
    """Who works on it besides."""
    due: float
    """`time.monotonic()` at which it is given up."""
    parts: Sequence[Any] = ()
    """References to all parts of an answer in several: waited for one after another, so that
    nothing runs on when one has failed."""


@dataclass
class RayCrew:
    """See `crew.Crew`. The work of a `Propose` is the arguments of `SearchWorker.propose`, of a
    `Step` the models to assemble, of the others a request; None is answered by nothing. Where there
    is an `exchange`, the units are its own."""

    plan: Plan
    devices: farm.Devices = field(default_factory=farm.Devices)
    limits: Mapping[type, float] = field(default_factory=LIMITS.copy)
    pulses: Pulses = field(default_factory=Pulses)
    exchange: Exchange | None = None
    _waiting: list[tuple[Assignment, Any]] = field(default_factory=list)
    """Work for builders that was given out when there was none."""
    _asked: dict[Any, _Asked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.plan, self.devices, self.pulses)
        self._depot = Depot(self.plan.root, ray.put)
        self._start_search()
        self._news = self._tend()

    def _start_search(self) -> None:
        self._searcher = Worker(self.plan.start_search(), self.fleet.here, False)

    @property
    def search(self) -> Any:
        """The search worker's actor."""
        return self._searcher.actor

    def _tend(self, building: Collection[Worker] = ()) -> list[Heard]:
        """Whoever does not answer is ended; now and then, look who is there. `building`: who has
        something in hand besides those who were asked."""
        heard: list[Heard] = []
        for worker in {*self.pulses.frozen(), *self._overdue()}:
            self.plan.say("a worker does not answer any more; ending it")
            if worker is self._searcher:
                ray.kill(self.search)
            else:
                heard += self.fleet.end(worker)
        working = [one for asked in self._asked.values() for one in (asked.worker, *asked.helpers)]
        return heard + self.fleet.tend([*working, *building], [self._searcher])

    def _overdue(self) -> list[Worker]:
        """Whoever has had something in hand for too long, though it lives."""
        now = time.monotonic()
        late = [asked for asked in self._asked.values() if now > asked.due]
        return [one for asked in late for one in (asked.worker, *asked.helpers) if one is not None]

    def give(self, assignment: Assignment, work: Any) -> None:
        worker: Worker | None = None
        helpers: Sequence[Worker] = ()
        parts: Sequence[Any] = ()
        match assignment.instruction:
            case Propose():
                worker = self._searcher
                reference = self.search.propose.remote(*work)
            case Build():
                if not self.fleet.idle:
                    self._waiting.append((assignment, work))
                    return
                worker = self.fleet.idle.pop()
                reference = self._ask(worker, "build", work)
            case Screen() | RunProcess() if work is not None and self.exchange is not None:
                self.exchange.give(assignment, work)
                return
            case Screen(_, _, unit) | RunProcess(_, _, unit) if work is not None:
                if unit not in self.fleet.units:
                    return  # gone, as was said: its lease is not held any more
                worker = self.fleet.units[unit]
                if self.fleet.is_due(worker):
                    self._news += self.fleet.drop_unit(unit, gives_way=True)
                    return
                reference = self._ask(worker, METHODS[type(work)], work)
            case Step() if work and not self.fleet.builders:
                self._waiting.append((assignment, work))
                return
            case Step() if work:
                helpers = self._at_home() or tuple(self.fleet.builders)
                workers = itertools.cycle(helpers)
                parts = [
                    self._ask(one, "assemble", r) for one, r in zip(workers, work, strict=False)
                ]
                reference = parts[0]
            case _:
                reference = ray.put([])
        due = time.monotonic() + self.limits[type(assignment.instruction)]
        self._asked[reference] = _Asked(assignment, worker, helpers, due, parts)

    def _at_home(self) -> list[Worker]:
        """Builders to which a whole model need not be sent."""
        return [worker for worker in self.fleet.builders if not worker.is_away]

    def _ask(self, worker: Worker, method: str, request: Any) -> Any:
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
        if self.exchange is not None:
            heard += self.exchange.hear(self._is_making())
        waiting = [*self._asked, *self.fleet.coming]
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

    def _is_making(self) -> bool:
        """Whether anything is being proposed or built."""
        making = (one.assignment.instruction for one in self._asked.values())
        return bool(self._waiting) or any(isinstance(one, Propose | Build) for one in making)

    def _heard(self, reference: Any) -> list[Heard]:
        if reference in self.fleet.coming:
            return self.fleet.arrived(reference)
        if reference not in self._asked:
            return []  # of a unit that was dropped just now
        asked = self._asked.pop(reference)
        if asked.parts and reference != asked.parts[-1]:
            self._asked[asked.parts[asked.parts.index(reference) + 1]] = asked
            return []
        instruction, lease = asked.assignment.instruction, asked.assignment.lease
        try:
            answer = ray.get(asked.parts or reference)
        except _DEATHS as error:
            return self._death(asked, str(error).splitlines()[0])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DeviceLost):
                return self._without_device(asked, error.cause)
            self._is_idle(asked)
            return [Raised(lease, error.cause or error)]
        except ray.exceptions.RayError as error:  # whatever Ray calls it: nobody has answered
            return self._death(asked, str(error).splitlines()[0])
        self._is_idle(asked)
        if isinstance(instruction, Propose):  # the others wait behind it
            for other in self._asked.values():
                if isinstance(other.assignment.instruction, Propose):
                    other.due = time.monotonic() + self.limits[Propose]
        return [Answered(lease, self._unpacked(instruction, answer))]

    def _is_idle(self, asked: _Asked) -> None:
        worker = asked.worker
        if isinstance(asked.assignment.instruction, Build) and worker in self.fleet.builders:
            assert worker is not None
            if self.fleet.is_due(worker):
                self.fleet.replace_builder(worker)
            else:
                self.fleet.idle.append(worker)

    def _without_device(self, asked: _Asked, error: DeviceLost) -> list[Heard]:
        """The unit leaves, with what it had in hand; the next look tries it again."""
        assert isinstance(asked.assignment.instruction, Screen | RunProcess), "others ask no device"
        unit = asked.assignment.instruction.unit
        if self.fleet.units.get(unit) is not asked.worker:
            return []  # gone, as was said
        self.plan.say(f"{unit} leaves: {error.message}")
        return self.fleet.drop_unit(unit)

    def _death(self, asked: _Asked, reason: str) -> list[Heard]:
        lease = asked.assignment.lease
        match asked.assignment.instruction:
            case Propose():
                innocent = asked.worker is not self._searcher
                if not innocent:
                    self._start_search()
                return [Died(lease, reason, innocent)]
            case Screen(_, _, unit) | RunProcess(_, _, unit) if (
                asked.worker is not None and self.fleet.units.get(unit) is asked.worker
            ):
                self.fleet.restarts(unit)
                return [Left(unit)]
            case Build() if asked.worker is not None:
                # It may be away for long, and would be asked first.
                return [Died(lease, reason), *self.fleet.end(asked.worker)]
        return [Died(lease, reason)]

    def build_all(
        self, requests: Mapping[str, BuildRequest], check: Callable[[], None]
    ) -> Iterator[tuple[str, BuildOutcome]]:
        """Build these at once, and wait for them: nothing else is in hand. What kills its builders
        `STARTS` times is left out; `check` is called meanwhile, and raises to end it."""
        for _ in range(STARTS):
            while not self.fleet.builders:
                check()
                time.sleep(0.5)
                self._news += self._tend()
            workers = itertools.cycle(self.fleet.builders)
            asked = {
                self._ask(worker, "build", request): (candidate, worker)
                for worker, (candidate, request) in zip(workers, requests.items(), strict=False)
            }
            left = list(asked)
            while left:
                check()
                self._news += self._tend([asked[reference][1] for reference in left])
                ready, left = ray.wait(left, num_returns=1, timeout=0.5)
                for reference in ready:
                    candidate, worker = asked[reference]
                    try:
                        made = ray.get(reference)
                    except ray.exceptions.RayError:
                        self.fleet.replace_builder(worker)
                        continue
                    self._depot.receive(made.files)
                    requests = {c: r for c, r in requests.items() if c != candidate}
                    yield candidate, made.answer
            if not requests:
                return

    def close(self) -> None:
        ray.kill(self.search)
        self.fleet.close()
