"""A gradient-boosted ranking of candidates, learnt from the job's own measurements."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class Ranker:
    """XGBoost, pairwise ranking within each task: only the order of a task's candidates counts.

    A failed candidate ranks below every measured one of its task. Deterministic given its seed
    and what it was told; one thread, so that training does not disturb what is being timed.

    Source: the objective is LambdaMART's (Burges, MSR-TR-2010-82); ranking instead of regression
    for schedules goes back to AutoTVM (Chen et al., NeurIPS 2018).
    """

    seed: int = 0
    minimum_rows: int = 24
    rounds: int = 60
    _rows: dict[str, list[tuple[Vector, float]]] = field(default_factory=lambda: defaultdict(list))
    _booster: Any = None
    _stale: bool = False

    def observe(self, task: str, features: Vector, latency_s: float | None) -> None:
        """One result: latency in seconds, or None for a failure."""
        value = -math.log(latency_s) if latency_s else -math.inf
        self._rows[task].append((features, value))
        self._stale = True

    @property
    def ready(self) -> bool:
        """True once it has seen enough to be worth asking."""
        rows = sum(len(rows) for rows in self._rows.values())
        return rows >= self.minimum_rows

    def score(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Higher is faster, comparable within one task; zeros until `ready`.

        Args:
            features: (n, k), the candidates of one task.
        """
        if not self.ready or not len(features):
            return np.zeros(len(features))
        if self._stale:
            self._train()
        import xgboost

        scores: NDArray[np.float64] = self._booster.predict(xgboost.DMatrix(features))
        return scores

    def _train(self) -> None:
        import xgboost

        vectors, labels, groups = [], [], []
        for rows in self._rows.values():
            values = np.array([value for _, value in rows])
            # Ranks, not times: a task's spread must not weigh more than its order.
            order = np.argsort(np.argsort(values, kind="stable"), kind="stable")
            labels.append(order * (31.0 / max(1, len(rows) - 1)))
            vectors += [vector for vector, _ in rows]
            groups.append(len(rows))
        data = xgboost.DMatrix(np.stack(vectors), label=np.concatenate(labels).astype(int))
        data.set_group(groups)
        parameters = {
            "objective": "rank:pairwise",
            "eta": 0.2,
            "max_depth": 6,
            "min_child_weight": 0.5,
            "subsample": 0.9,
            "colsample_bytree": 0.5,
            "nthread": 1,
            "seed": self.seed,
            "verbosity": 0,
        }
        self._booster = xgboost.train(parameters, data, num_boost_round=self.rounds)
        self._stale = False
