"""Copies to shared memory that go on beside the threads that asked for them (``cp.async``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import Unsupported
from tunefarm.measure.cuda.emulator.memory import UNWRITTEN
from tunefarm.measure.cuda.emulator.values import UNSIGNED, Array


@dataclass
class _Copy:
    """One instruction's copies: `group` is how many groups their threads had closed before."""

    group: Array
    pending: Array
    address: Array
    target: Array
    size: int


class Copies:
    """Of one `machine.Run`.

    A GPU may do each at any time until it is waited for. Here what they write is unreadable as soon
    as they are asked for, and there only when they are waited for, which is the worst of both.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._closed = np.zeros(run.shape, np.int32)
        self._open: list[_Copy] = []

    def ask(self, target: Array, source: Array, size: int, given: Array) -> None:
        """Of `size` bytes from `source`, or, where `given` is 0, of as many zeros.

        Raises:
            Unsupported: some of one copy.
        """
        run = self._run
        _, offsets = run.window("shared", target, run.mask)
        places = run.shared.checked(np.broadcast_to(offsets, run.shape), size, run.mask)
        if run.watches:
            run.watched(run.shared.watch.writes, places, size)
            run.groups.writes(places[run.active()])
        _, source = run.window("global", source, run.mask)
        active = run.active()
        wanted = np.broadcast_to(given, run.shape)
        if ((wanted != 0) & (wanted != size) & active).any():
            raise Unsupported("a copy of which a part is zeros")
        some = (wanted != 0) & active
        address = np.full(run.shape, -1, np.int64)
        if some.any():
            checked = run.memory.checked(np.broadcast_to(source, run.shape), size, some)
            address = np.where(some, checked, -1)
        nothing = np.full(int(active.sum()), UNWRITTEN, np.uint8)
        for number in range(size):  # of no use until it is waited for
            run.shared.write(places[active] + number, nothing)
        self._open.append(_Copy(self._closed.copy(), active.copy(), address, places, size))

    def close(self) -> None:
        self._closed = self._closed + self._run.active()

    def wait(self, but: int) -> None:
        """Until at most the `but` last groups are on their way."""
        run = self._run
        active = run.active()
        for copy in self._open:
            due = copy.pending & active & (copy.group < self._closed - but)
            if not due.any():
                continue
            self._finish(copy, due)
            copy.pending = copy.pending & ~due
        self._open = [copy for copy in self._open if copy.pending.any()]

    def wait_for_all(self) -> None:
        self.close()
        self.wait(0)

    def _finish(self, copy: _Copy, due: Array) -> None:
        run = self._run
        places, address = copy.target[due], copy.address[due]
        width = min(copy.size, 8)
        dtype = UNSIGNED[width]
        for number in range(0, copy.size, width):
            values = run.memory.read(np.maximum(address, 0) + number, dtype)
            run.shared.write(places + number, np.where(address < 0, dtype(0), values))
        if run.watches:
            thread, warp = (np.broadcast_to(one, run.shape)[due] for one in (run.thread, run.warp))
            run.shared.watch.writes(places, copy.size, thread, warp, run.moment[due])
            run.groups.wrote(due)
