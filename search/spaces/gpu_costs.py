"""What the models of GPU schedules have in common, so that their seconds can be compared: what a
multiprocessor does in a cycle besides multiplying. From specifications, but for what says where it
was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tunefarm.devices.gpu import Arch

SUM_BYTES = 4
SHARED_BYTES, FETCHED_BYTES = 128, 40.0
"""Of shared memory and of the second-level cache, that a multiprocessor reads in a cycle: an A100's
by its whitepaper, which gives the cache 5120 bytes for 108 multiprocessors. What blocks fetch in
common is in that cache."""
COPY = 2.5
"""Cycles for a warp's copy to shared memory: some ten instructions, four begun in a cycle."""
LATENCY = 600.0
"""Cycles until what a step fetches is there; with several stages, it was asked for steps ago."""
BEGIN = 1500.0
"""Cycles of a block before its first step, and after its last."""
HERTZ = 1.4e9
_SCHEDULERS = 4
"""Of a multiprocessor: as many warps at least keep all of its units at work."""
_WAITED = 0.2
"""Cycles that a warp waits for each in which it begins something: fitted to products of 1024 in
float32 on an H200, whose tiles take 1.1 times as long with one warp of each scheduler as with
two."""
TOLD_S, MET_S = 0.5e-6, 0.4e-6
"""Of a launch, until Hopper's copy engine knows its tensors, and until the blocks of clusters have
met: fitted to tiles that are the same but for that, of products and attention that take three to
eight microseconds on an H200."""


@dataclass(frozen=True)
class Block:
    """What a block takes of a multiprocessor; `registers` are a thread's."""

    threads: int
    shared_bytes: int
    registers: int

    def resident(self, arch: Arch, blocks: int) -> int:
        """How many of `blocks` a multiprocessor has at a time, at least one."""
        return max(
            1,
            min(
                arch.threads_of_all // self.threads,
                arch.shared_of_all // max(1, self.shared_bytes),
                arch.blocks_by_registers(self.threads, self.registers),
                ceil(blocks / arch.multiprocessors),
            ),
        )

    def awake(self, arch: Arch, resident: int) -> float:
        """Share of a multiprocessor's units that `resident` blocks have warps for."""
        return min(1.0, self._each(arch, resident))

    def begun(self, arch: Arch, resident: int) -> float:
        """Share of the cycles in which a scheduler finds a warp that waits for nothing, where each
        instruction is begun for itself."""
        each = self._each(arch, resident)
        return each / (each + _WAITED)

    def _each(self, arch: Arch, resident: int) -> float:
        """Warps of each scheduler."""
        return resident * self.threads / (_SCHEDULERS * arch.warp)


def overlapped(parts: Sequence[float], seen: float) -> float:
    """Cycles of what goes on at a time; `seen`: how much of what is shorter does not hide behind
    the longest."""
    longest = max(parts)
    return longest + seen * (sum(parts) - longest)


def stored(rows: int, columns: int) -> float:
    """Cycles to write a tile of sums."""
    return rows * columns * SUM_BYTES / FETCHED_BYTES
