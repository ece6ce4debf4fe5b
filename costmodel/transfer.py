"""A cost model trained on earlier jobs, for kernels that nobody has measured yet.

Two parts. For each family of schedules that a hardware model knows, a *correction*: how far the
hardware model is off at this point, compared with the kernel's other points. For TVM's sketches a
*ranking*, which a job's own ranking starts from. Each part is kept only if it does better on
kernels of networks that were left out of its training; what hurts is dropped.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.costmodel.lessons import SKETCH, VERSION, Lesson, by_group, distinct, excesses
from tunefarm.costmodel.ranker import train_ranking
from tunefarm.errors import StoreError
from tunefarm.home import write_atomically

Vector = NDArray[np.float64]

LEAST_GROUPS = 4
"""A family with fewer kernels teaches nothing about others."""
MOST_LESSONS = 20_000
"""The newest count."""
FAILED = 1.0
"""A failure counts as this much slower than the kernel's usual point, in logarithms."""
_ROUNDS = 150
_CORRECTION: dict[str, Any] = {
    "objective": "reg:squarederror",
    "eta": 0.08,
    "max_depth": 5,
    "min_child_weight": 2.0,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "lambda": 2.0,
    "nthread": 1,
    "verbosity": 0,
}


@dataclass(frozen=True)
class Transfer:
    """What earlier jobs taught, ready to be asked.

    Attributes:
        corrections: by family, a trained booster.
        ranking: of sketches, a trained booster; None where there is none worth having.
        about: what it was trained on; for people.
    """

    corrections: Mapping[str, Any] = field(default_factory=dict)
    ranking: Any = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def correction(self, family: str, features: Vector) -> Vector | None:
        """By how much log(measured / expected) differs from the kernel's usual, None where nothing
        is known of the family.

        Args:
            features: (n, k), points of one kernel.
        """
        booster = self.corrections.get(family)
        if booster is None or booster.num_features() != features.shape[1]:
            return None
        return _predict(booster, features)

    def save(self, path: Path) -> None:
        document = {
            "version": VERSION,
            "about": dict(self.about),
            "corrections": {name: _text(one) for name, one in self.corrections.items()},
            "ranking": _text(self.ranking) if self.ranking is not None else None,
        }
        write_atomically(path, (json.dumps(document) + "\n").encode())


def read_about(path: Path) -> Mapping[str, Any]:
    """What the model at `path` was trained on, read without loading it; empty for no model.

    Raises:
        StoreError: the file is no such model.
    """
    return dict(_read(path)["about"])


def _read(path: Path) -> dict[str, Any]:
    """A model's document; an empty one's where there is none, or one of another version."""
    empty: dict[str, Any] = {"about": {}, "corrections": {}, "ranking": None}
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        if document["version"] != VERSION:
            return empty
        return {name: document[name] for name in empty}
    except FileNotFoundError:
        return empty
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the cost model {path} cannot be read: {type(error).__name__}",
        hint="Train it anew: tunefarm costmodel train",
    )


