"""The statistics on simulated devices whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import strategies as our
from tunefarm.measure.judge import faster_in_all, finalists, judge, may_be_spared, race_order
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Verdict, beyond, compare, compare_apart, verdict

PROTOCOL = Protocol(resamples=1000)


def simulate(
    rng: np.random.Generator,
    ratio: float,
    processes: int = PROTOCOL.final_processes,
    rounds: int = 10,
) -> tuple[list[list[float]], list[list[float]]]:
    """Two kernels on one noisy device: luck per process, drift they share, heavy tails."""
    base, tuned = [], []
    for _ in range(processes):
        drift = 1 + 0.02 * np.sin(np.linspace(0, 3, rounds) + rng.uniform(0, 6))
        sides = []
        for mean in (ratio, 1.0):
            luck = rng.lognormal(0, 0.004)
            tail = 1 + 0.3 * (rng.random(rounds) < 0.05) * rng.random(rounds)
            sides.append(list(mean * luck * drift * tail * rng.lognormal(0, 0.01, rounds)))
        base.append(sides[0])
        tuned.append(sides[1])
    return base, tuned


def interval(base, tuned, seed=0):
    return compare(base, tuned, confidence=0.95, margin=0.005, resamples=1000, seed=seed)


@pytest.mark.slow
def test_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(3)
    runs = 300
    covered = 0
    for _ in range(runs):
        found = interval(*simulate(rng, 1.2))
        covered += found.low <= 1.2 <= found.high
    # Six processes are few for a bootstrap: the nominal 95 % is reached to within a few points.
    assert covered / runs >= 0.91


@pytest.mark.slow
def test_equal_kernels_are_seldom_called_faster() -> None:
    rng = np.random.default_rng(4)
    wins = sum(interval(*simulate(rng, 1.0)).verdict is Verdict.FASTER for _ in range(300))
    assert wins / 300 <= 0.05


@pytest.mark.slow
def test_a_real_gain_is_seen() -> None:
    rng = np.random.default_rng(5)
    wins = sum(interval(*simulate(rng, 1.1)).verdict is Verdict.FASTER for _ in range(100))
    assert wins >= 98


def test_sides_may_have_different_numbers_of_rounds() -> None:
    found = interval([[2.0, 2.1], [2.0, 2.0]], [[1.0] * 20, [1.01] * 20])
    assert found.speedup == pytest.approx(2.0, rel=0.05)
    assert found.low <= found.speedup <= found.high


@pytest.mark.slow
@given(our.samples, st.integers(0, 5))
def test_the_same_samples_are_the_same_speed(samples: list[float], seed: int) -> None:
    found = interval([samples, samples], [samples, samples], seed)
    assert found.speedup == 1.0
    assert found.verdict is not Verdict.FASTER


@given(st.floats(0.01, 100), st.floats(0, 10))
def test_a_verdict_follows_from_its_interval(low: float, width: float) -> None:
    high = low + width
    got = verdict(low, high, 0.005)
    assert (got is Verdict.FASTER) == (low > 1.005)
    assert (got is Verdict.SLOWER) == (high < 1 / 1.005)


@given(st.lists(st.floats(1e-6, 1e3), max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
@example([1.0] * 100, 0.9)
def test_a_quantile_is_told_where_ten_lie_beyond_it(samples: list[float], quantile: float) -> None:
    found = beyond(samples, quantile)
    assert (found is None) == (round(len(samples) * (1 - quantile), 9) < 10)
    if found is not None:
        assert sum(sample <= found for sample in samples) >= quantile * (len(samples) - 1)
        assert sum(sample >= found for sample in samples) >= 10


def test_missing_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="both sides"):
        interval([[1.0]], [])
    assert judge({0: [1.0]}, {0: []}, 1, PROTOCOL) is None
    assert judge({}, {}, 1, PROTOCOL) is None
    assert judge({0: [1.0]}, {1: [1.0]}, 1, PROTOCOL) is None, "samples of different processes"
    assert judge({0: [1.0]}, {0: [1.0]}, 2, PROTOCOL) is None


def apart(base, tuned, confidence=0.95):
    return compare_apart(base, tuned, confidence=confidence, margin=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("spreads", [(0.1, 0.1), (0.1, 0.01), (0.01, 0.1)])
def test_intervals_of_few_processes_cover_the_truth(spreads: tuple[float, float]) -> None:
    """However differently the two sides scatter; Welch's is not exact, but near."""
    rng = np.random.default_rng(6)
    runs, covered = 2000, 0
    for _ in range(runs):
        base = 200 * rng.lognormal(0, spreads[0], 3)
        found = apart([[one] for one in base], [[one] for one in rng.lognormal(0, spreads[1], 6)])
        covered += found.low <= 200 <= found.high
    assert 0.93 <= covered / runs <= 0.985


