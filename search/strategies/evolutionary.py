"""Evolutionary search on traces."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from tunefarm.search.space import Point, Space
from tunefarm.search.strategies.tiles import cross, mutate, random_point
from tunefarm.search.strategy import Evaluated


class Evolutionary:
    """Moves prime factors of the best measured points' tiles, crosses them, and keeps drawing.

    After the trace mutators of Ansor (Zheng et al., OSDI 2020, section 5.1), but on measured
    parents only: with a few candidates per round, a generation scored by the model alone drifts.
    """

    PARENTS = 8
    FRESH_SHARE = 0.2
    CROSS_SHARE = 0.2
    FIRST_RANDOM = 4

    def __init__(self, space: Space, seed: int) -> None:
        self._sketches = space.sketches
        self._rng = random.Random(seed)
        self._measured: list[tuple[float, Point]] = []

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        if len(self._measured) < self.FIRST_RANDOM:
            return [random_point(self._sketches, self._rng) for _ in range(count)]
        parents = [point for _, point in self._measured[: self.PARENTS]]
        return [self._child(parents) for _ in range(count)]

    def _child(self, parents: list[Point]) -> Point:
        rng = self._rng
        if rng.random() < self.FRESH_SHARE:
            return random_point(self._sketches, rng)
        # The better half of the parents is drawn three times as often.
        weights = [3 if i < (len(parents) + 1) // 2 else 1 for i in range(len(parents))]
        parent = rng.choices(parents, weights)[0]
        mates = [p for p in parents if p.sketch == parent.sketch and p != parent]
        if mates and rng.random() < self.CROSS_SHARE:
            parent = cross(parent, rng.choice(mates), rng)
        return mutate(self._sketches[parent.sketch], parent, rng, changes=rng.choice((1, 1, 2, 3)))

    def update(self, completed: Sequence[Evaluated]) -> None:
        fresh = [(e.latency_s, e.point) for e in completed if e.latency_s is not None]
        self._measured = sorted([*self._measured, *fresh], key=lambda pair: pair[0])
