"""Hopper's copy engine (``cp.async.bulk.tensor``): boxes of tensors, from everybody's memory to a
block's, told of by maps that the host makes.

What a map says: NVIDIA, CUDA Driver API, ``cuTensorMapEncodeTiled``; how pieces change places:
Parallel Thread Execution ISA, "Swizzling modes". What is in a map's 128 bytes is nobody's business,
and chosen here.

A GPU moves them at any time until the barrier's phase is over. Here it is done at once; who reads
or writes there without having seen that phase end is told, and so is a copy over what somebody has
read of whom the asking thread does not know it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import EmulatorError, IllegalAddress, Race, Unsupported
from tunefarm.measure.cuda.emulator.memory import GLOBAL, PIECE, WARP
from tunefarm.measure.cuda.emulator.ptx import Instruction, Vector
from tunefarm.measure.cuda.emulator.values import Array, to_tf32_even

Step = Callable[[Any], None]
MAP_BYTES = 128
_MAP = struct.Struct("<4s4B Q 5Q 4Q 5H")
_MAGIC = b"TMAP"
_BEGINS = 128
"""What a box in shared memory begins at a multiple of, in bytes."""
_WIDTHS = {0: 0, 1: 32, 2: 64, 3: 128}
"""Bytes of a line at most, by the driver's number of how pieces change places."""
_MOST_BOX = 256
_NO_BARRIER = -1


