"""A proposer never proposes anything twice, in this life or after a resume."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.costmodel.ranker import Ranker
from tunefarm.devices.target import parse_target
from tunefarm.search.candidate import Candidate
from tunefarm.search.proposer import Proposer, Result
from tunefarm.search.space import Knob, KnobKind, Point, Proposal

TARGET = parse_target("llvm:mcpu=paper")


class PaperSpace:
    """A space without a compiler: the trace is the point, written down."""

    sketches = ((Knob(KnobKind.TILE, 3, 64), Knob(KnobKind.CHOICE, 4)), ())

    def realise(self, point: Point, seed: int) -> Proposal | None:
        flat = [
            point.sketch,
            *(x for v in point.values for x in (v if isinstance(v, tuple) else (v,))),
        ]
        features = np.array([*flat, *[0] * (8 - len(flat))], dtype=float)
        return Proposal(point, repr((point.sketch, point.values)), features)

    def locate(self, trace: str) -> Point | None:
        sketch, values = eval(trace)
        return Point(sketch, values)


def proposer(strategy: str, earlier: tuple[Candidate, ...] = ()) -> Proposer:
    return Proposer("00aa", TARGET, "tc", PaperSpace(), strategy, Ranker(), 0, earlier)


@pytest.mark.parametrize("strategy", ["random", "evolutionary", "tpe"])
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


@pytest.mark.parametrize("strategy", ["random", "evolutionary", "tpe"])
def test_a_resumed_search_goes_on_with_new_candidates(strategy: str) -> None:
    first = proposer(strategy)
    made = first.propose(12, [])
    first.observe([Result(c, 1e-3) for c in made[:3]])  # nine of them are lost in flight
    second = proposer(strategy, earlier=made)  # of the same seed
    second.observe([Result(c, 1e-3) for c in made[:3]])
    more = second.propose(6, [c.id for c in made[3:]])
    assert more, "a kernel that is not used up must go on"
    assert not {c.id for c in more} & {c.id for c in made}


def test_a_result_told_twice_counts_once() -> None:
    one = proposer("random")
    made = one.propose(3, [])
    for _ in range(2):
        one.observe([Result(c, 1e-3) for c in made])
    assert sum(len(rows) for rows in one._ranker._rows.values()) == 3


def test_a_used_up_space_proposes_nothing() -> None:
    class Single(PaperSpace):
        sketches = ((),)

    one = Proposer("00aa", TARGET, "tc", Single(), "random", Ranker(), 0)
    assert len(one.propose(4, [])) == 1
    assert one.propose(4, []) == ()
