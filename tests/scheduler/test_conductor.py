"""The loop's own promises: order, leases, losses, and reports that cannot be true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.errors import Failure, FailureKind, JobFailed
from tunefarm.measure.facts import Screening, ScreenOutcome
from tunefarm.scheduler.conductor import FLAGS, Conductor
from tunefarm.scheduler.crew import Answered, Died, Heard, Raised
from tunefarm.scheduler.leases import Leases
from tunefarm.scheduler.losses import LOST_LIMIT
from tunefarm.scheduler.messages import (
    Assignment,
    Build,
    Built,
    Fact,
    Imported,
    Instruction,
    Joined,
    Lease,
    Left,
    Screen,
    Screened,
    Task,
)
from tunefarm.scheduler.plausible import Implausible, check_screening
from tunefarm.scheduler.state import Limits, TargetState


class Script:
    """A crew that says what it is told to, and a conductor whose every act is in `log`."""

    def __init__(self, units: int = 1) -> None:
        self.given: list[Assignment] = []
        self.says: list[Heard] = []
        self.log: list[str] = []
        self.implausible = False
        self.state = TargetState(Limits(trials=4), Leases(epoch=3))
        self.conductor = Conductor(
            self.state,
            self,
            lambda instruction: instruction,
            self.record,
            self.gave_up,
            self.raised,
            stale=lambda heard: self.log.append("stale"),
            flag=lambda unit, reason: self.log.append(f"flag {unit}"),
            together=self.together,
        )
        self.state.restore(Imported((Task("t", 1, "base"),)))
        for unit in range(units):
            self.conductor.give(self.state.handle(Joined(f"unit{unit}")))

    def give(self, assignment: Assignment, work: Any) -> None:
        self.log.append(f"give {type(assignment.instruction).__name__}")
        self.given.append(assignment)

    def wait(self, limit_s: float) -> list[Heard]:
        said, self.says = self.says, []
        return said

    def record(self, instruction: Instruction, answer: Any) -> Fact:
        if isinstance(instruction, Screen) and self.implausible:
            raise Implausible("too fast")
        self.log.append(f"record {type(instruction).__name__}")
        if isinstance(instruction, Build):
            return Built(instruction.candidate, True)
        assert isinstance(instruction, Screen)
        return Screened(instruction.candidate, 1e-3)

    def gave_up(self, instruction: Instruction, failure: Failure) -> Fact | None:
        self.log.append("gave up")
        if isinstance(instruction, Build | Screen):
            return Screened(instruction.candidate, None)
        return None

    def raised(self, instruction: Instruction, error: Exception) -> Fact:
        raise error

    @contextmanager
    def together(self) -> Iterator[None]:
        self.log.append("begin")
        yield
        self.log.append("commit")

    def turn(self, *says: Heard) -> None:
        self.says = list(says)
        self.log.clear()
        self.conductor.turn(0.0)
        self.state.validate()

    @property
    def last(self) -> Lease:
        return self.given[-1].lease


def test_nothing_is_given_out_before_what_led_to_it_is_durable() -> None:
    script = Script()
    script.turn(Answered(script.last, None))
    assert script.log == ["begin", "record Build", "commit", "give Screen"]


def test_two_answers_to_one_lease_are_one() -> None:
    script = Script()
    twice = Answered(script.last, None)
    script.turn(twice, twice)
    assert script.log.count("record Build") == 1
    assert script.log.count("stale") == 1
    script.turn(twice)
    assert script.log == ["begin", "stale", "commit"]


def test_an_answer_to_another_driver_is_not_written_down() -> None:
    script = Script()
    script.turn(Answered(Lease(2, script.last.number), None))
    assert script.log == ["begin", "stale", "commit"]


@pytest.mark.parametrize("how", ["worker", "machine"])
def test_what_kills_its_workers_is_given_up(how: str) -> None:
    script = Script()
    script.turn(Answered(script.last, None))
    for _ in range(LOST_LIMIT):
        assert isinstance(script.given[-1].instruction, Screen)
        if how == "worker":
            script.turn(Died(script.last, "killed"))
        else:
            script.turn(Left("unit0"), Joined("unit0"))
    assert "gave up" in script.log
    assert "base" in script.state.done


def test_who_waited_behind_it_is_not_blamed() -> None:
    script = Script()
    for _ in range(3 * LOST_LIMIT):
        script.turn(Died(script.last, "killed", innocent=True))
    assert isinstance(script.given[-1].instruction, Build)


def test_a_unit_that_gives_way_says_nothing_against_its_work() -> None:
    script = Script()
    script.turn(Answered(script.last, None))
    for _ in range(3 * LOST_LIMIT):
        assert isinstance(script.given[-1].instruction, Screen)
        script.turn(Left("unit0", gives_way=True), Joined("unit0"))
        assert "gave up" not in script.log
    assert "base" not in script.state.done


def test_an_exception_that_is_not_the_candidates_ends_the_job() -> None:
    script = Script()
    with pytest.raises(OSError, match="no disk"):
        script.turn(Raised(script.last, OSError("no disk")))


def test_what_cannot_be_true_is_flagged_and_the_work_done_elsewhere() -> None:
    script = Script(units=2)
    script.turn(Answered(script.last, None))
    first = script.given[-1].instruction
    assert isinstance(first, Screen)
    script.implausible = True
    script.turn(Answered(script.last, None))
    again = script.given[-1].instruction
    assert isinstance(again, Screen)
    assert f"flag {first.unit}" in script.log
    assert again.candidate == first.candidate
    assert again.unit != first.unit
    script.implausible = False
    script.turn(Answered(script.last, None))
    assert "base" in script.state.done


def test_who_was_not_believed_is_not_asked_when_it_comes_back() -> None:
    script = Script()
    script.conductor.flags["unit7"] = FLAGS
    script.turn(Joined("unit7"), Joined("unit8"))
    assert set(script.state.leases.units) == {"unit0", "unit8"}


def test_when_the_last_unit_cannot_be_believed_the_job_ends() -> None:
    script = Script()
    script.conductor.flags["unit0"] = FLAGS - 1
    script.turn(Answered(script.last, None))
    script.implausible = True
    with pytest.raises(JobFailed, match="cannot be true"):
        script.turn(Answered(script.last, None))


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=50), st.floats(0.0, 1e-6))
def test_what_hardware_can_do_is_believed(samples: list[float], floor_s: float) -> None:
    check_screening(ScreenOutcome(Screening(tuple(samples), False), None), floor_s)


@pytest.mark.parametrize(
    "samples",
    [(), (math.nan,), (math.inf,), (-1.0,), (0.0,), (1e-3, 1e9), (1e-3, 2e-7), ("1e-3",), (True,)],
)
def test_what_it_cannot_is_not(samples: tuple[Any, ...]) -> None:
    with pytest.raises(Implausible):
        check_screening(ScreenOutcome(Screening(samples, False), None), 1e-6)


def test_a_report_is_a_result_or_a_failure() -> None:
    failure = Failure(FailureKind.CRASH, "SIGSEGV")
    check_screening(ScreenOutcome(None, failure), 1e-6)
    for outcome in (ScreenOutcome(None, None), ScreenOutcome(Screening((1.0,), False), failure)):
        with pytest.raises(Implausible):
            check_screening(outcome, 0.0)
