"""Whose fault it is: a candidate's, once the device has answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tunefarm.errors import DeviceLost
from tunefarm.measure import faults
from tunefarm.process import Child, ChildDied, ChildError, ChildUnready


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    monkeypatch.setattr(faults, "PAUSE_S", 0.0)
    with Child("tests.late:serve", env={"TUNEFARM_TEST_LATE": str(tmp_path / "been")}) as child:
        yield child


@pytest.mark.slow
def test_a_device_that_is_not_free_yet_is_asked_again(late: Child) -> None:
    assert faults.ask(late, "hello", 10) == "hello"
    assert late.starts == 2


@pytest.mark.slow
def test_one_that_does_not_answer_is_lost(late: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "TRIES", 1)
    with pytest.raises(DeviceLost, match="it is not free yet"):
        faults.ask(late, "hello", 10)
    assert faults.ask(late, "hello", 10) == "hello", "it is back"


@pytest.mark.slow
def test_a_fault_is_believed_when_the_device_has_answered(
    late: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.ready(late)
    starts = late.starts
    with pytest.raises(ChildError, match="a fault"):
        faults.ask(late, "fault", 10)
    assert late.starts == starts + 1, "in another child"
    with pytest.raises(ChildDied) as died:
        faults.ask(late, "fault, and take it along", 10)
    assert died.value.returncode == 3, "it was back at the second attempt"
    monkeypatch.setattr(faults, "TRIES", 1)
    with pytest.raises(DeviceLost):
        faults.ask(late, "fault, and take it along", 10)


def test_who_could_not_begin_is_told_apart(late: Child) -> None:
    with pytest.raises(ChildUnready) as unready:
        late.call("hello", 10)
    assert unready.value.returncode == 1
    assert "it is not free yet" in unready.value.tail
