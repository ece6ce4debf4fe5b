"""What processes may wait in common, on a clock of paper."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.allowance import VARIABLE, Allowance, of_the_machine


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_runs_down_and_comes_back(clock: Clock) -> None:
    one = Allowance(clock=clock)
    assert one.left_s() == Allowance.MOST_S
    one.take(Allowance.MOST_S + 1.0)
    assert one.left_s() == 0.0
    clock.now += 10.0
    assert one.left_s() == pytest.approx(10.0 * Allowance.SHARE - 1.0)
    clock.now += 1e6
    assert one.left_s() == Allowance.MOST_S, "never to more than at first"


def test_processes_have_it_in_common(clock: Clock, tmp_path: Path) -> None:
    first, other = (Allowance(tmp_path / "waited", clock) for _ in range(2))
    first.take(15.0)
    assert other.left_s() == pytest.approx(5.0)
    other.take(2.0)
    assert first.left_s() == pytest.approx(3.0)
    assert Allowance(tmp_path / "waited", clock).left_s() == pytest.approx(3.0), "who begins later"
    assert [one.name for one in tmp_path.iterdir()] == ["waited"]


@pytest.mark.parametrize(
    "text", ["", "3.0", "a b", "1 2 3", "0.0 5000.0", "nan 1.0", "1e9 1.0", "-inf 1.0", "\0" * 200]
)
def test_what_is_no_account_of_this_machine_since_its_start_is_none(
    clock: Clock, tmp_path: Path, text: str
) -> None:
    (tmp_path / "waited").write_text(text)
    one = Allowance(tmp_path / "waited", clock)
    assert one.left_s() == Allowance.MOST_S
    one.take(1.0)
    assert Allowance(tmp_path / "waited", clock).left_s() == pytest.approx(Allowance.MOST_S - 1.0)


def test_who_waits_longer_than_is_left_leaves_nothing_to_the_next_one(
    clock: Clock, tmp_path: Path
) -> None:
    Allowance(tmp_path / "waited", clock).take(50.0)
    other = Allowance(tmp_path / "waited", clock)
    assert other.left_s() == 0.0
    clock.now += Allowance.MOST_S / Allowance.SHARE + 1.0
    assert other.left_s() == pytest.approx(Allowance.SHARE, abs=1e-6)


def test_where_it_cannot_be_written_it_is_the_processs_own(clock: Clock, tmp_path: Path) -> None:
    one = Allowance(tmp_path / "nowhere" / "waited", clock)
    one.take(4.0)
    assert one.left_s() == Allowance.MOST_S - 4.0


@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
def test_what_others_have_put_in_its_place_is_left_alone(
    clock: Clock, tmp_path: Path, what: str
) -> None:
    mine, place = tmp_path / "mine", tmp_path / "waited"
    mine.write_text("mine")
    make = {"link": lambda: place.symlink_to(mine), "directory": place.mkdir}
    make.get(what, lambda: os.mkfifo(place))()
    one = Allowance(place, clock)
    one.take(4.0)
    assert one.left_s() == Allowance.MOST_S - 4.0
    assert mine.read_text() == "mine"


def test_all_users_of_a_machine_have_it_in_common(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "waited"))
    of_the_machine().take(4.0)
    assert (tmp_path / "waited").stat().st_mode & 0o777 == 0o666
    assert of_the_machine().left_s() < Allowance.MOST_S


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 100.0)), max_size=30))
def test_no_more_than_a_share_is_waited_in_the_long_run(steps: list[tuple[float, float]]) -> None:
    """By who waits no longer than is left."""
    clock, waited = Clock(), 0.0
    one = Allowance(clock=clock)
    for wished, worked in steps:
        waits = min(wished, one.left_s())
        clock.now += waits
        one.take(waits)
        waited += waits
        clock.now += worked
    assert waited <= Allowance.MOST_S + Allowance.SHARE * (clock.now - Clock.now) + 1e-6
