"""Several strategies at once, each with the share that it earns (the default)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence

from tunefarm.search.space import Point, Space
from tunefarm.search.strategies.evolutionary import Evolutionary
from tunefarm.search.strategies.guided import Guided
from tunefarm.search.strategies.tpe import TreeParzen
from tunefarm.search.strategy import Evaluated, Strategy


class Portfolio:
    """Guided search where a hardware model knows points; evolution and TPE everywhere.

    Where a hardware model knows points, the first ones are all its own: until something is known
    to be bred from, the others draw at random, and of 372 such draws none was better than the best.
    Every member learns from every result, whoever proposed it. A point earns the ratio of the best
    latency known at the time to its own, at most one; a member's share follows the mean of what
    its latest points earned, with a floor, so that nobody is written off for good.
    """

    FLOOR = 0.04
    MEMORY = 16
    SHARPNESS = 3.0
    ALONE = 8
    """Results before anyone but the guided search is asked."""

    def __init__(self, space: Space, seed: int) -> None:
        self._rng = random.Random(seed)
        guided = Guided(space, seed)
        self._members: dict[str, Strategy] = {"guided": guided} if guided.knows else {}
        self._members["evolutionary"] = Evolutionary(space, seed + 1)
        self._members["tpe"] = TreeParzen(space, seed + 2)
        self._earned: dict[str, deque[float]] = {
            name: deque(self._credit(name), maxlen=self.MEMORY) for name in self._members
        }
        self._owner: dict[Point, str] = {}
        self._best: float | None = None
        self._heard = 0

    def shares(self) -> dict[str, float]:
        """By member; they add up to one. The first words are the hardware model's."""
        if "guided" in self._members and (self._best is None or self._heard < self.ALONE):
            return {name: float(name == "guided") for name in self._members}
        earned = {
            name: (sum(log) / len(log)) ** self.SHARPNESS for name, log in self._earned.items()
        }
        total = sum(earned.values()) or 1.0
        free = 1.0 - self.FLOOR * len(earned)
        return {name: self.FLOOR + free * value / total for name, value in earned.items()}

    def _credit(self, name: str) -> list[float]:
        """Earned before the first result."""
        return [1.0 if name == "guided" else 0.4] * 2

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
        self._heard += len(completed)
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
        return min(1.0, (self._best or latency_s) / latency_s)
