"""What may be waited for a machine, by all the processes that measure on it, one after another."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tunefarm.devices.lock import opened, shared_directory

VARIABLE = "TUNEFARM_WAITED"
"""Environment variable that names another file than the machine's, for tests."""


def of_the_machine() -> Allowance:
    """The one that all processes have in common, whatever farm or user they are of."""
    named = os.environ.get(VARIABLE)
    return Allowance(Path(named) if named else shared_directory() / "tunefarm.waited")


class Allowance:
    """Runs down as it is used and comes back with time, never to more than at first.

    Args:
        file: in which processes share it; without one, or where it cannot be opened, it is this
            process's own.
        clock: as `time.monotonic`, the same for all of them.

    No more than `MOST_S` is waited in a row, and in the long run no more than `SHARE` of the time:
    on a host that is busy for an hour, and now and then for a moment is not, a search that waited
    for each such moment would see a tenth of what it could have tried, and finals are of a dozen
    processes, each of which would wait anew.
    """

    MOST_S = 20.0
    SHARE = 0.15

    def __init__(
        self, file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._clock = clock
        self._left_s, self._counted = self.MOST_S, clock()

    def left_s(self) -> float:
        """Seconds, none below zero."""
        with self._opened() as descriptor:
            self._count(descriptor)
        return max(0.0, self._left_s)

    def take(self, seconds: float) -> None:
        """They were waited."""
        with self._opened() as descriptor:
            self._count(descriptor)
            self._left_s = max(-self.MOST_S, self._left_s - seconds)
            text = f"{self._left_s!r} {self._counted!r}\n".encode()
            if descriptor is not None:
                with contextlib.suppress(OSError):  # it is somebody's who lets others only read
                    os.pwrite(descriptor, text, 0)
                    os.ftruncate(descriptor, len(text))

    def _count(self, descriptor: int | None) -> None:
        """What nobody has written down since the machine was started is as it is here."""
        now = self._clock()
        with contextlib.suppress(OSError, ValueError):
            text = b"" if descriptor is None else os.pread(descriptor, 100, 0)
            left_s, counted = map(float, text.split())
            if abs(left_s) <= self.MOST_S and counted <= now:
                self._left_s, self._counted = left_s, counted
        back_s, self._counted = self.SHARE * (now - self._counted), now
        self._left_s = min(self.MOST_S, self._left_s + back_s)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int | None]:
        """Nobody else's meanwhile, but where somebody stands still with it."""
        descriptor = None
        if self._file is not None:
            with contextlib.suppress(OSError):
                descriptor = opened(self._file)
        try:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        finally:
            if descriptor is not None:
                os.close(descriptor)
