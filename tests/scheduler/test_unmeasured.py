"""Which of several schedules is taken that nobody can time: by what the compiler says of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tunefarm.scheduler.unmeasured import first_that_fit
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