def test_few_processes_that_agree_give_a_narrow_interval_and_others_a_wide_one() -> None:
    tuned = [[1.0, 1.1]] * 6
    same = apart([[4.2]] * 3, tuned)
    assert (same.low, same.speedup, same.high) == pytest.approx((4.0, 4.0, 4.0))
    wide = apart([[3.2], [4.2], [5.5]], tuned)
    assert wide.low < 3.2 / 1.05 < 5.5 / 1.05 < wide.high
    assert wide.verdict is Verdict.FASTER
    assert apart([[1.0], [4.2], [20.0]], tuned).verdict is Verdict.AMBIGUOUS
    with pytest.raises(ValueError, match="two processes"):
        apart([[4.2]], tuned)


def test_who_is_far_behind_need_not_be_called_by_all_processes() -> None:
    tuned = {p: [1.0, 1.1] for p in range(6)}
    base = {p: [100.0] for p in (0, 2, 5)}
    assert may_be_spared(base, tuned, 1.0, PROTOCOL)
    assert not may_be_spared(base, tuned, 100.0, PROTOCOL), "it is quick"
    assert not may_be_spared({**base, 5: [3.0]}, tuned, 1.0, PROTOCOL), "it was near once"
    assert not may_be_spared({0: [100.0], 1: [100.0]}, tuned, 1.0, PROTOCOL)
    assert not may_be_spared(base, {}, 1.0, PROTOCOL)


@pytest.mark.parametrize("called", [(0, 1, 2), (0, 2, 3, 5), (0, 1, 2, 3, 4)])
def test_who_was_spared_is_judged_by_those_that_called_it(called: tuple[int, ...]) -> None:
    """Whatever the winner did in the others: that one of them was slow makes it no less sure."""
    base = {p: [4.0 + p / 100] for p in called}
    tuned = {p: [1.4 if p == 4 else 1.0] for p in range(6)}
    found = judge(base, tuned, 6, PROTOCOL)
    assert found is not None
    assert found.verdict is Verdict.FASTER
    assert found.low <= found.speedup <= found.high
    assert judge(base, {p: [1.0] for p in range(5)}, 6, PROTOCOL) is None, "the winner lacks one"
    assert judge({p: [4.0] for p in called[:2]}, tuned, 6, PROTOCOL) is None, "too few"
    quick = {p: [0.003] for p in called}
    assert judge(quick, {p: [0.001] for p in range(6)}, 6, PROTOCOL) is None, "nobody spared it"


@given(
    called=st.lists(
        st.lists(st.floats(0.5, 4.0), min_size=1, max_size=4).map(
            lambda run: [PROTOCOL.screen_s * sample for sample in run]
        ),
        min_size=PROTOCOL.slow_processes,
        max_size=5,
    ),
    first=st.floats(1e-6, 1.0),
    later=st.floats(1e-6, 1.0),
    under_way=st.lists(st.floats(1e-6, 2 * PROTOCOL.screen_s), max_size=2),
)
@example(called=[[0.045]] * 3, first=0.001, later=0.001, under_way=[0.022])
def test_who_was_spared_is_judged(
    called: list[list[float]], first: float, later: float, under_way: list[float]
) -> None:
    """A call may take about as long as makes it slow, what it is compared with may have become
    slower since, and a process under way on another unit may have called it while the machine was
    quiet: a kernel without a verdict would stay untuned."""
    base = dict(enumerate(called))
    tuned = {process: [first] for process in base}
    if may_be_spared(base, tuned, PROTOCOL.screen_s, PROTOCOL):
        tuned |= {process: [later] for process in range(len(base), 6)}
        base |= {p: [s] for p, s in zip(range(len(base), 6), under_way, strict=False)}
        assert judge(base, tuned, 6, PROTOCOL) is not None


def test_who_lacks_a_process_cannot_win() -> None:
    raced = {"a": {0: [1.0], 1: [1.0]}, "b": {1: [0.5]}, "c": {0: [2.0], 1: [2.0]}}
    assert next(iter(race_order(raced, 2))) == "a"
    assert race_order({"b": {0: [0.5]}}, 2) == {}


def test_who_is_faster_in_all_processes() -> None:
    holder = {0: [1.0, 1.1], 1: [2.0, 2.1]}
    assert faster_in_all({0: [0.9], 1: [1.9]}, holder, 2)
    assert not faster_in_all({0: [0.5], 1: [2.2]}, holder, 2), "slower in one"
    assert not faster_in_all({0: [0.5]}, holder, 2), "it lacks one"
    assert not faster_in_all({}, {}, 2)


def test_finalists_are_the_fastest() -> None:
    assert finalists({"a": 3.0, "b": 1.0, "c": 2.0}, 2) == ["b", "c"]
