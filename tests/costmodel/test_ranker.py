from __future__ import annotations

import numpy as np
import pytest

from tunefarm.costmodel.features import summarise
from tunefarm.costmodel.ranker import Ranker, train_ranking


def landscape(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Latency falls with the first feature and rises with the second; the rest is noise."""
    features = rng.uniform(0, 1, (count, 12))
    return features, 1e-3 * np.exp(-2 * features[:, 0] + features[:, 1])


def trained(seed: int = 0, tasks: int = 2, rows: int = 60) -> Ranker:
    rng = np.random.default_rng(7)
    ranker = Ranker(seed=seed)
    for task in range(tasks):
        features, latency = landscape(rng, rows)
        for vector, value in zip(features, latency * 10**task, strict=True):
            ranker.observe(f"t{task}", vector, float(value))
    return ranker


@pytest.mark.slow
def test_it_orders_what_it_has_not_seen() -> None:
    features, latency = landscape(np.random.default_rng(8), 200)
    scores = trained().score(features)
    ranks = np.argsort(np.argsort(-latency)), np.argsort(np.argsort(scores))
    assert np.corrcoef(*ranks)[0, 1] > 0.8


def test_it_is_deterministic() -> None:
    features, _ = landscape(np.random.default_rng(9), 20)
    assert np.array_equal(trained().score(features), trained().score(features))


def test_until_it_has_seen_enough_it_says_nothing() -> None:
    ranker = Ranker()
    assert not ranker.ready
    assert not ranker.score(np.ones((3, 5))).any()
    assert len(ranker.score(np.ones((0, 5)))) == 0


def test_it_ranks_from_the_start_where_earlier_jobs_have_taught_it() -> None:
    features, latency = landscape(np.random.default_rng(10), 200)
    rows = [(vector, float(value)) for vector, value in zip(features, latency, strict=True)]
    taught = Ranker(prior=train_ranking([rows], 0))
    assert taught.ready
    unseen, seconds = landscape(np.random.default_rng(11), 100)
    scores = taught.score(unseen)
    assert np.corrcoef(np.argsort(np.argsort(-seconds)), np.argsort(np.argsort(scores)))[0, 1] > 0.7
    for vector, value in rows[:30]:
        taught.observe("t", vector, value)
    assert not np.array_equal(taught.score(unseen), scores), "its own results are learnt on top"


def test_a_ranking_of_other_features_is_not_used() -> None:
    features, latency = landscape(np.random.default_rng(10), 50)
    rows = [(vector, float(value)) for vector, value in zip(features, latency, strict=True)]
    ranker = Ranker(prior=train_ranking([rows], 0))
    assert not ranker.score(np.ones((3, 5))).any()


def test_failures_rank_last() -> None:
    rng = np.random.default_rng(1)
    ranker = Ranker()
    for _ in range(40):
        bad = rng.random() < 0.5
        vector = np.array([float(bad), *rng.random(4)])
        ranker.observe("t", vector, None if bad else 1e-3 * (1 + rng.random()))
    good, bad = np.array([[0.0, 0.5, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.5, 0.5]])
    scores = ranker.score(np.stack([good, bad]))
    assert scores[0] > scores[1]


def test_of_two_failures_none_is_the_better_one() -> None:
    """Whichever came first."""
    rng = np.random.default_rng(2)
    later = np.linspace(0.0, 1.0, 80)
    rows = [(np.array([when, *rng.random(2)]), None) for when in later]
    rows += [(np.array([rng.random(), *rng.random(2)]), 1e-3) for _ in range(20)]
    ranker = Ranker()
    for vector, seconds in rows:
        ranker.observe("t", vector, seconds)
    scores = ranker.score(np.stack([vector for vector, _ in rows[:80]]))
    assert abs(np.corrcoef(later, scores)[0, 1]) < 0.5


def test_a_summary_has_one_length_for_any_number_of_stores() -> None:
    rng = np.random.default_rng(0)
    lengths = {summarise(rng.random((n, 164))).shape for n in (1, 2, 9)}
    assert lengths == {(3 * 164 + 1,)}
    assert np.isfinite(summarise(np.array([[np.inf, np.nan, -np.inf]]))).all()
    for wrong in (np.zeros((0, 5)), np.zeros(5)):
        with pytest.raises(ValueError, match="per-store"):
            summarise(wrong)
