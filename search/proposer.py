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
        self._strategy = make_strategy(strategy, space.sketches, seed)
        self._ranker = ranker
        self._rng = random.Random(seed)
        self._known: dict[str, Proposal] = {}
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
        flying = [self._known[i].point for i in in_flight if i in self._known]
        pool: dict[str, tuple[Candidate, Proposal]] = {}
        wanted = count * (self.OVERSAMPLE if self._ranker.ready else 1)
        for _ in range(self.ATTEMPTS):
            for point in self._strategy.suggest(wanted - len(pool), flying):
                self._admit(point, pool)
            if len(pool) >= wanted:
                break
        chosen = self._choose(list(pool.values()), count)
        for candidate, proposal in chosen:
            self._seen.add(candidate.id)
            self._known[candidate.id] = proposal
        return tuple(candidate for candidate, _ in chosen)

    def _admit(self, point: Point, pool: dict[str, tuple[Candidate, Proposal]]) -> None:
        if None not in point.values:  # where nothing is left to draw, asking twice is waste
            if point in self._asked:
                return
            self._asked.add(point)
        proposal = self._space.realise(point, self._rng.randrange(2**31))
        if proposal is None:
            return
        candidate = Candidate(
            self._task, self._target.text, self._toolchain, proposal.trace, self._strategy_name
        )
        if candidate.id not in self._seen and candidate.id not in pool:
            pool[candidate.id] = (candidate, proposal)

    def _choose(
        self, pool: list[tuple[Candidate, Proposal]], count: int
    ) -> list[tuple[Candidate, Proposal]]:
        if len(pool) <= count or not self._ranker.ready:
            return pool[:count]
        scores = self._ranker.score(np.stack([proposal.features for _, proposal in pool]))
        order = [pool[i] for i in np.argsort(-scores, kind="stable")]
        explore = sum(self._rng.random() < self.EXPLORE for _ in range(count))
        best, rest = order[: count - explore], order[count - explore :]
        return best + self._rng.sample(rest, min(explore, len(rest)))

    def observe(self, results: Iterable[Result]) -> None:
        """Learn from results; each counts once, however often it is told."""
        evaluated = []
        for result in results:
            proposal = self._known.get(result.candidate.id)
            if proposal is None or result.candidate.id in self._told:
                continue
            self._told.add(result.candidate.id)
            evaluated.append(Evaluated(proposal.point, result.latency_s))
            self._ranker.observe(self._task, proposal.features, result.latency_s)
        self._strategy.update(evaluated)

    def _recall(self, candidate: Candidate) -> None:
        if candidate.untuned or candidate.id in self._seen:
            return
        self._seen.add(candidate.id)
        point = self._space.locate(candidate.trace)
        proposal = self._space.realise(point, 0) if point is not None else None
        if proposal is not None:
            self._known[candidate.id] = proposal
            self._asked.add(proposal.point)
