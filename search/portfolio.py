"""Several strategies at once, each with the share that it earns (the default)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence

from tunefarm.search.evolutionary import Evolutionary
from tunefarm.search.guided import Guided
from tunefarm.search.space import Point, Space
from tunefarm.search.strategy import Evaluated, Strategy
from tunefarm.search.tpe import TreeParzen


class Portfolio:
    """Guided search where a hardware model knows points; evolution and TPE everywhere.

    Every member learns from every result, whoever proposed it. A member earns by how close its
    latest points came to the best known at the time, and twice where it moved it; shares follow
    earnings, with a floor, so that nobody is written off early.
    """

    FLOOR = 0.08
    MEMORY = 16
    SHARPNESS = 3.0

    def __init__(self, space: Space, seed: int) -> None:
        self._rng = random.Random(seed)
        guided = Guided(space, seed)
        self._members: dict[str, Strategy] = {"guided": guided} if guided.knows else {}
        self._members["evolutionary"] = Evolutionary(space, seed + 1)
        self._members["tpe"] = TreeParzen(space, seed + 2)
        self._earned: dict[str, deque[float]] = {
            name: deque(maxlen=self.MEMORY) for name in self._members
        }
        self._owner: dict[Point, str] = {}
        self._best: float | None = None

    def shares(self) -> dict[str, float]:
        """By member; they add up to one."""
        earned = {
            name: (sum(log) / len(log)) ** self.SHARPNESS if log else self._hope(name)
            for name, log in self._earned.items()
        }
        total = sum(earned.values()) or 1.0
        free = 1.0 - self.FLOOR * len(earned)
        return {name: self.FLOOR + free * value / total for name, value in earned.items()}

    def _hope(self, name: str) -> float:
        """Before its first result; a model of the hardware deserves the first word."""
        return 1.0 if name == "guided" or "guided" not in self._members else 0.02

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        shares = self.shares()
        names = list(shares)
        drawn = self._rng.choices(names, [shares[name] for name in names], k=count)
        points: list[Point] = []
        for name in names:
            if wanted := drawn.count(name):
                made = self._members[name].suggest(wanted, in_flight)
                self._owner.update((point, name) for point in made)
                points += made
        if len(points) < count:  # a member has run out: the others go on
            points += self._members["evolutionary"].suggest(count - len(points), in_flight)
        return points

    def update(self, completed: Sequence[Evaluated]) -> None:
        for one in completed:
            name = self._owner.pop(one.asked or one.point, None)
            if name is not None:
                self._earned[name].append(self._worth(one.latency_s))
            if one.latency_s is not None:
                self._best = min(self._best or one.latency_s, one.latency_s)
        for member in self._members.values():
            member.update(completed)

    def _worth(self, latency_s: float | None) -> float:
        if latency_s is None:
            return 0.0
        if self._best is None or latency_s < 0.99 * self._best:
            return 2.0
        return self._best / max(latency_s, self._best)
