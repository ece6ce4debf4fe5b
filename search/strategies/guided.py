"""Search led by a model of the hardware and corrected by what was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from tunefarm.search.space import Point, Space
from tunefarm.search.strategies.tiles import random_point
from tunefarm.search.strategy import Evaluated

Vector = NDArray[np.float64]


class Guided:
    """The points that a hardware model knows, by lower confidence bound.

    The model's log seconds are the prior mean of a Gaussian process; it learns how much each
    neighbourhood differs from the model, and how sure that is. So the first points are the model's
    own best, and later ones are near the best that was measured, or where nobody has been. Of a
    space without a model it draws at random.

    Where earlier jobs have corrected the model (`Modelled.learnt_s`), the corrected one is believed
    until this kernel's own results lie further from it than from the plain one.

    Source: GP-LCB, after Srinivas et al., Gaussian Process Optimization in the Bandit Setting,
    ICML 2010.
    """

    SPREAD = 0.35
    """Standard deviation of log(measured / modelled)."""
    NOISE = 0.03
    REACH = 1.5
    """Length scale, in the units of `Modelled.coordinates`."""
    BOLDNESS = 0.5
    FAILED = 1.0
    """A failure counts as this much slower than the model, in logarithms."""
    WINDOW = 256
    JUDGED = 6
    """Results before a corrected model may lose its place to the plain one."""

    def __init__(self, space: Space, seed: int) -> None:
        self._sketches = space.sketches
        self._rng = random.Random(seed)
        modelled = sorted(space.modelled(), key=lambda one: one.learnt_s or one.seconds)
        self._points = [one.point for one in modelled]
        self._index = {point: i for i, point in enumerate(self._points)}
        self._plain = np.array([math.log(one.seconds) for one in modelled])
        self._learnt = np.array([math.log(one.learnt_s or one.seconds) for one in modelled])
        width = max((len(one.coordinates) for one in modelled), default=0)
        self._place = np.zeros((len(modelled), width + 1))
        for row, one in zip(self._place, modelled, strict=True):
            row[: len(one.coordinates)] = one.coordinates
            row[-1] = 100.0 * one.point.sketch  # families tell nothing of one another
        self._seen: dict[int, float | None] = {}

    @property
    def knows(self) -> bool:
        """Whether there is any point that the hardware model has an opinion of."""
        return bool(self._points)

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        if not self._points:
            return [random_point(self._sketches, self._rng) for _ in range(count)]
        # What was suggested and not built is suggested again: only `in_flight` is taken.
        flying = [self._index[point] for point in in_flight if point in self._index]
        bound, spread = self._posterior()
        for taken in flying:
            bound += self._crowding(taken, spread)
        bound[[*flying, *self._seen]] = np.inf
        chosen: list[Point] = []
        for _ in range(count):
            best = int(np.argmin(bound))
            if not np.isfinite(bound[best]):
                break
            chosen.append(self._points[best])
            bound += self._crowding(best, spread)
            bound[best] = np.inf
        return chosen

    def update(self, completed: Sequence[Evaluated]) -> None:
        for one in completed:
            if one.point in self._index:
                self._seen[self._index[one.point]] = one.latency_s

    def _posterior(self) -> tuple[Vector, Vector]:
        """Lower confidence bound of each point's log seconds, and its standard deviation."""
        spread = np.full(len(self._points), self.SPREAD)
        if not self._seen:
            return self._learnt.copy(), spread
        seen = list(self._seen.items())[-self.WINDOW :]
        where = np.array([index for index, _ in seen])
        measured = np.array([math.log(seconds) if seconds else math.inf for _, seconds in seen])
        sound = np.isfinite(measured)
        prior = self._believed(where[sound], measured[sound])
        excess = measured - prior[where]
        # The model's unit is its own: only differences from its usual error count.
        usual = float(np.median(excess[sound])) if sound.any() else 0.0
        excess = np.where(sound, excess - usual, self.FAILED)
        among = self._covariance(where, where) + self.NOISE**2 * np.eye(len(where))
        across = self._covariance(np.arange(len(self._points)), where)
        solved = np.linalg.solve(among, np.column_stack([excess, across.T]))
        mean = across @ solved[:, 0]
        variance = self.SPREAD**2 - np.einsum("ij,ji->i", across, solved[:, 1:])
        spread = np.sqrt(np.maximum(variance, 0.0))
        bound: Vector = prior + mean - self.BOLDNESS * spread
        return bound, spread

    def _believed(self, where: NDArray[np.int64], measured: Vector) -> Vector:
        """The prior that these results, log seconds, lie nearer to (their offset aside)."""
        if len(where) < self.JUDGED:
            return self._learnt
        plain, learnt = (np.std(measured - prior[where]) for prior in (self._plain, self._learnt))
        return self._plain if plain < learnt else self._learnt

    def _covariance(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Vector:
        apart = self._place[rows][:, None, :] - self._place[columns][None, :, :]
        squared = np.einsum("ijk,ijk->ij", apart, apart)
        covariance: Vector = self.SPREAD**2 * np.exp(-0.5 * squared / self.REACH**2)
        return covariance

    def _crowding(self, taken: int, spread: Vector) -> Vector:
        """What a point in flight takes from its neighbours' promise: its result is awaited."""
        near = self._covariance(np.arange(len(self._points)), np.array([taken]))[:, 0]
        crowding: Vector = 0.3 * spread * near / self.SPREAD**2
        return crowding
