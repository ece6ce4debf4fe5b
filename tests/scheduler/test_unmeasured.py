"""Which of several schedules is taken that nobody can time: by what the compiler says of them; and
what becomes of what nobody has run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunefarm.devices.target import parse_target
from tunefarm.errors import JobFailed
from tunefarm.measure.protocol import Protocol
from tunefarm.scheduler.unmeasured import UnmeasuredRun, first_that_fit
from tunefarm.search.candidate import UNTUNED

SPILLS = {"a": 64, "b": 0, "c": 0, "d": 128, "e": 32, "f": None, "g": None, "h": 16}
"""Bytes by trace; None for one that does not compile."""


class Reports:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, due: list[tuple[str, str]]) -> Iterator[tuple[str, str, int]]:
        self.asked.append("".join(trace for _, trace in due))
        for task, trace in due:
            if (spilt := SPILLS[trace]) is not None:
                yield task, trace, spilt


@pytest.mark.parametrize(
    ("traces", "taken", "builds"),
    [
        ("bc", "b", 1),
        ("abc", "b", 2),
        ("de", "e", 2),
        ("fc", "c", 2),
        ("fg", UNTUNED, 2),
        ("deha", "h", 4),
    ],
)
def test_the_first_whose_registers_suffice(traces: str, taken: str, builds: int) -> None:
    reports = Reports()
    assert first_that_fit({"k": tuple(traces)}, reports) == {"k": taken}
    assert reports.asked == list(traces[:builds])


def test_kernels_are_built_in_rounds() -> None:
    reports = Reports()
    chosen = {"k": ("a", "b"), "l": ("b",), "m": ("f", "e", "c")}
    assert first_that_fit(chosen, reports) == {"k": "b", "l": "b", "m": "c"}
    assert reports.asked == ["abf", "be", "c"]
    assert first_that_fit({}, reports) == {}


def untimed(target: str, budget_s: float | None) -> UnmeasuredRun:
    """One whose builders nobody may ask."""
    whose = SimpleNamespace(resolved=parse_target(target), name=target)
    journal = SimpleNamespace(add_event=lambda *_, **__: None)
    return UnmeasuredRun(
        *(None, journal, SimpleNamespace(id="job"), whose, None, Protocol(), Path(), None),
        *(budget_s, lambda: None, lambda _: None),
    )


def test_where_no_time_is_left_nothing_is_known_and_nothing_is_asked() -> None:
    """Of the budget, or of the ten minutes where there is none."""
    for budget_s, ago in ((1.0, 0.0), (None, 597.0)):
        run = untimed("cuda:arch=sm_80", budget_s)
        seen = run._on_paper(None, Path("tuned.so"), time.monotonic() - ago)
        assert (seen.parity, seen.fault, seen.is_wrong) == (None, "", False)
        assert "no time is left" in seen.untold
    assert not untimed("llvm:mcpu=znver4", 60.0)._on_paper(None, Path(), 0.0).is_wrong


def test_what_is_wrong_and_whose_untuned_build_nobody_has_seen_is_no_artifact() -> None:
    run = untimed("cuda:arch=sm_80", 1.0)
    with pytest.raises(JobFailed, match="nothing is packaged") as raised:
        run._untuned_on_paper(None, Path("base.so"), time.monotonic())
    assert "--budget" in raised.value.hint
