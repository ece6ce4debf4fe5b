"""Waiting until the machine is all there.

On shared hosts two of a machine's cores are now and then two threads of one: for tenths of a
second, or for fifteen, everything that computes on both takes twice its time, whatever is done
inside the machine.
A gauge, a short computation on all cores whose time on an undisturbed machine is known, tells. What
is timed waits for it, and is timed again where it was disturbed meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Steady:
    """Asks a gauge, and waits.

    Args:
        gauge: runs the gauge a few times and returns the seconds of its fastest call.
        seconds: what that takes on an undisturbed machine.
        sleep: as `time.sleep`; what is slept counts as waited.
    """

    TOLERANCE = 1.3
    LIMIT_S = 0.4
    PATIENCE_S = 1.0
    """Waited in vain, after which what the machine does counts as undisturbed."""
    PAUSE_S = 0.02

    def __init__(
        self,
        gauge: Callable[[], float],
        seconds: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gauge = gauge
        self._least = seconds
        self._seconds = seconds
        self._sleep = sleep
        self._in_vain_s = 0.0
        self.waited_s = 0.0

    def there(self) -> bool:
        return self._ask() <= self.TOLERANCE * self._seconds

    def _ask(self) -> float:
        now = self._gauge()
        # A machine that has recovered is held to what it can do again.
        self._seconds = max(self._least, min(self._seconds, now))
        return now

    def wait(self, limit_s: float = LIMIT_S) -> bool:
        """Until all cores are there, or for `limit_s`.

        A machine that keeps us waiting is not disturbed but slower than it was: after
        `PATIENCE_S` in vain what it does now counts as undisturbed.
        """
        waited, best = 0.0, float("inf")
        while waited <= limit_s:
            now = self._ask()
            best = min(best, now)
            if now <= self.TOLERANCE * self._seconds:
                self._in_vain_s = 0.0
                return True
            self._sleep(self.PAUSE_S)
            waited += self.PAUSE_S
            self.waited_s += self.PAUSE_S
        self._in_vain_s += waited
        if self._in_vain_s > self.PATIENCE_S:
            self._seconds, self._in_vain_s = best, 0.0
        return False

    def undisturbed(self, measure: Callable[[], list[float]], attempts: int = 2) -> list[float]:
        """What `measure` returns from a time in which the machine was there before and after; from
        its last attempt, where there was no such time."""
        samples: list[float] = []
        for _ in range(attempts):
            self.wait()
            samples = measure()
            if self.there():
                break
        return samples


def steady_from_environment() -> Steady | None:
    """In a runner's child, where its parent has named a gauge."""
    named = os.environ.get(VARIABLE)
    gauge = gauge_from_file(Path(named)) if named else None
    if gauge is None:
        return None
    try:
        return Steady(_fastest_of(gauge), gauge.seconds)
    except Exception:  # a library that cannot be loaded; without it nothing waits
        return None


def _fastest_of(gauge: Gauge, calls: int = 3) -> Callable[[], float]:
    import numpy as np
    import tvm

    module = tvm.runtime.load_module(str(gauge.library))
    arguments: list[Any] = [tvm.runtime.tensor(np.ones(s, "float32")) for s in gauge.shapes]
    timer = module.time_evaluator("kernel", tvm.cpu(), number=1, repeat=calls)
    return lambda: min(float(result) for result in timer(*arguments).results)
