"""A proposer never proposes anything twice, in this life or after a resume."""

from __future__ import annotations

import dataclasses

import pytest

from tests.spaces import ModelledSpace, PaperSpace
from tunefarm.costmodel.ranker import Ranker
from tunefarm.devices.target import parse_target
from tunefarm.search.candidate import Candidate
from tunefarm.search.proposer import Proposer, Result, likeliest
from tunefarm.search.space import Knob, KnobKind, Point, Proposal, Space
from tunefarm.search.strategy import strategy_names

TARGET = parse_target("llvm:mcpu=paper")


SKETCHES = ((Knob(KnobKind.TILE, 3, 64), Knob(KnobKind.CHOICE, 4)), ())


def proposer(
    strategy: str,
    earlier: tuple[Candidate, ...] = (),
    space: Space | None = None,
    task: str = "00aa",
) -> Proposer:
    space = space or PaperSpace(SKETCHES)
    return Proposer(task, TARGET, "tc", space, strategy, Ranker(), 0, earlier)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "evolutionary", "tpe", "portfolio"])
def test_nothing_is_proposed_twice(strategy: str) -> None:
    one = proposer(strategy)
    seen: set[str] = set()
    for round_ in range(6):
        made = one.propose(6, [])
        ids = {c.id for c in made}
        assert not ids & seen
        assert len(ids) == len(made) <= 6
        seen |= ids
        one.observe([Result(c, 1e-3 * (1 + i + round_)) for i, c in enumerate(made)])


@pytest.mark.parametrize("strategy", ["random", "evolutionary", "tpe", "portfolio"])
def test_a_resumed_search_goes_on_with_new_candidates(strategy: str) -> None:
    first = proposer(strategy)
    made = first.propose(12, [])
    first.observe([Result(c, 1e-3) for c in made[:3]])  # nine of them are lost in flight
    second = proposer(strategy, earlier=made)  # of the same seed
    second.observe([Result(c, 1e-3) for c in made[:3]])
    more = second.propose(6, [c.id for c in made[3:]])
    assert more, "a kernel that is not used up must go on"
    assert not {c.id for c in more} & {c.id for c in made}


def test_every_kernel_draws_its_own_numbers() -> None:
    """Else one unlucky draw is every kernel's."""

    def drawn(task: str) -> list[str]:
        return [one.trace for one in proposer("random", task=task).propose(6, [])]

    assert drawn("00aa") == drawn("00aa") != drawn("00bb")


def test_a_result_told_twice_counts_once() -> None:
    one = proposer("random")
    made = one.propose(3, [])
    for _ in range(2):
        one.observe([Result(c, 1e-3) for c in made])
    assert sum(len(rows) for rows in one._ranker._rows.values()) == 3


def test_a_result_that_another_job_thought_of_is_learnt_from() -> None:
    theirs = proposer("random").propose(3, [])
    one = proposer("random")  # of the same seed, and it has proposed nothing yet
    one.observe([Result(c, 1e-3) for c in theirs])
    assert sum(len(rows) for rows in one._ranker._rows.values()) == 3
    assert not {c.id for c in one.propose(3, [])} & {c.id for c in theirs}


def test_a_result_of_another_kernel_is_refused() -> None:
    """Its trace fits this one's space as well, and would be learnt from."""
    (made,) = proposer("random").propose(1, [])
    with pytest.raises(ValueError, match="for 00aa"):
        proposer("random").observe([Result(dataclasses.replace(made, task="00bb"), 1e-3)])


def test_the_likeliest_come_in_order_and_a_point_that_fails_is_passed_over() -> None:
    class Fragile(ModelledSpace):
        def realise(self, point: Point, seed: int) -> Proposal | None:
            if point == order[1]:
                raise RuntimeError("TVM's own reasons")
            return None if point == order[2] else super().realise(point, seed)

    whole = ModelledSpace()
    order = [one.point for one in sorted(whole.modelled(), key=lambda one: one.seconds)]
    wanted = []
    for point in (order[0], order[3], order[4]):
        proposal = whole.realise(point, 0)
        assert proposal is not None
        wanted.append(proposal.trace)
    assert likeliest(Fragile(), 3, 0) == tuple(wanted)
    assert likeliest(PaperSpace(((),)), 3, 0) == (), "no model knows it"


def test_a_used_up_space_proposes_nothing() -> None:
    one = proposer("random", space=PaperSpace(((),)))
    assert len(one.propose(4, [])) == 1
    assert one.propose(4, []) == ()


def replayed(strategy: str, told: list[list[float]]) -> list[str]:
    """What is proposed when these latencies come back, round by round."""
    one, made = proposer(strategy, space=ModelledSpace()), []
    for latencies in told:
        candidates = one.propose(len(latencies), [])
        one.observe([Result(c, s) for c, s in zip(candidates, latencies, strict=False)])
        made += [c.id for c in candidates]
    return made


@pytest.mark.parametrize("strategy", ["random", "evolutionary"])
def test_a_few_unlucky_draws_do_not_use_a_space_up(strategy: str) -> None:
    """Most sketches have one point alone, and it is asked for one candidate at a time: as where
    every result makes room for one more."""
    sketches = (SKETCHES[0], *[()] * 4)
    for task in range(20):
        one = proposer(strategy, space=PaperSpace(sketches), task=f"{task:04x}")
        for count in range(24):
            made = one.propose(1, [])
            assert len(made) == 1, f"given up after {count} of more than a hundred"
            one.observe([Result(made[0], 1e-3 * (1 + count % 5))])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", strategy_names())
def test_the_same_seed_and_measurements_propose_the_same(strategy: str) -> None:
    told = [[1e-3 * (1 + (7 * i + 3 * r) % 11) for i in range(6)] for r in range(8)]
    first = replayed(strategy, told)
    assert len(first) > 40
    assert replayed(strategy, told) == first
    told[3][2] = 1e-5
    changed = replayed(strategy, told)
    assert changed[:24] == first[:24], "the past depends on nothing that came later"
    if strategy != "random":
        assert changed != first, "a search that learns nothing"


def test_the_first_candidates_are_those_that_the_hardware_model_likes_best() -> None:
    space = ModelledSpace()
    made = proposer("portfolio", space=space).propose(3, [])
    best = min(space.modelled(), key=lambda one: one.seconds).point
    assert space.locate(made[0].trace) == best


def test_points_that_cannot_be_built_are_not_asked_for_again() -> None:
    class Refusing(ModelledSpace):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[Point] = []

        def realise(self, point: Point, seed: int) -> Proposal | None:
            self.asked.append(point)
            refused = point.sketch == 0 and point.values[0] == 3
            return None if refused else super().realise(point, seed)

    space = Refusing()
    one = proposer("guided", space=space)
    for _ in range(6):
        made = one.propose(4, [])
        assert made
        one.observe([Result(c, 1e-3) for c in made])
    assert len(set(space.asked)) == len(space.asked)


def test_a_strategy_may_suggest_more_than_it_was_asked_for() -> None:
    space = ModelledSpace()
    one = proposer("guided", space=space)
    suggest = one._strategy.suggest
    one._strategy.suggest = lambda count, flying: suggest(count + 3, flying)  # type: ignore[method-assign]
    assert len(one.propose(4, [])) == 4