@dataclass(frozen=True)
class TensorMap:
    """Dimensions are innermost first; strides, of all but the first, in bytes. `rounds`: floats,
    whose fractions have ten bits when they are copied (``CU_TENSOR_MAP_DATA_TYPE_TFLOAT32``)."""

    size: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    rounds: bool = False

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: the driver makes no such map.
        """
        inner = self.box[0] * self.size
        width = _WIDTHS[self.swizzle]
        if (
            not 1 <= len(self.extents) <= 5
            or self.address % 16
            or any(one % 16 or one >= 1 << 40 for one in self.strides)
            or any(not 1 <= one <= 1 << 32 for one in self.extents)
            or any(not 1 <= one <= _MOST_BOX for one in self.box)
            or inner % 16
            or (width and inner > width)
        ):
            raise ValueError(f"no map of a tensor: {self}")

    def packed(self) -> bytes:
        def five(numbers: tuple[int, ...], count: int = 5) -> tuple[int, ...]:
            return (*numbers, *[0] * (count - len(numbers)))

        made = _MAP.pack(
            _MAGIC, self.size, len(self.extents), self.swizzle, self.rounds, self.address,
            *five(self.extents), *five(self.strides, 4), *five(self.box),
        )  # fmt: skip
        return made.ljust(MAP_BYTES, b"\0")


def unpacked(data: bytes) -> TensorMap:
    """
    Raises:
        EmulatorError: there is no map.
    """
    magic, size, rank, swizzle, rounds, address, *rest = _MAP.unpack(data[: _MAP.size])
    if magic != _MAGIC:
        raise EmulatorError("no map of a tensor is there")
    extents, strides, box = rest[:5], rest[5:9], rest[9:]
    sizes = tuple(extents[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank])
    return TensorMap(size, address, *sizes, swizzle, bool(rounds))


class Engine:
    """Of one `machine.Run`: which barrier, and which of its phases, says that what was copied to a
    piece of shared memory is there, and when each warp has used it last."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._barrier: Any = None

    def begin(self) -> None:
        """From the first barrier on, without which nothing is copied."""
        pieces = len(self._run.shared.bytes) // PIECE
        self._barrier = np.full(pieces, _NO_BARRIER, np.int16)
        self._phase = np.zeros(pieces, np.int32)
        self._used = np.zeros((pieces, self._run.threads // WARP), np.int32)
        self._kept = np.zeros(pieces, bool)

    def keep(self, places: Array) -> None:
        """Barriers lie there, and nothing else."""
        self._kept[places // PIECE] = True

    def fetch(
        self,
        target: Array,
        map_: Array,
        corner: list[Array],
        barrier: Array,
        ranks: Array | None = None,
    ) -> None:
        """A box each, by the threads that are here.

        Args:
            ranks: bits of the blocks of a cluster that get it, each at the same place; its own
                alone where there are none.

        Raises:
            Race: somebody may still read there.
        """
        run = self._run
        _, offsets = run.window("shared", target, run.mask)
        offsets = np.broadcast_to(offsets, run.shape)
        places = np.broadcast_to(run.shared.checked(offsets, PIECE, run.mask), run.shape)
        maps = np.broadcast_to(map_, run.shape)
        corners = [np.broadcast_to(one, run.shape).astype(np.int64) for one in corner]
        to_whom = None if ranks is None else np.broadcast_to(ranks, run.shape)
        stride = len(run.shared.bytes) // run.blocks
        for block, thread, _, number in zip(*run.barriers.here(barrier), strict=True):
            told = unpacked(run.parameter(int(maps[block, thread])))
            at = tuple(int(one[block, thread].astype(np.int32)) for one in corners)
            content = self._content(told, at)
            mask = None if to_whom is None else int(to_whom[block, thread])
            for whose in self._receivers(block, mask):
                place = places[block, thread] + (whose - block) * stride
                run.barriers.known(*np.array([[block], [thread // WARP], [whose], [number]]))
                run.barriers.counts_bytes(whose, number)
                moved = self._pieces(place, content.size)
                self._may_write(block, thread // WARP, whose, moved)
                self._write(told, content, int(offsets[block, thread]), place)
                self._barrier[moved] = number
                self._phase[moved] = run.barriers.phases[whose, number]
                run.barriers.bytes_came(whose, number, content.size)

    def _receivers(self, block: int, mask: int | None) -> list[int]:
        """Blocks that a copy goes to.

        Raises:
            EmulatorError: there is no such block, or it has ended.
        """
        if mask is None:
            return [block]
        cluster = self._run.cluster
        ranks = [rank for rank in range(16) if mask >> rank & 1]
        first = block // cluster * cluster
        if (
            not ranks
            or ranks[-1] >= cluster
            or not self._run.alive[first + np.array(ranks)].any(1).all()
        ):
            raise EmulatorError(f"a copy for blocks {mask:#x} of a cluster of {cluster}")
        return [first + rank for rank in ranks]

    def _content(self, told: TensorMap, corner: tuple[int, ...]) -> Array:
        """A box's bytes, outermost first; zeros beyond the tensor's ends."""
        if len(corner) != len(told.box):
            raise EmulatorError("a corner with other dimensions than the map")
        place = np.zeros(told.box[::-1], np.int64)
        inside = np.ones(told.box[::-1], bool)
        for n, (first, extent) in enumerate(zip(corner, told.extents, strict=True)):
            along = np.arange(first, first + told.box[n], dtype=np.int64)
            shape = [1] * len(told.box)
            shape[len(told.box) - 1 - n] = -1
            stride = told.strides[n - 1] if n else told.size
            place = place + (along * stride).reshape(shape)
            inside = inside & ((along >= 0) & (along < extent)).reshape(shape)
        memory = self._run.memory
        start = told.address - GLOBAL + place
        if inside.any():
            memory.checked(start, told.size, inside)
        start = np.where(inside, start, 0)[..., None] + np.arange(told.size)
        found = np.where(inside[..., None], memory.bytes[start], np.uint8(0)).reshape(-1)
        return to_tf32_even(found.view(np.float32)).view(np.uint8) if told.rounds else found

    def _write(self, told: TensorMap, content: Array, offset: int, place: int) -> None:
        """Pieces change places by the addresses that they would have."""
        run = self._run
        if offset % _BEGINS:
            raise IllegalAddress(f"a box at no multiple of {_BEGINS}")
        if content.size % PIECE:
            raise Unsupported("a box that is not made of sixteen bytes")
        last = np.full((run.blocks, 1), offset + content.size - PIECE, np.int64)
        run.shared.checked(last, PIECE, None)
        at = offset + np.arange(0, content.size, PIECE)
        width = _WIDTHS[told.swizzle]
        if width:
            if told.box[0] * told.size != width:
                raise Unsupported("lines that are shorter than the pattern")
            at = at ^ ((at >> 7 & (width // PIECE - 1)) << 4)
        run.shared.bytes[place - offset + at[:, None] + np.arange(PIECE)] = content.reshape(
            -1, PIECE
        )

    def _pieces(self, place: int, size: int) -> Array:
        """Numbers of those that a box fills: the pattern moves them within a line."""
        return np.arange(place // PIECE, (place + size) // PIECE)

    def _may_write(self, block: int, warp: int, whose: int, pieces: Array) -> None:
        run = self._run
        run.groups.writes(pieces * PIECE)
        if self._kept[pieces].any():
            raise Race("a copy over a barrier")
        if (self._used[pieces] > run.barriers.of_block(block, whose, warp)).any():
            raise Race("a copy over shared memory that others may still use")

    def touches(self, block: Array, warp: Array, pieces: Array, writes: bool) -> None:
        """Threads of these warps read or write there, one of each array's elements each.

        Raises:
            Race: it is copied there, and the warp has not seen that it is over.
        """
        if self._barrier is None:
            return
        if writes and self._kept[pieces].any():
            raise Race("a barrier is written over")
        self.may_use(self._run.barriers.seen[block, warp], pieces)
        self.has_used(block, warp, pieces)
        if writes:
            self._barrier[pieces] = _NO_BARRIER

    def may_use(self, seen: Array, pieces: Array) -> None:
        """`seen`: phases of each barrier that are over for each of the first of `pieces`'
        dimensions.

        Raises:
            Race: see `touches`.
        """
        if self._barrier is None:
            return
        barrier = self._barrier[pieces]
        row = np.arange(len(pieces)).reshape(-1, *[1] * (pieces.ndim - 1))
        over = seen[row, np.maximum(barrier, 0)]
        if ((barrier >= 0) & (over <= self._phase[pieces])).any():
            raise Race("shared memory that is being copied to, by who has not waited for it")

    def has_used(self, block: Array, warp: Array, pieces: Array) -> None:
        if self._barrier is not None:
            own = self._run.barriers.own(block, warp)
            self._used[pieces, warp] = self._run.barriers.clocks[block, warp, own]

    def ends(self) -> None:
        """Of the blocks.

        Raises:
            Race: nobody has waited for a copy, which may come when there are others.
        """
        if self._barrier is None:
            return
        pieces = np.flatnonzero(self._barrier >= 0)
        block = pieces // (len(self._barrier) // self._run.blocks)
        seen = self._run.barriers.seen.max(1)[block, self._barrier[pieces]]
        if (seen <= self._phase[pieces]).any():
            raise Race("the kernel ends before a copy that nobody has waited for")


def make(translator: Any, instruction: Instruction) -> Step:
    """
    Raises:
        Unsupported: what is not known.
    """
    parts = instruction.parts
    target, place, barrier, *rest = instruction.operands
    known = ["global", "mbarrier::complete_tx::bytes"]
    if rest:
        known.append("multicast::cluster")
    if parts[3] != "tensor" or [*parts[-len(known) :]] != known or len(rest) > 1:
        raise Unsupported(instruction.text)
    if not isinstance(place, Vector):
        raise Unsupported(instruction.text)
    map_, corner = place.parts
    assert isinstance(corner, Vector), instruction.text
    to, of = translator.address(target), translator.value(map_, "b64")
    corners = [translator.value(one, "b32") for one in corner.parts]
    counted = translator.address(barrier)
    ranks = [translator.value(one, "b16") for one in rest]
    return lambda run: run.engine.fetch(
        to(run), of(run), [one(run) for one in corners], counted(run), *(one(run) for one in ranks)
    )
