"""The conformance suite of strategies: every one of them, on spaces without a compiler."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import strategies as our
from tests.spaces import SKETCHES, ModelledSpace, PaperSpace
from tunefarm.errors import UsageError
from tunefarm.search.space import Knob, KnobKind, Point
from tunefarm.search.strategies.portfolio import Portfolio
from tunefarm.search.strategies.tiles import (
    move_factor,
    mutate,
    prime_factors,
    random_point,
    random_tile,
)
from tunefarm.search.strategy import Evaluated, Strategy, make_strategy, strategy_names


def latency(point: Point) -> float:
    """A landscape with one best tile and one best choice."""
    tile = point.values[0]
    assert isinstance(tile, tuple)
    distance = abs(math.log2(tile[-1]) - 4) + 0.5 * abs(math.log2(tile[0]) - 1)
    return 1e-3 * (1 + distance + 0.3 * int(point.values[-1] or 0) + point.sketch)


def is_a_point(point: Point, sketches: tuple[tuple[Knob, ...], ...]) -> bool:
    if len(point.values) != len(sketches[point.sketch]):
        return False
    for knob, value in zip(sketches[point.sketch], point.values, strict=True):
        if knob.kind is KnobKind.TILE:
            ok = isinstance(value, tuple) and math.prod(value) == knob.extent
            ok = ok and len(value) == knob.size
        elif knob.kind is KnobKind.CHOICE:
            ok = isinstance(value, int) and 0 <= value < knob.size
        else:
            ok = value is None or isinstance(value, int)
        if not ok:
            return False
    return True


def tune(
    strategy: Strategy,
    rounds: int,
    count: int = 8,
    truth: Callable[[Point], float] = latency,
) -> float:
    best = math.inf
    for _ in range(rounds):
        points = strategy.suggest(count, [])
        strategy.update([Evaluated(p, truth(p)) for p in points])
        best = min([best, *(truth(p) for p in points)])
    return best


@pytest.fixture(params=strategy_names())
def make(request: pytest.FixtureRequest) -> Callable[[int], Strategy]:
    return lambda seed: make_strategy(request.param, PaperSpace(), seed)


@pytest.fixture(params=strategy_names())
def make_modelled(request: pytest.FixtureRequest) -> Callable[[int], Strategy]:
    return lambda seed: make_strategy(request.param, ModelledSpace(), seed)


class TestEveryStrategy:
    def test_suggests_points_of_the_space(self, make: Callable[[int], Strategy]) -> None:
        strategy = make(0)
        for _ in range(3):
            points = strategy.suggest(8, [])
            assert len(points) == 8
            assert all(is_a_point(p, SKETCHES) for p in points)
            strategy.update([Evaluated(p, latency(p)) for p in points])

    def test_is_deterministic_in_its_seed(self, make: Callable[[int], Strategy]) -> None:
        def run(seed: int) -> list[Point]:
            strategy, made = make(seed), []
            for _ in range(3):
                points = strategy.suggest(6, made[-2:])
                strategy.update([Evaluated(p, latency(p)) for p in points])
                made += points
            return made

        assert run(1) == run(1)
        assert run(1) != run(2)

    def test_survives_failures_only(self, make: Callable[[int], Strategy]) -> None:
        strategy = make(0)
        for _ in range(4):
            strategy.update([Evaluated(p, None) for p in strategy.suggest(8, [])])
        assert strategy.suggest(4, [])

    def test_suggests_points_of_a_space_that_is_modelled(
        self, make_modelled: Callable[[int], Strategy]
    ) -> None:
        strategy, space = make_modelled(0), ModelledSpace()
        for _ in range(3):
            points = strategy.suggest(8, [])
            assert len(points) == 8
            assert all(is_a_point(p, space.sketches) for p in points)
            strategy.update([Evaluated(p, space.latency(p)) for p in points])

    def test_takes_in_flight_points(self, make: Callable[[int], Strategy]) -> None:
        strategy = make(0)
        flying = strategy.suggest(16, [])
        strategy.update([Evaluated(p, latency(p)) for p in flying[:8]])
        assert len(strategy.suggest(4, flying[8:])) == 4


@pytest.mark.slow
def test_guided_strategies_beat_random_search() -> None:
    found = {
        name: sum(tune(make_strategy(name, PaperSpace(), seed), 12) for seed in range(5))
        for name in ("evolutionary", "tpe", "random")
    }
    assert found["evolutionary"] < found["random"]
    assert found["tpe"] < found["random"]


def test_a_hardware_model_and_what_it_lacks_are_both_worth_having() -> None:
    space = ModelledSpace(24)
    best = min(space.latency(one.point) for one in space.modelled())
    modelled_best = min(space.modelled(), key=lambda one: one.seconds).point
    assert space.latency(modelled_best) > 1.3 * best, "the model alone would do"
    for name in ("guided", "portfolio"):
        found = tune(make_strategy(name, space, 0), 8, truth=space.latency)
        assert found < 1.02 * best, name
    drawn = [tune(make_strategy("random", space, s), 8, truth=space.latency) for s in range(5)]
    assert sum(drawn) / 5 > 1.05 * best


def test_a_portfolio_pays_by_results() -> None:
    space = ModelledSpace()
    portfolio = Portfolio(space, 0)
    alone = {"guided": 1.0, "evolutionary": 0.0, "tpe": 0.0}
    assert portfolio.shares() == alone
    for turn in range(6):
        points = portfolio.suggest(8, [])
        if turn == 0:
            assert portfolio.shares() == alone
            portfolio.update([Evaluated(p, None) for p in points[:7]])
            assert portfolio.shares() == alone, "nothing has been found to breed from"
            points = points[7:]
        # The hardware model is wrong about everything: what it knows is ten times slower.
        portfolio.update([Evaluated(p, 1e-2 if p.sketch == 0 else 1e-3) for p in points])
    shares = portfolio.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["guided"] < min(shares["evolutionary"], shares["tpe"])
    assert min(shares.values()) >= Portfolio.FLOOR


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(UsageError, match="no strategy 'x'"):
        make_strategy("x", PaperSpace(), 0)
    assert {"evolutionary", "random", "tpe"} <= set(strategy_names())


@given(st.integers(1, 5000))
def test_prime_factors_multiply_back(number: int) -> None:
    assert math.prod(prime_factors(number)) == number


@given(our.sketches(), st.integers(0, 2**20))
def test_random_points_and_their_mutants_fit(
    sketches: tuple[tuple[Knob, ...], ...], seed: int
) -> None:
    rng = random.Random(seed)
    point = random_point(sketches, rng)
    assert is_a_point(point, sketches)
    child = mutate(sketches[point.sketch], point, rng, changes=2)
    assert is_a_point(child, sketches)


@given(st.sampled_from([16, 55, 64, 100, 224]), st.integers(2, 4), st.integers(0, 2**20))
def test_innermost_factors_stay_within_their_limit(extent: int, size: int, seed: int) -> None:
    rng = random.Random(seed)
    knob = Knob(KnobKind.TILE, size, extent, 16)
    tile = random_tile(knob, rng)
    assert tile[-1] <= 16
    for _ in range(5):
        tile = move_factor(tile, 16, rng)
        assert math.prod(tile) == extent
        assert tile[-1] <= 16


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(our.sketches(), st.integers(0, 1000))
def test_tpe_takes_any_sketch(sketches: tuple[tuple[Knob, ...], ...], seed: int) -> None:
    strategy = make_strategy("tpe", PaperSpace(sketches), seed)
    for _ in range(3):
        points = strategy.suggest(10, [])
        assert all(is_a_point(p, sketches) for p in points)
        applied = [Point(p.sketch, tuple(0 if v is None else v for v in p.values)) for p in points]
        strategy.update([Evaluated(p, 1.0 + i) for i, p in enumerate(applied)])
