"""Waiting until the machine is all there.

On shared hosts two of a machine's cores are now and then two threads of one: for tenths of a
second, or for fifteen, everything that computes on both takes twice its time, whatever is done
inside the machine. Or they come to lie far apart (`devices.cores`), mostly where both have been at
work for a while, and everything that they hand to each other takes several times as long.
Gauges tell, whose times on an undisturbed machine are known: a short computation on all cores, and
an exchange between two. What is timed waits for them, and is timed again where it was disturbed
meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.devices.cores import exchange_s
from tunefarm.measure.allowance import Allowance, of_the_machine

NETWORK_S = 2.0
"""Waited at a time, and in vain, before an inference: it is worth more than a kernel's call."""
VARIABLE = "TUNEFARM_GAUGE"
"""Environment variable that names the gauge's file for a runner's child."""


@dataclass(frozen=True)
class Gauge:
    """A kernel without a purpose.

    Attributes:
        library: its file.
        shapes: of its float32 arguments.
        seconds: of a call when all cores are there.
    """

    library: Path
    shapes: tuple[tuple[int, ...], ...]
    seconds: float


def gauge_from_file(path: Path) -> Gauge | None:
    """The gauge described in a JSON file (its library lies beside it), None where it has none."""
    try:
        found = json.loads(path.read_text())["gauge"]
        shapes = tuple(tuple(int(size) for size in shape) for shape in found["shapes"])
        gauge = Gauge(path.with_suffix(".so"), shapes, float(found["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return gauge if gauge.library.exists() else None


def near_from_file(path: Path) -> float | None:
    """Seconds of an exchange between cores that are near each other, from the same file; None where
    it does not tell."""
    try:
        return float(json.loads(path.read_text())["near_s"]) or None
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Norm:
    """What a gauge says of an undisturbed machine, as far as is known.

    Args:
        gauge: does something short and returns its seconds.
        seconds: what that takes at best.
        tolerance: times as long as which it still counts as undisturbed.
    """

    def __init__(self, gauge: Callable[[], float], seconds: float, tolerance: float) -> None:
        self._gauge = gauge
        self._least = seconds
        self._seconds = seconds
        self._tolerance = tolerance

    def ask(self) -> float:
        now = self._gauge()
        # A machine that has recovered is held to what it can do again.
        self._seconds = max(self._least, min(self._seconds, now))
        return now

    def holds(self, seconds: float) -> bool:
        return seconds <= self._tolerance * self._seconds

    def accept(self, seconds: float) -> None:
        """Counts as undisturbed from now on, until it takes less."""
        self._seconds = seconds

    @property
    def raised(self) -> bool:
        """Whether what counts as undisturbed now would have counted as disturbed at first."""
        return self._seconds > self._tolerance * self._least


def of_work(gauge: Callable[[], float], seconds: float) -> Norm:
    """Of a computation on all cores."""
    return Norm(gauge, seconds, 1.3)


def of_exchange(gauge: Callable[[], float], seconds: float) -> Norm:
    """Of an exchange between cores: far ones take three times as long or more."""
    return Norm(gauge, seconds, 2.0)


class Steady:
    """Asks gauges, and waits.

    Args:
        norms: all of them are to hold.
        sleep: as `time.sleep`; what is slept counts as waited.
        limit_s: the most that is waited at a time.
        patience_s: waited in vain, after which what the machine does counts as undisturbed.
        allowance: what may be waited; by default one of its own.

    Attributes:
        waited_s: in all.
        disturbed: how often `undisturbed` returned what was measured on a machine that was not what
            it had been at best.
    """

    LIMIT_S = 0.4
    PATIENCE_S = 1.0
    PAUSE_S = 0.02

    def __init__(
        self,
        norms: Sequence[Norm],
        sleep: Callable[[float], None] = time.sleep,
        limit_s: float = LIMIT_S,
        patience_s: float = PATIENCE_S,
        allowance: Allowance | None = None,
    ) -> None:
        self._norms = norms
        self._sleep = sleep
        self._limit_s = limit_s
        self._patience_s = patience_s
        self._allowance = Allowance() if allowance is None else allowance
        self._in_vain_s = 0.0
        self.waited_s = 0.0
        self.disturbed = 0

    def there(self) -> bool:
        return all(norm.holds(norm.ask()) for norm in self._norms)

    def wait(self, limit_s: float | None = None) -> bool:
        """Until all cores are there and near, or for `limit_s`, which by default is its own.

        A machine that keeps us waiting is not disturbed but slower than it was: after
        `patience_s` in vain what it does now counts as undisturbed.
        """
        limit_s = min(self._limit_s if limit_s is None else limit_s, self._allowance.left_s())
        waited, best = 0.0, [float("inf")] * len(self._norms)
        there = False
        while not there and waited <= limit_s:
            now = [norm.ask() for norm in self._norms]
            best = list(map(min, best, now))
            there = all(norm.holds(s) for norm, s in zip(self._norms, now, strict=True))
            if limit_s <= 0.0:
                break
            if not there:
                self._sleep(self.PAUSE_S)
                waited += self.PAUSE_S
        if waited:
            self.waited_s += waited
            self._allowance.take(waited)
        self._in_vain_s = 0.0 if there else self._in_vain_s + waited
        if self._in_vain_s > self._patience_s:
            for norm, seconds in zip(self._norms, best, strict=True):
                if not norm.holds(seconds):
                    norm.accept(seconds)
            self._in_vain_s = 0.0
        return there

    def undisturbed(self, measure: Callable[[], list[float]], attempts: int = 2) -> list[float]:
        """What `measure` returns from a time in which the machine was there before and after; from
        its last attempt, where there was no such time."""
        samples, there = list[float](), False
        for _ in range(attempts):
            self.wait()
            samples = measure()
            there = self.there()
            if there or self._allowance.left_s() < self._limit_s:
                break
        self.disturbed += not there or any(norm.raised for norm in self._norms)
        return samples


def steady_from_environment() -> Steady | None:
    """In a runner's child, where its parent has named a gauge."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    norms = []
    gauge, near_s = gauge_from_file(Path(named)), near_from_file(Path(named))
    if gauge is not None:
        try:
            norms.append(of_work(_fastest_of(gauge), gauge.seconds))
        except Exception:  # a library that cannot be loaded; without it nothing waits for it
            pass
    if near_s is not None:
        norms.append(of_exchange(exchange(), near_s))
    return Steady(norms, allowance=of_the_machine()) if norms else None


def exchange() -> Callable[[], float]:
    """Between cores that this thread may use now: later it may be confined to one of them."""
    cores = os.sched_getaffinity(0)
    return lambda: exchange_s(cores)


def while_near(near_s: float) -> Steady:
    """For whole networks in a process of their own: waits until an exchange takes hardly more than
    `near_s`; where that is 0.0, for it is not known, for nothing."""
    norms = [of_exchange(exchange(), near_s)] if near_s else []
    return Steady(norms, limit_s=NETWORK_S, patience_s=NETWORK_S, allowance=of_the_machine())


_CALLS, _MORE = 3, 20
_AT_ONCE = 1.15
"""Times as long as which `_CALLS` calls may take; else `_MORE` follow them, two milliseconds or so:
after a pause, however short, cores begin at half their speed."""


def _fastest_of(gauge: Gauge) -> Callable[[], float]:
    import numpy as np
    import tvm

    module = tvm.runtime.load_module(str(gauge.library))
    arguments: list[Any] = [tvm.runtime.tensor(np.ones(s, "float32")) for s in gauge.shapes]
    timers = [
        module.time_evaluator("kernel", tvm.cpu(), number=1, repeat=calls)
        for calls in (_CALLS, _MORE)
    ]
    return lambda: least_of((timer(*arguments).results for timer in timers), gauge.seconds)


def least_of(rounds: Iterable[Iterable[float]], seconds: float) -> float:
    """Of the first round's times, where one is near `seconds`; else of the next round's too."""
    found = float("inf")
    for times in rounds:
        found = min(found, *map(float, times))
        if found <= _AT_ONCE * seconds:
            break
    return found