def load_transfer(path: Path) -> Transfer:
    """The model saved at `path`; an empty one where there is none, or one of another version.

    Raises:
        StoreError: the file is no such model.
    """
    document = _read(path)
    ranking = document["ranking"]
    try:
        return Transfer(
            {name: _booster(text) for name, text in document["corrections"].items()},
            _booster(ranking) if ranking is not None else None,
            document["about"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def _text(booster: Any) -> str:
    return base64.b64encode(bytes(booster.save_raw("ubj"))).decode()


def _booster(text: str) -> Any:
    import xgboost

    booster = xgboost.Booster()
    try:
        booster.load_model(bytearray(base64.b64decode(text)))
    except xgboost.core.XGBoostError as error:
        raise ValueError(str(error).splitlines()[0]) from error
    return booster


def _predict(booster: Any, features: Vector) -> Vector:
    import xgboost

    return np.asarray(booster.predict(xgboost.DMatrix(features)), dtype=np.float64)


# ------------------------------------------------------------------------------------- training


def train(lessons: Sequence[Lesson], seed: int = 0) -> tuple[Transfer, tuple[HeldOut, ...]]:
    """A model of what helps on networks that it has not seen, and the evidence.

    Deterministic in its arguments.
    """
    lessons = distinct(lessons)[-MOST_LESSONS:]
    evidence = evaluate(lessons, seed)
    families = sorted({one.family for one in lessons})
    helps = {name for name in families if helpful([e for e in evidence if e.family == name])}
    of = {name: [one for one in lessons if one.family == name] for name in families}
    about = {
        "lessons": len(lessons),
        "networks": len({one.network for one in lessons}),
        "kernels": len(by_group(lessons)),
        "devices": sorted({one.device for one in lessons}),
        "trained": time.time(),
        "kept": sorted(helps),
        "dropped": sorted(set(families) - helps),
    }
    corrections = {n: fit_correction(of[n], seed) for n in helps if n != SKETCH}
    ranking = fit_ranking(of[SKETCH], seed) if SKETCH in helps else None
    return Transfer(corrections, ranking, about), evidence


def fit_correction(lessons: Sequence[Lesson], seed: int) -> Any:
    """A booster of `excesses`; a kernel's best points weigh most, for they are to be told apart."""
    import xgboost

    features, targets, weights = [], [], []
    for group in _measured_groups(lessons):
        excess = excesses(group)
        sound = np.isfinite(excess)
        best = min(one.latency_s for one in group if one.latency_s)
        features += [one.features for one in group]
        targets.append(np.where(sound, excess, FAILED))
        weights += [best / one.latency_s if one.latency_s else 0.2 for one in group]
    data = xgboost.DMatrix(np.stack(features), label=np.concatenate(targets), weight=weights)
    return xgboost.train({**_CORRECTION, "seed": seed}, data, num_boost_round=_ROUNDS)


def fit_ranking(lessons: Sequence[Lesson], seed: int) -> Any:
    groups = [
        [(one.features, one.latency_s) for one in group] for group in _measured_groups(lessons)
    ]
    return train_ranking(groups, seed)


def _measured_groups(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Of kernels that failures alone are known of, nothing can be learnt."""
    groups = by_group(lessons).values()
    return [group for group in groups if any(one.latency_s for one in group)]


# ----------------------------------------------------------------------------------- evaluation


@dataclass(frozen=True)
class HeldOut:
    """How a model did on kernels of a network that it was not trained on.

    Attributes:
        network: that was left out (or a part of the only one).
        kernels: that say something: of which at least eight points were measured.
        without, learnt: log of (best of the first four in the model's order / best of all), mean
            over kernels; for the hardware model alone (for sketches: for no order at all), and for
            the learnt one.
        trials_without, trials_learnt: points in that order until one is within 2 % of the best,
            mean over kernels.
    """

    network: str
    family: str
    kernels: int
    without: float
    learnt: float
    trials_without: float
    trials_learnt: float


FIRST = 4
LEAST_POINTS = 8
CLOSE = 1.02
MOST_FOLDS = 6
"""With more networks several are left out together: training must not take longer and longer."""


def helpful(evidence: Sequence[HeldOut]) -> bool:
    """Whether the learnt order finds good points sooner, over all that were left out."""
    kernels = sum(one.kernels for one in evidence)
    if not kernels:
        return False
    without = sum(one.trials_without * one.kernels for one in evidence)
    return sum(one.trials_learnt * one.kernels for one in evidence) < without


def evaluate(lessons: Sequence[Lesson], seed: int = 0) -> tuple[HeldOut, ...]:
    """Leave one network out, train on the others, and order its points; for every network (of more
    than `MOST_FOLDS`, several at a time).

    With lessons of one network only, a quarter of its kernels is left out at a time.
    """
    found = []
    for family in sorted({one.family for one in lessons}):
        of = [one for one in lessons if one.family == family]
        for name, kept, left_out in _folds(of):
            if len(_measured_groups(kept)) >= LEAST_GROUPS:
                held_out = _held_out(name, family, kept, left_out, seed)
                found += [held_out] if held_out is not None else []
    return tuple(found)


def _folds(lessons: Sequence[Lesson]) -> list[tuple[str, list[Lesson], list[Lesson]]]:
    """(name, what is trained on, what is left out). A kernel that other networks have as well is
    left out of the training too."""
    networks = sorted({one.network for one in lessons})
    if len(networks) > 1:
        together = [networks[i::MOST_FOLDS] for i in range(min(MOST_FOLDS, len(networks)))]
        parts = {" ".join(n): {o.task for o in lessons if o.network in n} for n in together}
    else:
        tasks = sorted({one.task for one in lessons})
        parts = {f"{networks[0]} {i + 1}/4": set(tasks[i::4]) for i in range(4)}
    return [
        (
            name,
            [one for one in lessons if one.task not in tasks],
            [one for one in lessons if one.task in tasks],
        )
        for name, tasks in parts.items()
    ]


def _held_out(
    name: str, family: str, kept: list[Lesson], left_out: list[Lesson], seed: int
) -> HeldOut | None:
    groups = [
        group
        for group in by_group(left_out).values()
        if sum(one.latency_s is not None for one in group) >= LEAST_POINTS
    ]
    if not groups:
        return None
    booster = (fit_ranking if family == SKETCH else fit_correction)(kept, seed)
    rows = []
    rng = np.random.default_rng(seed)
    for group in groups:
        predicted = _predict(booster, np.stack([one.features for one in group]))
        if family == SKETCH:
            # Without a model, sketches come in no order: what a random one does on average.
            orders = [rng.permutation(len(group)) for _ in range(20)]
            learnt = np.argsort(-predicted, kind="stable")
        else:
            expected = np.log([one.expected_s or 1.0 for one in group])
            orders = [np.argsort(expected, kind="stable")]
            learnt = np.argsort(expected + predicted, kind="stable")
        without = np.mean([_judged(group, order) for order in orders], axis=0)
        rows.append([*without, *_judged(group, learnt)])
    regret, trials, learnt_regret, learnt_trials = np.mean(rows, axis=0)
    return HeldOut(
        name,
        family,
        len(groups),
        float(regret),
        float(learnt_regret),
        float(trials),
        float(learnt_trials),
    )


def _judged(group: Sequence[Lesson], order: NDArray[np.int64]) -> tuple[float, float]:
    """Log regret of the first four, and how many it takes to come close to the best."""
    worst = max(one.latency_s for one in group if one.latency_s)
    seconds = np.array([group[i].latency_s or worst for i in order])
    best = seconds.min()
    close = int(np.argmax(seconds <= CLOSE * best)) + 1
    return float(np.log(seconds[:FIRST].min() / best)), float(close)
