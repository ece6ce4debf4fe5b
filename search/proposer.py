"""One kernel's search: its space, its strategy, and the ranking that chooses what is built."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

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
class _Known:
    """A candidate, what the space made of it, and the point that the strategy asked for."""

    candidate: Candidate
    proposal: Proposal
    asked: Point


class Proposer:
    """Proposes candidates that were never proposed before.

    The strategy is asked for `OVERSAMPLE` times as many points as are wanted; the ranker picks,
    and `EXPLORE` of the picks are drawn from the rest, so that the model also learns where it is
    wrong. Until the ranker is ready, the strategy's own order stands.
    """

    OVERSAMPLE = 2
    EXPLORE = 0.15
    ATTEMPTS = 4

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
        again, can be observed, and nothing is drawn as it was drawn then."""
        seed += 7919 * len(earlier)
        self._task = task
        self._target = target
        self._toolchain = toolchain
        self._space = space
        self._strategy_name = strategy
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
        wanted = count * (self.OVERSAMPLE if self._ranker.ready else 1)
        for _ in range(self.ATTEMPTS):
            taken = [*flying, *(one.asked for one in pool.values())]
            for point in self._strategy.suggest(wanted - len(pool), taken):
                self._admit(point, pool)
            if len(pool) >= wanted:
                break
        chosen = self._choose(list(pool.values()), count)
        for one in chosen:
            self._seen.add(one.candidate.id)
            self._known[one.candidate.id] = one
            self._asked.add(one.asked)
        return tuple(one.candidate for one in chosen)

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
        return _Known(candidate, proposal, point)

    def _choose(self, pool: list[_Known], count: int) -> list[_Known]:
        if len(pool) <= count or not self._ranker.ready:
            return pool[:count]
        scores = self._ranker.score(np.stack([one.proposal.features for one in pool]))
        order = [pool[i] for i in np.argsort(-scores, kind="stable")]
        explore = sum(self._rng.random() < self.EXPLORE for _ in range(count))
        best, rest = order[: count - explore], order[count - explore :]
        chosen = best + self._rng.sample(rest, min(explore, len(rest)))
        left = [one for one in rest if one not in chosen and None not in one.asked.values]
        self._spare.update((one.asked, one) for one in left)  # to be suggested again, not made
        return chosen

    def observe(self, results: Iterable[Result]) -> None:
        """Learn from results; each counts once, however often it is told."""
        evaluated = []
        for result in results:
            known = self._known.get(result.candidate.id)
            if known is None or result.candidate.id in self._told:
                continue
            self._told.add(result.candidate.id)
            proposal = known.proposal
            evaluated.append(Evaluated(proposal.point, result.latency_s, known.asked))
            self._ranker.observe(self._task, proposal.features, result.latency_s)
        self._strategy.update(evaluated)

    def _recall(self, candidate: Candidate) -> None:
        if candidate.untuned or candidate.id in self._seen:
            return
        self._seen.add(candidate.id)
        point = self._space.locate(candidate.trace)
        proposal = self._space.realise(point, 0) if point is not None else None
        if proposal is not None:
            self._known[candidate.id] = _Known(candidate, proposal, proposal.point)
            self._asked.add(proposal.point)
