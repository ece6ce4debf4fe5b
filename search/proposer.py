"""One kernel's search: its space, its strategy, and the ranking that chooses what is built."""

from __future__ import annotations

import random
from binascii import crc32
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tunefarm.costmodel.lessons import SKETCH
from tunefarm.costmodel.ranker import Ranker
from tunefarm.devices.target import Target
from tunefarm.search.candidate import Candidate
from tunefarm.search.space import Point, Proposal, Space
from tunefarm.search.strategy import Evaluated, make_strategy


@dataclass(frozen=True)
class Result:
    """What became of a candidate: its latency in seconds, or None."""

    candidate: Candidate
    latency_s: float | None


@dataclass(frozen=True, eq=False)
class Taught:
    """What a cost model can learn from a candidate, besides its time; see `Lesson`."""

    candidate: str
    family: str
    features: NDArray[np.float64]
    expected_s: float | None


@dataclass(frozen=True, eq=False)
class _Known:
    """A candidate, what the space made of it, the point that the strategy asked for, and the
    seconds that the hardware model expected, where it had an opinion."""

    candidate: Candidate
    proposal: Proposal
    asked: Point
    expected_s: float | None

    @property
    def modelled(self) -> bool:
        return self.expected_s is not None


class Proposer:
    """Proposes candidates that were never proposed before.

    Points that a hardware model knows come from the strategy in their order. Of the others it is
    asked for `OVERSAMPLE` times as many as are wanted; the ranker picks, and `EXPLORE` of the picks
    are drawn from the rest, so that it also learns where it is wrong. After `FRUITLESS` suggestions
    in a row without anything new a space counts as used up.
    """

    OVERSAMPLE = 2
    EXPLORE = 0.15
    FRUITLESS = 64

    def __init__(
        self,
        task: str,
        target: Target,
        toolchain: str,
        space: Space,
        strategy: str,
        ranker: Ranker,
        seed: int,
        earlier: Collection[Candidate] = (),
    ) -> None:
        """`earlier` are the candidates of an earlier life of this search: they are not proposed
        again, can be observed, and nothing is drawn as it was drawn then. Every kernel draws its
        own numbers, the same ones whenever it is searched."""
        seed = crc32(f"{seed} {task} {len(earlier)}".encode())
        self._task = task
        self._target = target
        self._toolchain = toolchain
        self._space = space
        self._strategy_name = strategy
        self._expected = {one.point: one.seconds for one in space.modelled()}
        self._strategy = make_strategy(strategy, space, seed)
        self._ranker = ranker
        self._rng = random.Random(seed)
        self._known: dict[str, _Known] = {}
        self._spare: dict[Point, _Known] = {}
        self._seen: set[str] = set()
        self._asked: set[Point] = set()
        self._told: set[str] = set()
        for candidate in earlier:
            self._recall(candidate)

    def propose(self, count: int, in_flight: Collection[str]) -> tuple[Candidate, ...]:
        """At most `count` new candidates; none when the space seems used up.

        Args:
            in_flight: ids of this task's candidates that are being built or measured.
        """
        flying = [self._known[i].proposal.point for i in in_flight if i in self._known]
        pool: dict[str, _Known] = {}
        self._fill(pool, count, flying)
        free = [one for one in pool.values() if not one.modelled]
        if free and self._ranker.ready and len(pool) >= count:
            self._fill(pool, len(pool) + (self.OVERSAMPLE - 1) * len(free), flying)
        chosen = self._choose(list(pool.values()), count)
        for one in chosen:
            self._seen.add(one.candidate.id)
            self._known[one.candidate.id] = one
            self._asked.add(one.asked)
        return tuple(one.candidate for one in chosen)

    def _fill(self, pool: dict[str, _Known], size: int, flying: list[Point]) -> None:
        """Until there are `size`, or the space seems used up: by the number of suggestions, not of
        calls, for who asks for one at a time gets one from each."""
        fruitless = 0
        while len(pool) < size and fruitless < self.FRUITLESS:
            taken = [*flying, *(one.asked for one in pool.values())]
            before, points = len(pool), self._strategy.suggest(size - len(pool), taken)
            for point in points:
                self._admit(point, pool)
            fruitless = 0 if len(pool) > before else fruitless + max(1, len(points))

    def _admit(self, point: Point, pool: dict[str, _Known]) -> None:
        if None not in point.values and point in self._asked:
            return  # where nothing is left to draw, asking twice is waste
        one = self._spare.pop(point, None) or self._realise(point)
        if one is None:
            self._asked.add(point)
            self._strategy.update([Evaluated(point, None)])
        elif one.candidate.id not in self._seen:
            pool.setdefault(one.candidate.id, one)

    def _realise(self, point: Point) -> _Known | None:
        proposal = self._space.realise(point, self._rng.randrange(2**31))
        if proposal is None:
            return None
        candidate = Candidate(
            self._task, self._target.text, self._toolchain, proposal.trace, self._strategy_name
        )
        return _Known(candidate, proposal, point, self._expected.get(point))

    def _choose(self, pool: list[_Known], count: int) -> list[_Known]:
        """The first `count` that are modelled or, where those are fewer, the best of the rest."""
        if len(pool) <= count:
            return pool
        asked_first = pool[:count]
        modelled = [one for one in asked_first if one.modelled]
        rest = [one for one in pool if not one.modelled]
        count -= len(modelled)
        if not count or not rest:
            return modelled
        scores = self._ranker.score(np.stack([one.proposal.features for one in rest]))
        order = [rest[i] for i in np.argsort(-scores, kind="stable")]
        explore = sum(self._rng.random() < self.EXPLORE for _ in range(count))
        best, left = order[: count - explore], order[count - explore :]
        best += self._rng.sample(left, min(explore, len(left)))
        spare = [one for one in pool if one not in best and one not in modelled]
        # To be suggested again, not made again.
        self._spare.update((one.asked, one) for one in spare if None not in one.asked.values)
        return modelled + best

    def taught(self) -> list[Taught]:
        """Every candidate that a result was told of, in figures."""
        found = []
        for known in (self._known[i] for i in self._known if i in self._told):
            about = self._space.describe(known.proposal.point) if known.modelled else None
            found.append(
                Taught(
                    known.candidate.id,
                    about.family if about else SKETCH,
                    known.proposal.features,
                    known.expected_s if about else None,
                )
            )
        return found

    def observe(self, results: Iterable[Result]) -> None:
        """Learn from results; each counts once, however often it is told.

        Raises:
            ValueError: one is of another kernel, whose traces often fit this one as well.
        """
        results = list(results)
        for result in results:
            if result.candidate.task != self._task:
                raise ValueError(f"a result of {result.candidate.task} for {self._task}")
        evaluated = []
        for result in results:
            self._recall(result.candidate)  # another job may have thought of it
            known = self._known.get(result.candidate.id)
            if known is None or result.candidate.id in self._told:
                continue
            self._told.add(result.candidate.id)
            proposal = known.proposal
            evaluated.append(Evaluated(proposal.point, result.latency_s, known.asked))
            if not known.modelled:
                self._ranker.observe(self._task, proposal.features, result.latency_s)
        self._strategy.update(evaluated)

    def _recall(self, candidate: Candidate) -> None:
        if candidate.untuned or candidate.id in self._seen:
            return
        self._seen.add(candidate.id)
        point = self._space.locate(candidate.trace)
        proposal = self._space.realise(point, 0) if point is not None else None
        if proposal is not None:
            expected = self._expected.get(proposal.point)
            self._known[candidate.id] = _Known(candidate, proposal, proposal.point, expected)
            self._asked.add(proposal.point)


LIKELY = 32
"""Points that are tried, where the first ones do not fit."""


def likeliest(space: Space, count: int, seed: int) -> tuple[str, ...]:
    """Traces of the points that are expected to be fastest, best first: at most `count`, each once.
    A point that fails is passed over."""
    points = sorted(space.modelled(), key=lambda one: one.learnt_s or one.seconds)
    found: dict[str, None] = {}
    for one in points[:LIKELY]:
        if len(found) == count:
            break
        try:
            proposal = space.realise(one.point, seed)
        except Exception:  # TVM raises many types
            continue
        if proposal is not None:
            found[proposal.trace] = None
    return tuple(found)
