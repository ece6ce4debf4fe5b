"""What may be waited for a machine, by all the processes that measure on it, one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


class Allowance:
    """Runs down as it is used and comes back with time, never to more than at first.

    Args:
        file: in which processes share it; without one, or where it cannot be written, it is this
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
        self._count()
        return max(0.0, self._left_s)

    def take(self, seconds: float) -> None:
        """They were waited."""
        self._count()
        self._left_s -= seconds
        self._write()

    def _count(self) -> None:
        self._read()
        now = self._clock()
        back_s, self._counted = self.SHARE * (now - self._counted), now
        self._left_s = min(self.MOST_S, self._left_s + back_s)

    def _read(self) -> None:
        """What nobody has written, or before the machine was started anew, is whole."""
        if self._file is None:
            return
        try:
            left_s, counted = map(float, self._file.read_text().split())
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            self._left_s, self._counted = self.MOST_S, self._clock()
            return
        if counted <= self._clock() and abs(left_s) <= self.MOST_S:
            self._left_s, self._counted = left_s, counted

    def _write(self) -> None:
        if self._file is None:
            return
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        # Where others may write, a name may be there already, and lead elsewhere.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            with open(os.open(temporary, flags, 0o644), "w") as text:
                text.write(f"{self._left_s!r} {self._counted!r}\n")
            os.replace(temporary, self._file)
        except OSError:
            self._file = None
