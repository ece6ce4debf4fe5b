"""The crew of Ray's actors: one search worker, some builders, one measure worker per unit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray

from tunefarm.measure.build import BuildOutcome, BuildRequest
from tunefarm.measure.runner import ModelRequest, PlaceRequest, RaceRequest, ScreenRequest
from tunefarm.scheduler import actors
from tunefarm.scheduler.crew import Answered, Died, Heard, Raised
from tunefarm.scheduler.messages import Assignment, Build, Propose, RunProcess, Screen, Step

_DEATHS = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError)
_METHODS: dict[type, str] = {
    ScreenRequest: "screen",
    RaceRequest: "race",
    PlaceRequest: "place",
    ModelRequest: "model",
}
"""What a measure worker is asked to do, by the request."""


class RayCrew:
    """See `crew.Crew`. The work of a `Propose` is the arguments of `SearchWorker.propose`, of a
    `Step` the models to assemble, of the others a request; None is answered by nothing.

    Args:
        start_search: makes a search worker that knows all; called again when one dies.
        builders: build workers; restarted by Ray.
        units: measure workers, by unit; restarted by Ray.
    """

    def __init__(
        self, start_search: Callable[[], Any], builders: Sequence[Any], units: Mapping[str, Any]
    ) -> None:
        self._start_search = start_search
        self._builders = list(builders)
        self._idle = list(builders)
        self._units = dict(units)
        self._running: dict[Any, Assignment] = {}
        self._builder_of: dict[Any, Any] = {}
        self._asked: dict[Any, Any] = {}
        self.search = start_search()

    def give(self, assignment: Assignment, work: Any) -> None:
        match assignment.instruction:
            case Propose():
                reference = self.search.propose.remote(*work)
                self._asked[reference] = self.search
            case Build():
                worker = self._idle.pop()
                reference = worker.build.remote(work)
                self._builder_of[reference] = worker
            case Screen(_, _, unit) | RunProcess(_, _, unit) if work is not None:
                reference = getattr(self._units[unit], _METHODS[type(work)]).remote(work)
            case Step() if work:
                workers = itertools.cycle(self._builders)
                made = [w.assemble.remote(r) for w, r in zip(workers, work, strict=False)]
                reference = actors.gather.remote(made)
            case _:
                reference = ray.put([])
        self._running[reference] = assignment

    def wait(self, limit_s: float) -> list[Heard]:
        if not self._running:
            time.sleep(limit_s)
            return []
        ray.wait(list(self._running), num_returns=1, timeout=limit_s)
        everything = list(self._running)
        ready, _ = ray.wait(everything, num_returns=len(everything), timeout=0)
        return [self._heard(reference) for reference in ready]

    def _heard(self, reference: Any) -> Heard:
        lease = self._running.pop(reference).lease
        builder = self._builder_of.pop(reference, None)
        if builder is not None:
            self._idle.append(builder)
        asked = self._asked.pop(reference, None)
        try:
            return Answered(lease, ray.get(reference))
        except _DEATHS as error:
            reason = str(error).splitlines()[0]
            if asked is None:
                return Died(lease, reason)
            innocent = asked is not self.search
            if not innocent:
                self.search = self._start_search()
            return Died(lease, reason, innocent)
        except ray.exceptions.RayTaskError as error:
            return Raised(lease, error.cause or error)

    def build_all(self, requests: Mapping[str, BuildRequest]) -> Iterator[tuple[str, BuildOutcome]]:
        """Build these at once, and wait for them: nothing else is in hand."""
        pool = ray.util.ActorPool(self._builders)
        outcomes = pool.map(lambda worker, request: worker.build.remote(request), requests.values())
        yield from zip(requests, outcomes, strict=True)

    def close(self) -> None:
        for actor in (self.search, *self._builders, *self._units.values()):
            ray.kill(actor)
