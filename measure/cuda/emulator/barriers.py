"""Barriers in shared memory (``mbarrier``): phases that end once enough threads have come and all
expected bytes too; and what each warp knows of the others by them. (Of a warp's threads each knows
what any knows. What threads write for each other is watched by barriers of blocks alone.)

NVIDIA, Parallel Thread Execution ISA, "mbarrier". What a warp has done before it came to a barrier,
those know who have seen the phase end: each warp has a clock of every other's doings (Fidge and
Mattern's vector clocks), and a barrier hands them on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import EmulatorError, Race, Unsupported
from tunefarm.measure.cuda.emulator.memory import WARP
from tunefarm.measure.cuda.emulator.ptx import Instruction, Literal, Symbol
from tunefarm.measure.cuda.emulator.values import Array

Step = Callable[[Any], None]
_BYTES = 8
"""Of a barrier."""
_MOST = 64
"""Barriers of a block."""


class Barriers:
    """Of one `machine.Run`.

    Attributes:
        used: whether there are any.
        clocks: what a warp knows of the doings of each warp of its cluster, (blocks, warps, warps
            of a cluster).
        seen: phases of each barrier that a warp has seen the end of, (blocks, warps, barriers).
        phases: that are over, (blocks, barriers).
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.used = False
        self._turned = False

    def _begin(self) -> None:
        """There are seldom any."""
        blocks, warps = self._run.blocks, self._run.threads // WARP
        self.used = True
        self._numbers = np.full(len(self._run.shared.bytes) // blocks // _BYTES, -1, np.int32)
        self._made = 0
        self._threads, self._missing, self.phases = (
            np.zeros((blocks, _MOST), np.int32) for _ in range(3)
        )
        self._bytes = np.zeros((blocks, _MOST), np.int64)
        self.clocks = np.zeros((blocks, warps, self._run.cluster * warps), np.int32)
        self._begin_anew()
        self._came = np.zeros((blocks, self._run.cluster * warps), np.int32)
        self._maker, self._made_at = (np.zeros((blocks, _MOST), np.int32) for _ in range(2))
        self._unfenced = np.zeros((blocks, _MOST), bool)
        self._run.engine.begin()
        self._gathered, self._handed = (
            np.zeros((blocks, _MOST, self._run.cluster * warps), np.int32) for _ in range(2)
        )
        self.seen = np.zeros((blocks, warps, _MOST), np.int32)

    def own(self, block: Array, warp: Array) -> Array:
        """Which of its cluster's warps one is."""
        return block % self._run.cluster * self.clocks.shape[1] + warp

    def of_block(self, block: int, other: int, warp: int) -> Array:
        """What a warp of `block` knows of the warps of another one in its cluster."""
        warps = self.clocks.shape[1]
        first = other % self._run.cluster * warps
        return self.clocks[block, warp, first : first + warps]

    def _begin_anew(self) -> None:
        """Each warp's own doings from now on."""
        block, warp = np.indices(self.clocks.shape[:2])
        self.clocks[block, warp, self.own(block, warp)] += 1

    def make(self, address: Array, threads: int) -> None:
        """Of as many threads; each thread that is here makes one."""
        if not self.used:
            self._begin()
        for offset in np.unique(self._offsets(address)[self._run.active()]):
            if self._numbers[offset // _BYTES] < 0:
                if self._made == _MOST:
                    raise Unsupported(f"more than {_MOST} barriers of a block")
                self._numbers[offset // _BYTES] = self._made
                self._made += 1
        block, thread, _, number = self._places(address)
        warp = thread // WARP
        self._maker[block, number] = self.own(block, warp)
        self._unfenced[block, number] = True
        self._made_at[block, number] = self.clocks[block, warp, self.own(block, warp)]
        places = self._run.shared.checked(self._offsets(address), _BYTES, self._run.mask)
        self._run.engine.keep(np.broadcast_to(places, self._run.shape)[block, thread])
        self._threads[block, number] = self._missing[block, number] = threads
        self._bytes[block, number] = self.phases[block, number] = 0

    def _offsets(self, address: Array) -> Array:
        _, offsets = self._run.window("shared", address, self._run.mask)
        self._run.shared.checked(np.broadcast_to(offsets, self._run.shape), _BYTES, self._run.mask)
        return np.broadcast_to(offsets, self._run.shape)

    def here(self, address: Array) -> tuple[Array, Array, Array, Array]:
        """Block and thread of each thread that is here, and the barrier's block and number.

        Raises:
            EmulatorError: there is no barrier.
            Race: a thread does not know yet that there is one.
        """
        block, thread, whose, number = self._places(address)
        self.known(block, thread // WARP, whose, number)
        return block, thread, whose, number

    def known(self, block: Array, warp: Array, whose: Array, number: Array) -> None:
        """
        Raises:
            EmulatorError: there is no barrier.
            Race: a warp does not know yet that there is one.
        """
        if (number < 0).any() or (self._threads[whose, number] == 0).any():
            raise EmulatorError("no barrier was made there")
        maker = self._maker[whose, number]
        known = self.clocks[block, warp, maker]
        if ((known < self._made_at[whose, number]) & (maker != self.own(block, warp))).any():
            raise Race("a barrier that others may still be making")

    def _places(self, address: Array) -> tuple[Array, Array, Array, Array]:
        block, thread = np.nonzero(np.broadcast_to(self._run.active(), self._run.shape))
        own, whose = self._run.of_cluster(address)
        offsets = self._offsets(own)[block, thread]
        number = self._numbers[offsets // _BYTES] if self.used else np.full(len(block), -1)
        return block, thread, whose[block, thread], number

    def fence(self) -> None:
        """What the threads that are here have made is there for the copy engine too."""
        if self.used:
            block, thread = np.nonzero(np.broadcast_to(self._run.active(), self._run.shape))
            here = np.zeros(self.clocks.shape[:2], bool)
            here[block, thread // WARP] = True
            made_by = self._maker % here.shape[1]
            self._unfenced &= ~np.take_along_axis(here, made_by, 1)

    def counts_bytes(self, block: int, number: int) -> None:
        """
        Raises:
            Race: the copy engine may not see that barrier yet.
        """
        if self._unfenced[block, number]:
            raise Race("a barrier that was made without a fence for the copy engine")

    def come(self, address: Array, expected: Array | None) -> None:
        """Each thread that is here comes to a barrier, and expects so many bytes more.

        Raises:
            EmulatorError: the barrier's block has ended.
        """
        block, thread, whose, number = self.here(address)
        if not self._run.alive.any(1)[whose].all():
            raise EmulatorError("a barrier of a block that has ended")
        warp = thread // WARP
        np.subtract.at(self._missing, (whose, number), 1)
        if expected is not None:
            more = np.broadcast_to(expected, self._run.shape)[block, thread]
            np.add.at(self._bytes, (whose, number), more.astype(np.int64))
        own = self.own(block, warp)
        far = whose != block
        now = self.clocks[block, warp, own]
        np.maximum.at(self._came, (whose[far], own[far]), now[far])
        np.maximum.at(self._gathered, (whose, number), self.clocks[block, warp])
        self.clocks[block, warp, own] += 1
        self._turn()

    def ends(self) -> None:
        """Of the blocks.

        Raises:
            Race: others of its cluster come to a block's barriers, and it does not know of that.
        """
        if self.used and (self._came > self.clocks.max(1)).any():
            raise Race("a block may end before others have come to its barriers")

    def bytes_came(self, block: int, number: int, size: int) -> None:
        self._bytes[block, number] -= size
        self._turn()

    def _turn(self) -> None:
        """Begin the next phase of those barriers that have all that they wait for.

        Raises:
            EmulatorError: of something there was more.
        """
        if (self._missing < 0).any():
            raise EmulatorError("more threads come to a barrier than it was made for")
        complete = (self._missing == 0) & (self._threads > 0)
        if (complete & (self._bytes < 0)).any():
            raise EmulatorError("more bytes come to a barrier than were expected")
        complete &= self._bytes == 0
        if complete.any():
            self._turned = True
            self.phases += complete
            self._missing[complete] = self._threads[complete]
            self._handed[complete] = self._gathered[complete]

    def over(self, address: Array, parity: Array) -> Array:
        """Which of the threads that are here find that phase over; they know from now on what all
        that came to it knew."""
        block, thread, whose, number = self.here(address)
        if (whose != block).any():
            raise Unsupported("threads that wait for another block's barrier")
        asked = np.broadcast_to(parity, self._run.shape)[block, thread].astype(np.int64)
        over = self.phases[block, number] % 2 != asked & 1
        block, thread, number = block[over], thread[over], number[over]
        warp = thread // WARP
        np.maximum.at(self.clocks, (block, warp), self._handed[block, number])
        np.maximum.at(self.seen, (block, warp, number), self.phases[block, number])
        found = np.zeros(self._run.shape, bool)
        found[block, thread] = True
        return found

    def group_met(self, block: Array, warps: Array) -> None:
        """Warps that know from now on what any of them did; `warps`: (groups, warps of one)."""
        if self.used:
            clocks = self.clocks[block[:, None], warps]
            self.clocks[block[:, None], warps] = clocks.max(1, keepdims=True)
            self.clocks[block[:, None], warps, self.own(block[:, None], warps)] += 1

    def all_met(self) -> None:
        """All threads of each block at its own barrier: each warp knows what any knew."""
        if self.used:
            self.clocks[:] = self.clocks.max(1, keepdims=True)
            self._begin_anew()
            self.seen[:] = self.seen.max(1, keepdims=True)

    def clusters_met(self) -> None:
        """All threads of each cluster too."""
        if self.used:
            together = self.clocks.reshape(-1, self.clocks.shape[2], self.clocks.shape[2])
            together[:] = together.max(1, keepdims=True)
            self._begin_anew()

    def turned(self) -> bool:
        """Whether a phase has ended since this was asked last."""
        turned, self._turned = self._turned, False
        return turned


def make(translator: Any, instruction: Instruction) -> Step:
    """All but waiting, see `waiting`.

    Raises:
        Unsupported: what is not known.
    """
    parts, operands = instruction.parts, instruction.operands
    if parts[1] == "init":
        place, count = operands
        assert isinstance(count, Literal), instruction.text
        address, threads = translator.address(place), int(count.text)
        return lambda run: run.barriers.make(address(run), threads)
    where = {"cta", "cluster", "shared", "shared::cta", "shared::cluster"}
    rest = {*parts[2:]} - {"expect_tx", "release", "b64", *where}
    if parts[1] != "arrive" or rest or operands[0] != Symbol("_"):
        raise Unsupported(instruction.text)
    address = translator.address(operands[1])
    if "expect_tx" in parts:
        expected = translator.value(operands[2], "u32")
        return lambda run: run.barriers.come(address(run), expected(run))
    if len(operands) > 2:
        raise Unsupported(instruction.text)
    return lambda run: run.barriers.come(address(run), None)


def waits(instruction: Instruction) -> bool:
    """Whether threads may have to stay at it."""
    return instruction.parts[:2] == ("mbarrier", "try_wait")


def waiting(translator: Any, instruction: Instruction) -> Callable[[Any], Array]:
    """Which of the threads that are here go on; a GPU lets the others ask again.

    Raises:
        Unsupported: what is not known.
    """
    target, place, parity, *rest = instruction.operands
    known = {"mbarrier", "try_wait", "parity", "shared", "shared::cta", "acquire", "cta", "b64"}
    parts = {*instruction.parts}
    if "parity" not in parts or parts - known or rest or instruction.guard is not None:
        raise Unsupported(instruction.text)
    put, address = translator.put(target, "pred"), translator.address(place)
    asked = translator.value(parity, "u32")

    def over(run: Any) -> Array:
        found: Array = run.barriers.over(address(run), asked(run))
        put(run, np.bool_(True))  # of those who stay it is not read
        return found

    return over
