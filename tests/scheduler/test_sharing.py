"""Jobs share fairly, whoever comes and goes; nothing is anybody's twice."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.scheduler.sharing import SETTLE_S, SILENT_S, TURN_S, Claim, Pool, divide

names = st.lists(st.sampled_from([f"unit{n}" for n in range(9)]), unique=True)
jobs = st.dictionaries(
    st.sampled_from([f"job{n}" for n in range(6)]),
    st.tuples(st.floats(0, 1e4), st.sampled_from([1.0, 3.0, 9.0])),
    min_size=1,
)


class Farm:
    """Jobs that ask every five seconds, and have what they are given."""

    def __init__(self, units: int, weights: dict[str, float]) -> None:
        self.pool = Pool(began=1000.0)
        self.now = 1000.0 + SETTLE_S
        self.units = frozenset(f"unit{n}" for n in range(units))
        self.weights = weights
        self.held: dict[str, frozenset[str]] = dict.fromkeys(weights, frozenset())
        self.seconds: Counter[str] = Counter()
        self.moves = 0
        self.drained: dict[str, str] = {}
        """Units that one job alone may keep."""

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            for job, weight in self.weights.items():
                away = {unit for unit, owner in self.drained.items() if owner != job}
                claim = Claim(job, "cpu", weight, self.units - away, self.held[job])
                may = self.pool.ask(claim, self.now)
                others = frozenset().union(*(h for j, h in self.held.items() if j != job))
                self.moves += len(may - others - self.held[job])
                self.held[job] = may - others  # what another has not given back is not free
                self.seconds[job] += 5 * len(self.held[job])
            held = [unit for units in self.held.values() for unit in units]
            assert len(held) == len(set(held))
            self.now += 5


@pytest.mark.slow
@given(names, jobs, st.data())
def test_everything_is_given_to_one_job(there, claims, data) -> None:
    before = data.draw(st.permutations(there))
    cuts = sorted(data.draw(st.integers(0, len(there))) for _ in claims)
    have, last = {}, 0
    for job, cut in zip(claims, cuts, strict=True):
        have[job], last = frozenset(before[last:cut]), cut
    times = {job: time for job, (time, _) in claims.items()}
    weights = {job: weight for job, (_, weight) in claims.items()}
    found = divide(dict.fromkeys(claims, frozenset(there)), times, weights, have)
    assert sorted(unit for units in found.values() for unit in units) == sorted(there)
    for job, units in found.items():
        kept = len(units & have[job])
        assert kept == min(len(units), len(have[job])), "nothing changes hands that need not"


@pytest.mark.slow
@given(jobs, st.data())
def test_a_job_is_given_what_it_sees(claims, data) -> None:
    """A unit that is drained is seen by the job that has it alone."""
    views = {job: frozenset(data.draw(names)) for job in claims}
    have = {job: frozenset(data.draw(names)) for job in claims}
    times = {job: time for job, (time, _) in claims.items()}
    weights = {job: weight for job, (_, weight) in claims.items()}
    found = divide(views, times, weights, have)
    given_out = [unit for units in found.values() for unit in units]
    assert sorted(given_out) == sorted(frozenset().union(*views.values()))
    assert all(units <= views[job] for job, units in found.items())


def test_what_is_drained_stays_where_it_is() -> None:
    farm = Farm(2, {"a": 3.0})
    farm.run(100)
    farm.weights["b"], farm.held["b"] = 3.0, frozenset()
    farm.drained = {"unit0": "a"}
    farm.run(3000)
    assert farm.held["a"] == {"unit0"}
    assert farm.held["b"] == {"unit1"}
    assert farm.moves <= 4


@pytest.mark.parametrize(
    ("units", "weights"),
    [
        (1, {"a": 1.0, "b": 1.0}),
        (2, {"a": 1.0, "b": 1.0, "c": 1.0}),
        (3, {"a": 3.0, "b": 1.0}),
        (5, {"a": 9.0, "b": 3.0, "c": 1.0}),
        (1, {"a": 9.0, "b": 1.0}),
    ],
)
def test_each_gets_its_share_of_the_time(units: int, weights: dict[str, float]) -> None:
    farm = Farm(units, weights)
    farm.run(40_000)
    for job, weight in weights.items():
        share = farm.seconds[job] / sum(farm.seconds.values())
        assert share == pytest.approx(weight / sum(weights.values()), rel=0.08)
    assert sum(farm.seconds.values()) > 0.9 * units * 40_000, "and little stands idle"


def test_whoever_shares_nothing_keeps_everything() -> None:
    farm = Farm(4, {"a": 1.0})
    farm.run(10_000)
    assert farm.moves == 4


def test_two_jobs_with_a_unit_each_are_left_alone() -> None:
    farm = Farm(2, {"a": 3.0, "b": 3.0})
    farm.run(10_000)
    assert farm.moves <= 3


def test_a_late_job_gets_no_more_than_its_share_and_the_dead_nothing() -> None:
    farm = Farm(1, {"a": 3.0})
    farm.run(5000)
    farm.weights["b"], farm.held["b"] = 3.0, frozenset()
    farm.seconds.clear()
    farm.run(1000)
    assert farm.seconds["b"] == pytest.approx(500, abs=2 * TURN_S)
    del farm.weights["b"], farm.held["b"]
    farm.now += SILENT_S
    farm.run(20)
    assert farm.held["a"], "its unit came back"


def test_who_leaves_is_not_waited_for() -> None:
    farm = Farm(1, {"a": 3.0, "b": 3.0})
    farm.run(100)
    holder = next(job for job, units in farm.held.items() if units)
    del farm.weights[holder], farm.held[holder]
    farm.pool.leave(holder)
    farm.pool.leave("nobody")
    farm.run(5)
    assert all(farm.held.values())


def test_a_broker_that_begins_anew_takes_nothing_away() -> None:
    pool, there = Pool(began=0.0), frozenset({"x", "y"})
    first = Claim("a", "cpu", 1.0, there, frozenset({"x"}))
    assert pool.ask(first, 1.0) == {"x"}, "and y may be another's"
    second = Claim("b", "cpu", 1.0, there, frozenset({"y"}))
    assert pool.ask(second, 2.0) == {"y"}
    assert pool.ask(first, SETTLE_S + 1) == {"x"}


@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_whoever_comes_and_goes_nothing_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    farm = Farm(chance.randint(1, 6), {})
    for number in range(12):
        if chance.random() < 0.6 or not farm.weights:
            job = f"job{number}"
            farm.weights[job], farm.held[job] = chance.choice([1.0, 3.0, 9.0]), frozenset()
        else:
            job = chance.choice(sorted(farm.weights))
            del farm.weights[job], farm.held[job]
        farm.units = frozenset(f"unit{n}" for n in range(chance.randint(1, 6)))
        farm.run(chance.choice([10, 50, 200]))
    farm.run(SILENT_S + 20)
    wanted = farm.units if farm.weights else frozenset()
    seen = []
    for _ in range(3):  # one may be changing hands
        farm.run(5)
        seen.append(frozenset().union(*farm.held.values()))
    assert wanted in seen
