"""Calls in turns: what one takes as a part of what another one takes, in the same minutes."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from tunefarm.measure.pinning import pin_caller
from tunefarm.measure.steady import steady_from_environment


def once(timer: Any, arguments: list[Any]) -> float:
    """Seconds of a call, by a `time_evaluator`."""
    return float(timer(*arguments).mean)


Name = TypeVar("Name", bound=Hashable)


def in_turns(calls: Mapping[Name, Callable[[], float]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of each, called once a round, in random order, while the gauge that the environment
    names (`measure.steady`) says that all cores are there; every kernel has run before."""
    pin_caller()
    steady = steady_from_environment()
    assert steady is not None, "no gauge is named"
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            steady.wait()
            taken = calls[name]()
            if steady.there():  # else a core was away
                seconds[name].append(taken)
    return seconds
