"""Which of several schedules is taken that nobody can time: by what the compiler says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tunefarm.scheduler.unmeasured import UnmeasuredRun
from tunefarm.search.candidate import UNTUNED

SPILLS = {"a": 64, "b": 0, "c": 0, "d": 128, "e": 32, "f": None, "g": None, "h": 16}
"""Bytes by trace; None for one that does not compile."""


class Compiled(UnmeasuredRun):
    """A run whose compiler is the table above."""

    asked: list[list[str]]

    def __init__(self) -> None:
        object.__setattr__(self, "asked", [])

    def _reports(
        self, builders: list[Any], due: list[tuple[str, str]]
    ) -> Iterator[tuple[str, str, int]]:
        self.asked.append([trace for _, trace in due])
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
        ("dehac", "h", 4),
    ],
)
def test_the_first_whose_registers_suffice(traces: str, taken: str, builds: int) -> None:
    run = Compiled()
    assert run._built([], {"k": tuple(traces)}) == {"k": taken}
    assert [trace for due in run.asked for trace in due] == list(traces[:builds])


def test_kernels_are_built_in_rounds() -> None:
    run = Compiled()
    assert run._built([], {"k": ("a", "b"), "l": ("b",)}) == {"k": "b", "l": "b"}
    assert [due for due in run.asked if due] == [["a", "b"], ["b"]]
