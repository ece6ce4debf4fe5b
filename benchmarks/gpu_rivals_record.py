"""What `gpu_rivals.py` has found so far, and how long each may take; without PyTorch."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

NO_TIME = "no time"
_AGAIN_S = 5.0
"""After which whoever takes its time is told once more: some errors are caught on their way."""


class Way(Protocol):
    """Of computing something; see `gpu_rivals.Way`."""

    @property
    def name(self) -> str: ...
    @property
    def takes_s(self) -> float: ...
    @property
    def within(self) -> Callable[[], AbstractContextManager[Any]]: ...
    def seconds(self, make: Callable[[], Any], samples: int) -> float: ...


@dataclass
class Found:
    """Seconds by kernel, rival and way, or why there are none; written as they come. Those of an
    earlier run, by the same versions on the same kind of device, are known."""

    about: dict[str, str]
    results: Path
    ways: dict[str, dict[str, dict[str, float | str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.results.exists():
            known = json.loads(self.results.read_text())
            if all(known.get(key) == value for key, value in self.about.items()):
                self.ways = known.get("ways", {})

    def has(self, rival: str, name: str, way: str) -> bool:
        """Or knows why it fails; for what there was no time there may be now."""
        return self.ways.get(name, {}).get(rival, {}).get(way, NO_TIME) != NO_TIME

    def add(self, rival: str, name: str, by_way: dict[str, float | str]) -> None:
        self.ways.setdefault(name, {}).setdefault(rival, {}).update(by_way)
        for way, one in by_way.items():
            told = one if isinstance(one, str) else f"{one * 1e6:.1f} us"
            print(f"{name}: {rival}, {way}: {told}", flush=True)
        whole = {**self.about, "kernels": self.fastest(), "ways": self.ways}
        self.results.write_text(json.dumps(whole, indent=1) + "\n")

    def fastest(self) -> dict[str, dict[str, float]]:
        """A rival that fails in every way is a row without it."""
        rows: dict[str, dict[str, float]] = {}
        for name, rivals in self.ways.items():
            for rival, by_way in rivals.items():
                times = [one for one in by_way.values() if not isinstance(one, str)]
                if times:
                    rows.setdefault(name, {})[rival] = min(times)
        return rows


def timed(
    due: Sequence[Way], make: Callable[[], Any], samples: int, limit_s: float
) -> dict[str, float | str]:
    """Seconds by way, or why there are none; a way that is not done when the time is over is given
    up."""
    until = time.monotonic() + limit_s
    found: dict[str, float | str] = {}
    for way in due:
        left_s = until - time.monotonic()
        if left_s < way.takes_s:
            found[way.name] = NO_TIME
            continue
        try:
            with way.within(), at_most(left_s):
                found[way.name] = way.seconds(make, samples)
        except Exception as error:  # of many types; that the time was over may be told as another
            first = next(iter(str(error).strip().splitlines()), "")
            over = time.monotonic() >= until
            found[way.name] = NO_TIME if over else f"{type(error).__name__}: {first[:200]}"
    return found


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises:
    TimeoutError: it takes longer, as far as Python is asked meanwhile.
    """

    def over(*_: Any) -> None:
        raise TimeoutError(f"{seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, seconds), _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
