"""A gradient-boosted ranking of candidates, learnt from the job's own measurements, and from those
of earlier jobs where it starts from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Row = tuple[Vector, float | None]
"""A candidate's features, and its latency in seconds or None for a failure."""

_ROUNDS = 60


@dataclass
class Ranker:
    """XGBoost, pairwise ranking within each task: only the order of a task's candidates counts.

    A failed candidate ranks below every measured one of its task. Deterministic given its seed
    and what it was told. With a `prior`, a booster trained on earlier jobs, it ranks from the
    start, and its own rows are learnt on top of that.

    Source: the objective is LambdaMART's (Burges, MSR-TR-2010-82); ranking instead of regression
    for schedules goes back to AutoTVM (Chen et al., NeurIPS 2018).
    """

    seed: int = 0
    minimum_rows: int = 24
    prior: Any = None
    _rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    _booster: Any = None
    _stale: bool = False

    def observe(self, task: str, features: Vector, latency_s: float | None) -> None:
        """One result: latency in seconds, or None for a failure."""
        self._rows[task].append((features, latency_s))
        self._stale = True

    @property
    def ready(self) -> bool:
        """True once it has seen enough to be worth asking."""
        return self.prior is not None or self._enough

    @property
    def _enough(self) -> bool:
        return sum(len(rows) for rows in self._rows.values()) >= self.minimum_rows

    def score(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Higher is faster, comparable within one task; zeros until `ready`.

        Args:
            features: (n, k), the candidates of one task.
        """
        if self.prior is not None and self.prior.num_features() != features.shape[-1]:
            self.prior = None  # of another version's features
        if not self.ready or not len(features):
            return np.zeros(len(features))
        if self._stale and self._enough:
            self._booster = train_ranking(list(self._rows.values()), self.seed, self.prior)
            self._stale = False
        import xgboost

        booster = self._booster or self.prior
        scores: NDArray[np.float64] = booster.predict(xgboost.DMatrix(features))
        return scores


def train_ranking(groups: Sequence[Sequence[Row]], seed: int, prior: Any = None) -> Any:
    """A booster that ranks within each group, on top of `prior` where there is one.

    One thread, so that training does not disturb what is being timed.

    Args:
        groups: for each task, (features, latency in seconds or None for a failure).
    """
    import xgboost

    labels = []
    for rows in groups:
        seconds = np.array([latency or np.inf for _, latency in rows])
        # Ranks, not times: a task's spread must not weigh more than its order.
        order = np.argsort(np.argsort(-seconds, kind="stable"), kind="stable")
        order[np.isinf(seconds)] = 0  # no failure is better than another one
        labels.append(order * (31.0 / max(1, len(rows) - 1)))
    vectors = [vector for rows in groups for vector, _ in rows]
    data = xgboost.DMatrix(np.stack(vectors), label=np.concatenate(labels).astype(int))
    data.set_group([len(rows) for rows in groups])
    parameters = {
        "objective": "rank:pairwise",
        "eta": 0.2,
        "max_depth": 6,
        "min_child_weight": 0.5,
        "subsample": 0.9,
        "colsample_bytree": 0.5,
        "nthread": 1,
        "seed": seed,
        "verbosity": 0,
    }
    return xgboost.train(parameters, data, num_boost_round=_ROUNDS, xgb_model=prior)
