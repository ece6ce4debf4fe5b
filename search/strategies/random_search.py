"""Random search: the strategy that the others must beat."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from tunefarm.search.space import Point, Space
from tunefarm.search.strategies.tiles import random_point
from tunefarm.search.strategy import Evaluated


class RandomSearch:
    def __init__(self, space: Space, seed: int) -> None:
        self._sketches = space.sketches
        self._rng = random.Random(seed)

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        return [random_point(self._sketches, self._rng) for _ in range(count)]

    def update(self, completed: Sequence[Evaluated]) -> None:
        pass
