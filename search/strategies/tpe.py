"""Optuna's tree-structured Parzen estimator over the decisions of a sketch."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Collection, Sequence
from typing import Any

from tunefarm.search.space import Knob, KnobKind, Point, Space, Value
from tunefarm.search.strategies.tiles import random_point
from tunefarm.search.strategy import Evaluated

_LAST_LOOP = 16


class TreeParzen:
    """One study per sketch, kept in memory and rebuilt from what was measured.

    A tile is a vector of log2 factors, clamped to the nearest split that divides (never a
    categorical: on spaces of perfect tiles that loses, 1.97 against 0.83 in regret). The study is
    told the values read back from the applied schedule; a point in flight counts as bad as the
    worst one known (the constant liar).

    Source: Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011.
    """

    FIRST_RANDOM = 8

    def __init__(self, space: Space, seed: int) -> None:
        self._sketches = space.sketches
        self._rng = random.Random(seed)
        self._measured: list[Evaluated] = []

    def update(self, completed: Sequence[Evaluated]) -> None:
        self._measured.extend(completed)

    def suggest(self, count: int, in_flight: Collection[Point]) -> list[Point]:
        good = [e for e in self._measured if e.latency_s is not None]
        points: list[Point] = []
        for sketch, share in self._shares(count, good).items():
            known = [e for e in self._measured if e.point.sketch == sketch]
            if len(known) < self.FIRST_RANDOM or not self._sketches[sketch]:
                points += [self._draw(sketch) for _ in range(share)]
            else:
                flying = [p for p in in_flight if p.sketch == sketch]
                points += self._ask(sketch, share, known, flying)
        return points

    def _shares(self, count: int, good: list[Evaluated]) -> dict[int, int]:
        """Half to the sketch of the best point, the rest to any."""
        shares = dict.fromkeys(range(len(self._sketches)), 0)
        best = min(good, key=lambda e: e.latency_s or math.inf).point.sketch if good else None
        for _ in range(count):
            stay = best is not None and self._rng.random() < 0.5
            chosen = best if stay and best is not None else self._rng.randrange(len(shares))
            shares[chosen] += 1
        return shares

    def _draw(self, sketch: int) -> Point:
        point = random_point((self._sketches[sketch],), self._rng)
        return Point(sketch, point.values)

    def _ask(
        self, sketch: int, count: int, known: list[Evaluated], flying: list[Point]
    ) -> list[Point]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        knobs = self._sketches[sketch]
        distributions = _distributions(knobs)
        worst = max((math.log(e.latency_s) for e in known if e.latency_s), default=0.0)
        told = [(e.point, math.log(e.latency_s) if e.latency_s else worst) for e in known]
        told += [(point, worst) for point in flying]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=self._rng.randrange(2**31), n_startup_trials=self.FIRST_RANDOM
            )
        study = optuna.create_study(sampler=sampler)
        study.add_trials(
            [
                optuna.trial.create_trial(
                    params=_encode(knobs, point), distributions=distributions, value=value
                )
                for point, value in told
                if None not in point.values
            ]
        )
        points = []
        for _ in range(count):
            trial = study.ask(distributions)
            points.append(Point(sketch, _decode(knobs, trial.params)))
            study.tell(trial, worst)
        return points


def _distributions(knobs: tuple[Knob, ...]) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    spaces: dict[str, Any] = {}
    for index, knob in enumerate(knobs):
        if knob.kind is KnobKind.TILE:
            top = max(1, math.ceil(math.log2(max(2, knob.extent))))
            for position in range(1, knob.size):
                spaces[f"k{index}.{position}"] = IntDistribution(0, top)
        elif knob.kind is KnobKind.CHOICE:
            spaces[f"k{index}"] = CategoricalDistribution(list(range(knob.size)))
        else:
            spaces[f"k{index}"] = IntDistribution(-2, _LAST_LOOP)
    return spaces


def _encode(knobs: tuple[Knob, ...], point: Point) -> dict[str, int]:
    params: dict[str, int] = {}
    for index, (knob, value) in enumerate(zip(knobs, point.values, strict=True)):
        if knob.kind is KnobKind.TILE and isinstance(value, tuple):
            for position in range(1, knob.size):
                params[f"k{index}.{position}"] = round(math.log2(value[position]))
        elif isinstance(value, int):
            params[f"k{index}"] = min(value, _LAST_LOOP) if not knob.size else value
    return params


def _decode(knobs: tuple[Knob, ...], params: dict[str, Any]) -> tuple[Value, ...]:
    values: list[Value] = []
    for index, knob in enumerate(knobs):
        if knob.kind is KnobKind.TILE:
            values.append(_nearest_tile(knob, params, index))
        else:
            values.append(int(params[f"k{index}"]))
    return tuple(values)


def _nearest_tile(knob: Knob, params: dict[str, Any], index: int) -> tuple[int, ...]:
    """Innermost first, each factor the divisor of what is left nearest to the one wished for."""
    left, inner = knob.extent, []
    for position in range(knob.size - 1, 0, -1):
        wished = params[f"k{index}.{position}"]
        limit = knob.innermost_limit if position == knob.size - 1 else 0
        divisors = [d for d in range(1, left + 1) if left % d == 0 and (not limit or d <= limit)]
        factor = min(divisors, key=lambda d: abs(math.log2(d) - wished))
        inner.append(factor)
        left //= factor
    return (left, *reversed(inner))
