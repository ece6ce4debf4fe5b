"""A space that earlier jobs have taught something, and a search that is led by it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.spaces import ModelledSpace
from tunefarm.costmodel.lessons import Lesson
from tunefarm.costmodel.transfer import Transfer, fit_correction
from tunefarm.search.space import Modelled, Point
from tunefarm.search.strategies.guided import Guided
from tunefarm.search.strategies.learnt import LearntSpace
from tunefarm.search.strategy import Evaluated


def taught(space: ModelledSpace, count: int) -> Transfer:
    """A correction from the truth about some of the points."""
    found = []
    for one in random.Random(0).sample(list(space.modelled()), count):
        about = space.describe(one.point)
        assert about is not None
        features = np.array(about.figures)
        truth = space.latency(one.point)
        name = repr(one.point)
        found.append(Lesson("n", "d", "t", name, about.family, features, one.seconds, truth))
    return Transfer({"paper": fit_correction(found, 0)})


def order(points: Sequence[Modelled], seconds: Callable[[Modelled], float]) -> list[Point]:
    return [one.point for one in sorted(points, key=seconds)]


def test_what_was_learnt_orders_points_nearer_to_the_truth() -> None:
    space = ModelledSpace()
    learnt = LearntSpace(space, taught(space, 128)).modelled()
    assert {one.point for one in learnt} == {one.point for one in space.modelled()}
    best = min(space.latency(one.point) for one in learnt)
    first = [space.latency(p) / best for p in order(learnt, lambda one: one.learnt_s or 1.0)[:4]]
    plain = [space.latency(p) / best for p in order(learnt, lambda one: one.seconds)[:4]]
    assert min(first) < 1.05 < min(plain)


def test_without_a_correction_for_its_family_a_space_stays_as_it_is() -> None:
    space = ModelledSpace()
    learnt = LearntSpace(space, Transfer()).modelled()
    assert all(one.learnt_s is None for one in learnt)
    assert sorted(map(repr, learnt)) == sorted(map(repr, space.modelled()))


def test_points_that_are_not_described_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunefarm.search.strategies.learnt.REACH", 16)
    space = ModelledSpace()
    learnt = LearntSpace(space, taught(space, 128)).modelled()
    ratios = [one.learnt_s / one.seconds for one in learnt if one.learnt_s]
    assert len(set(np.round(ratios[16:], 6))) == 1
    assert ratios[20] == pytest.approx(np.median(ratios[:16]), rel=0.1)


class Corrected(ModelledSpace):
    """Somebody says of each point how much longer it takes than the model expects."""

    def __init__(self, excess: Callable[[Point], float]) -> None:
        super().__init__()
        self.excess = excess

    def modelled(self) -> Sequence[Modelled]:
        return [
            replace(one, learnt_s=one.seconds * math.exp(self.excess(one.point)))
            for one in super().modelled()
        ]


def results_until(space: ModelledSpace, factor: float) -> int:
    """Results that a guided search needs to come within `factor` of the best."""
    search = Guided(space, 0)
    best = min(space.latency(one.point) for one in space.modelled())
    for done in range(1, 200):
        (point,) = search.suggest(1, [])
        search.update([Evaluated(point, space.latency(point))])
        if space.latency(point) <= factor * best:
            return done
    pytest.fail("never")


def test_a_right_correction_saves_nearly_all_of_the_search() -> None:
    plain = ModelledSpace()
    right = Corrected(
        lambda p: math.log(plain.latency(p) / plain._guess(*p.values))  # type: ignore[arg-type]
    )
    assert results_until(right, 1.001) == 1
    assert results_until(plain, 1.001) > 4


def test_a_wrong_correction_is_given_up_after_a_few_results() -> None:
    plain = ModelledSpace()
    wrong = Corrected(
        lambda p: -2 * math.log(plain.latency(p) / plain._guess(*p.values))  # type: ignore[arg-type]
    )
    assert results_until(wrong, 1.02) <= results_until(plain, 1.02) + 2 * Guided.JUDGED
