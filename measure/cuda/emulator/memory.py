"""Memory of a GPU of paper: everybody's, a block's, a thread's.

Addresses are whole numbers of 64 bits. Each kind of memory has a window of its own, so that an
address without a kind (a generic one) tells where it leads.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import IllegalAddress, Race
from tunefarm.measure.cuda.emulator.values import Array, spread

GLOBAL = 1 << 40
SHARED = 1 << 48
LOCAL = 1 << 49
PARAMETERS = 1 << 50
PARAMETER_BITS = 16
"""Of an address among a kernel's parameters, that are within one of them."""
RANK_BITS = 24
"""Of an address of 32 bits in shared memory, before which the block's rank in its cluster stands,
from one on; nought is the thread's own."""
_GRAIN = 256
"""What allocations begin at multiples of; between two lies as much that is nobody's."""
UNWRITTEN = 0xFF
"""Every byte that nobody has written: in all of floating point's types that is not a number."""


class Memory(ABC):
    """Bytes, read and written at places that were checked before."""

    bytes: Any

    @abstractmethod
    def checked(self, offsets: Array, size: int, mask: Array | None) -> Array:
        """Places in `bytes` of a window's `offsets`, `size` bytes at each; where nobody is active
        (`mask`, which has somebody), of one that is there.

        Raises:
            IllegalAddress: of an active thread, not there or not aligned.
        """

    def read(self, places: Array, dtype: Any) -> Array:
        """One value each."""
        return _view(self.bytes, dtype)[places // np.dtype(dtype).itemsize]

    def write(self, places: Array, values: Array) -> None:
        _view(self.bytes, values.dtype)[places // values.dtype.itemsize] = values

    def combine(self, places: Array, values: Array, how: Any) -> Array:
        """Each place with its values, one after another, by `how`, a function of NumPy's of two;
        what each found there."""
        view, index = _view(self.bytes, values.dtype), places // values.dtype.itemsize
        before = view[index]
        if len(np.unique(index)) == len(index):
            view[index] = how(before, values)
            return before
        for number, (one, value) in enumerate(zip(index, values, strict=True)):
            before[number] = view[one]
            view[one] = how(view[one], value)
        return before


def _view(data: Any, dtype: Any) -> Any:
    size = np.dtype(dtype).itemsize
    return data[: len(data) // size * size].view(dtype)


def _of_active(offsets: Array, mask: Array | None) -> Array:
    """`offsets`, where nobody is active that of somebody who is."""
    if mask is None:
        return offsets
    full = spread(offsets, mask.shape)
    return np.where(mask, full, full[mask][0])


def _aligned(offsets: Array, size: int, whose: str) -> None:
    if size > 1 and (offsets & (size - 1)).any():
        raise IllegalAddress(f"{size} bytes of {whose} at what is no multiple of {size}")


class Global(Memory):
    """What all blocks see; it outlives a launch.

    Args:
        capacity: in bytes; the system gives it where it is first touched.
    """

    def __init__(self, capacity: int) -> None:
        self.bytes = np.zeros(capacity, np.uint8)
        self._starts: list[int] = []
        self._sizes: list[int] = []

    def allocate(self, size: int) -> int:
        """The address of `size` bytes that nobody has written.

        Raises:
            MemoryError: there is no room for them.
        """
        needed, at, place = _whole(size), _GRAIN, 0
        for start, taken in zip(self._starts, self._sizes, strict=True):
            if start - at >= needed + _GRAIN:
                break
            at, place = start + _whole(taken) + _GRAIN, place + 1
        if at + needed > len(self.bytes):
            raise MemoryError(f"{size} bytes of a GPU of paper")
        self._starts.insert(place, at)
        self._sizes.insert(place, size)
        self.bytes[at : at + size] = UNWRITTEN
        return GLOBAL + at

    def free(self, address: int) -> None:
        """
        Raises:
            IllegalAddress: nothing was allocated there.
        """
        place = bisect.bisect_left(self._starts, address - GLOBAL)
        if place == len(self._starts) or self._starts[place] != address - GLOBAL:
            raise IllegalAddress(f"{address:#x} was not allocated")
        del self._starts[place], self._sizes[place]

    def span(self, address: int, size: int) -> Any:
        """Those bytes, as a view.

        Raises:
            IllegalAddress: they are not all of one allocation.
        """
        start = address - GLOBAL
        if not self._holds(start, start + size):
            raise IllegalAddress(f"{size} bytes at {address:#x} were not allocated")
        return self.bytes[start : start + size]

    def _holds(self, first: int, end: int) -> bool:
        place = bisect.bisect_right(self._starts, first) - 1
        return place >= 0 and end <= self._starts[place] + self._sizes[place]

    def checked(self, offsets: Array, size: int, mask: Array | None) -> Array:
        if not self._starts:
            raise IllegalAddress("nothing was allocated")
        offsets = _of_active(offsets, mask)
        if not self._holds(int(offsets.min()), int(offsets.max()) + size):
            starts = np.asarray(self._starts)
            ends = starts + np.asarray(self._sizes)
            place = np.searchsorted(starts, offsets, "right") - 1
            bad = (place < 0) | (offsets + size > ends[np.maximum(place, 0)])
            if bad.any():
                where = np.unravel_index(int(np.argmax(bad)), bad.shape)
                raise IllegalAddress(
                    f"{size} bytes at {GLOBAL + int(offsets[where]):#x} were not allocated"
                )
        _aligned(offsets, size, "global memory")
        return offsets


def _whole(size: int) -> int:
    return -(-max(size, 1) // _GRAIN) * _GRAIN


class Blocks(Memory):
    """The shared memory of blocks that run together, one after another in one array.

    Args:
        size: of a block's, in bytes.
        grain: bytes that are watched as one, see `Watch`.
    """

    def __init__(self, blocks: int, size: int, grain: int) -> None:
        self._size = size
        stride = -(-max(size, 1) // 128) * 128
        self.bytes = np.full(blocks * stride, UNWRITTEN, np.uint8)
        self._first = np.arange(blocks, dtype=np.int64) * stride
        self.watch = Watch(blocks * stride, grain)

    def checked(self, offsets: Array, size: int, mask: Array | None) -> Array:
        offsets = _of_active(offsets, mask)
        first, last = int(offsets.min()), int(offsets.max())
        if first < 0 or last + size > self._size:
            at = first if first < 0 else last
            raise IllegalAddress(f"{size} bytes at {at} of {self._size} of shared memory")
        _aligned(offsets, size, "shared memory")
        return self._first.reshape(-1, *[1] * (offsets.ndim - 1)) + offsets


class Threads(Memory):
    """The local memory of threads, one after another in one array."""

    def __init__(self, blocks: int, threads: int, size: int) -> None:
        self._size = size
        stride = -(-max(size, 1) // 16) * 16
        self.bytes = np.full(blocks * threads * stride, UNWRITTEN, np.uint8)
        order = np.arange(blocks * threads, dtype=np.int64) * stride
        self._first = order.reshape(blocks, threads)

    def checked(self, offsets: Array, size: int, mask: Array | None) -> Array:
        offsets = _of_active(offsets, mask)
        first, last = int(offsets.min()), int(offsets.max())
        if first < 0 or last + size > self._size:
            raise IllegalAddress(f"{size} bytes at {first} to {last} of {self._size} of a thread's")
        _aligned(offsets, size, "local memory")
        return self._first + offsets


WARP = 32
"""Threads of one."""
PIECE = 16
"""Bytes that are moved as a whole, from a multiple of as many on; no thread writes more at once."""
WARP_BITS = 24
"""Of a moment, that count the warp's own meetings."""
ALL_OF_A_WARP = -2
"""In a thread's place: an instruction that a warp does together."""
_NOBODY, _SEVERAL = -1, -3


class Watch:
    """Who wrote and read each part of shared memory last, and when: two threads of which one
    writes must have met at a barrier in between.

    A moment is the number of the block's barriers so far, and behind it that of the warp's own.

    Args:
        size: in bytes; grain: bytes that are watched as one.
    """

    def __init__(self, size: int, grain: int) -> None:
        self._grain = grain
        count = size // grain
        self._written, self._read = (_Last(count) for _ in range(2))

    def reads(self, places: Array, size: int, thread: Array, warp: Array, moment: Array) -> None:
        """
        Raises:
            Race: another thread has just written there.
        """
        for part in self._parts(places, size):
            if self._written.unordered(part, thread, warp, moment):
                raise Race("read of shared memory that another thread wrote without a barrier")
            self._read.join(part, thread, warp, moment)

    def writes(self, places: Array, size: int, thread: Array, warp: Array, moment: Array) -> None:
        """
        Raises:
            Race: another thread has just read or written there.
        """
        for part in self._parts(places, size):
            for last, did in ((self._written, "wrote"), (self._read, "read")):
                if last.unordered(part, thread, warp, moment):
                    raise Race(
                        f"write to shared memory that another thread {did} without a barrier"
                    )
            if self._written.replace(part, thread, warp, moment):
                raise Race("two threads write to one place of shared memory at once")

    def _parts(self, places: Array, size: int) -> list[Array]:
        first = places // self._grain
        return [first + number for number in range(max(1, size // self._grain))]


class _Last:
    """The last accesses of one kind, by part."""

    def __init__(self, count: int) -> None:
        self._thread, self._warp = (np.full(count, _NOBODY, np.int32) for _ in range(2))
        self._moment = np.full(count, -1, np.int64)

    def unordered(self, part: Array, thread: Array, warp: Array, moment: Array) -> bool:
        """Whether any of them may be at the same time as one of `thread` now."""
        then = self._moment[part]
        at_once = (then >> WARP_BITS) == (moment >> WARP_BITS)
        if not at_once.any():
            return False
        other = self._thread[part]
        together = (other == thread) | (other == ALL_OF_A_WARP) | (thread == ALL_OF_A_WARP)
        ordered = (self._warp[part] == warp) & (together | (then != moment))
        return bool((at_once & ~ordered).any())

    def replace(self, part: Array, thread: Array, warp: Array, moment: Array) -> bool:
        """Remember these alone; whether several were at one place at once."""
        several = False
        for held, now in ((self._thread, thread), (self._warp, warp)):
            held[part] = now
            several = several or bool((held[part] != now).any())
        self._moment[part] = moment
        return several

    def join(self, part: Array, thread: Array, warp: Array, moment: Array) -> None:
        """Remember these besides those that are not known to be over: of the same warp, those since
        it met last; of others, those since their block did."""
        then = self._moment[part]
        over = (then >> WARP_BITS) != (moment >> WARP_BITS)
        over = over | ((self._warp[part] == warp) & (then != moment))
        for held, now in ((self._thread, thread), (self._warp, warp)):
            before = held[part]
            value = np.where(over | (before == now), now, _SEVERAL)
            held[part] = value
            lost = held[part] != value
            held[part[lost]] = _SEVERAL
        self._moment[part] = moment
