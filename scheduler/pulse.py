"""Which of Ray's actors live. Ray notices a process that dies, not one that is frozen, that keeps
Python's lock for good, or that nothing reaches any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray

LIMIT_S = 30.0
"""Whoever has not answered for so long is dead, whatever Ray thinks of it."""
START_LIMIT_S = 120.0
"""Whoever has never answered: its place may still be another's, but not for that long."""


class Pulsed(Protocol):
    actor: Any


@dataclass
class Pulses:
    """Asks workers whether they live.

    Args:
        limit_s: seconds for an answer; start_limit_s: for the first one.
        clock: seconds; it never goes back.
    """

    limit_s: float = LIMIT_S
    start_limit_s: float = START_LIMIT_S
    clock: Callable[[], float] = time.monotonic
    _asked: dict[Any, tuple[Pulsed, float]] = field(default_factory=dict)
    """By what it will answer."""
    _have_lived: set[int] = field(default_factory=set)

    def ask(self, workers: Iterable[Pulsed]) -> None:
        """All that have no question open; whoever is not among them is forgotten."""
        known = list(workers)
        ids = {id(worker) for worker in known}
        self._asked = {r: (w, at) for r, (w, at) in self._asked.items() if id(w) in ids}
        self._have_lived &= ids
        open_ = {id(worker) for worker, _ in self._asked.values()}
        for worker in known:
            if id(worker) not in open_:
                self._asked[worker.actor.pulse.remote()] = (worker, self.clock())

    def frozen(self) -> list[Any]:
        """Those that have not answered for too long."""
        if not self._asked:
            return []
        answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for reference in answered:
            worker, _ = self._asked.pop(reference)
            self._have_lived.add(id(worker))
        now = self.clock()
        return [worker for worker, at in self._asked.values() if now - at > self._limit_s(worker)]

    def _limit_s(self, worker: Pulsed) -> float:
        return self.limit_s if id(worker) in self._have_lived else self.start_limit_s
