"""Four warps together: Hopper's tensor cores, which read shared memory by themselves (``wgmma``).

How a descriptor names a matrix in shared memory, and which thread holds which sum: NVIDIA, Parallel
Thread Execution ISA, "Asynchronous Warpgroup Level Matrix Instructions".

A GPU multiplies beside the threads until they wait for it. Here it is done at once, and what it
reads is watched until then. What threads wrote for it has to be fenced, for it comes to shared
memory another way than they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import EmulatorError, Race, Unsupported
from tunefarm.measure.cuda.emulator.memory import ALL_OF_A_WARP, PIECE, WARP
from tunefarm.measure.cuda.emulator.ptx import SIZES, Instruction, Literal, Vector
from tunefarm.measure.cuda.emulator.values import UNSIGNED, Array, spread
from tunefarm.measure.cuda.emulator.warps import multiplied, parts_of, shape_of

Step = Callable[[Any], None]
GROUP, ROWS = 128, 64
"""Threads of a group, and rows that it multiplies."""
_STEP_BYTES = 32
"""Of each line of an operand, that one instruction reads."""
_WIDTHS = {1: 128, 2: 64, 3: 32}
"""Bytes of the lines that a descriptor's modes are for."""


@dataclass
class _Reading:
    """What one instruction reads: `left` says of which groups (blocks, groups) it still does;
    `since`: groups of instructions that each had closed before; `pieces`: numbers of the pieces of
    shared memory, (blocks, groups, elements)."""

    left: Array
    since: Array
    pieces: Array


class Groups:
    """Of one `machine.Run`: what its tensor cores are at."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._closed = np.zeros((run.blocks, -(-run.threads // GROUP)), np.int32)
        self._reading: list[_Reading] = []
        self._busy = np.zeros(len(run.shared.bytes) // PIECE, np.int64)
        self._unfenced = np.zeros(run.shape, bool)

    def wrote(self, threads: Array) -> None:
        """These threads' own writes to shared memory are there."""
        self._unfenced = self._unfenced | threads

    def fence(self) -> None:
        """What a thread wrote is there for the tensor cores too."""
        self._unfenced = self._unfenced & ~self._run.active()

    def writes(self, places: Array) -> None:
        """At what begins there, and ends within the same piece.

        Raises:
            Race: something is read there that nobody has waited for.
        """
        if self._reading and self._busy[places // PIECE].any():
            raise Race("write to shared memory that tensor cores still read")

    def reads(self, here: Array, places: Array) -> None:
        """
        Raises:
            Race: a thread of the block has written without a fence.
        """
        if (self._unfenced.any(-1) & here.any(-1)).any():
            raise Race("tensor cores read shared memory that was written without a fence")
        pieces = places.reshape(*here.shape, -1) // PIECE
        self._may_use(here, pieces)
        self._reading.append(_Reading(here.copy(), self._closed.copy(), pieces))
        self._busy += self._counted(pieces[here])

    def _counted(self, pieces: Array) -> Array:
        return np.bincount(pieces.reshape(-1), minlength=len(self._busy))

    def _used(self, here: Array, pieces: Array) -> None:
        """What these groups' tensor cores have read: noted as the groups' first warps'."""
        if self._run.barriers.used and here.any():
            block, group = np.nonzero(here)
            self._run.engine.has_used(block[:, None], _first(group)[:, None], pieces[here])

    def _may_use(self, here: Array, pieces: Array) -> None:
        """All four warps of a group have to know that it is there."""
        if self._run.barriers.used and here.any():
            block, group = np.nonzero(here)
            seen = self._run.barriers.seen[block[:, None], _warps_of(group)].min(1)
            self._run.engine.may_use(seen, pieces[here])

    def close(self, here: Array) -> None:
        self._closed = self._closed + here

    def wait(self, here: Array, but: int) -> None:
        for one in self._reading:
            done = one.left & here & (one.since < self._closed - but)
            self._busy -= self._counted(one.pieces[done])
            self._used(done, one.pieces)
            one.left = one.left & ~done
        self._reading = [one for one in self._reading if one.left.any()]
        block, group = np.nonzero(here)
        self._run.barriers.group_met(block, _warps_of(group))


def _first(group: Array) -> Array:
    """Of its warps."""
    return group * (GROUP // WARP)


def _warps_of(group: Array) -> Array:
    return _first(group)[:, None] + np.arange(GROUP // WARP)


def _by_group(run: Any, value: Array) -> Array:
    """(blocks, groups, threads of a group); the last may be none, and lack some."""
    if not (lacking := -run.threads % GROUP):
        return spread(value, run.shape).reshape(run.blocks, -1, GROUP)
    full = np.zeros((run.blocks, run.threads + lacking), value.dtype)
    full[:, : run.threads] = value
    return full.reshape(run.blocks, -1, GROUP)


def _by_thread(run: Any, value: Array) -> Array:
    """The contrary."""
    return value.reshape(run.blocks, -1)[:, : run.threads]


def _together(run: Any) -> Array:
    """Which groups are here, (blocks, groups).

    Raises:
        EmulatorError: of one only some threads are.
    """
    active = _by_group(run, run.active())
    whole = active.all(-1)
    if (active.any(-1) != whole).any():
        raise EmulatorError("only some threads of a group come to what all do together")
    return whole


def make(translator: Any, instruction: Instruction) -> Step:
    """
    Raises:
        Unsupported: what is not known.
    """
    what = instruction.parts[1]
    if what == "fence":
        return lambda run: None  # registers are done with in order
    if what == "commit_group":
        return lambda run: run.groups.close(_together(run))
    if what == "wait_group":
        (number,) = instruction.operands
        if not isinstance(number, Literal):
            raise Unsupported(instruction.text)
        but = int(number.text)
        return lambda run: run.groups.wait(_together(run), but)
    if what == "mma_async" and "sp" not in instruction.parts:
        return _multiply(translator, instruction)
    raise Unsupported(instruction.text)


def sum_places(columns: int) -> tuple[Array, Array]:
    """Rows and columns of a group's sums, by (thread, register)."""
    thread, register = np.ogrid[:GROUP, : columns // 2]
    row = thread // WARP * 16 + thread % WARP // 4 + register // 2 % 2 * 8
    column = register // 4 * 8 + thread % 4 * 2 + register % 2
    shape = (GROUP, columns // 2)
    return np.broadcast_to(row, shape), np.broadcast_to(column, shape)


def _multiply(translator: Any, instruction: Instruction) -> Step:
    parts = instruction.parts
    m, n, k = shape_of(parts)
    to, of, other = parts[-3:]
    target, left, right, said, *numbers = instruction.operands
    flags = [int(one.text) for one in numbers if isinstance(one, Literal)]
    if (
        m != ROWS
        or of != other
        or len(flags) != len(numbers)
        or any(scale != 1 for scale in flags[:2])
        or to not in ("f32", "s32")
        or k * SIZES[of] != _STEP_BYTES
    ):
        raise Unsupported(instruction.text)
    held = isinstance(left, Vector)  # rows of the left operand in registers, which lie one way
    turned = (0, *flags[2:], 0)[:2] if held else (*flags[2:], 0, 0)[:2]
    registers = parts_of(target)
    sums = [translator.value(one, "b32") for one in registers]
    puts = [translator.put(one, "b32") for one in registers]
    b = translator.value(right, "b64")
    lefts_of = (
        _held(translator, left, k, of) if held else _named(translator, left, k, of, turned[0])
    )
    adds = translator.value(said, "pred")
    row, column = sum_places(n)

    def step(run: Any) -> None:
        here = _together(run)
        lefts = lefts_of(run, here)
        rights = _matrix(run, here, b(run), (n, k), SIZES[of], turned[1])
        total = np.zeros((*here.shape, ROWS, n), np.uint32)
        added = _by_group(run, adds(run))
        for number, value in enumerate(sums):
            total[..., row[:, number], column[:, number]] = np.where(
                added, _by_group(run, value(run)), np.uint32(0)
            )
        made = multiplied(of, lefts, np.swapaxes(rights, -1, -2), to, total, to)
        for number, put in enumerate(puts):
            put(run, _by_thread(run, made[..., row[:, number], column[:, number]]))

    return step


def _named(
    translator: Any, operand: Any, terms: int, of: str, turned: int
) -> Callable[[Any, Array], Array]:
    """The left operand where a descriptor says."""
    descriptor = translator.value(operand, "b64")
    return lambda run, here: _matrix(run, here, descriptor(run), (ROWS, terms), SIZES[of], turned)


def _held(translator: Any, operand: Any, terms: int, of: str) -> Callable[[Any, Array], Array]:
    """The left operand in registers: each warp's sixteen rows, as it would multiply them alone.

    Raises:
        Unsupported: of what is not in 16 or 32 bits.
    """
    registers = [translator.value(one, "b32") for one in parts_of(operand)]
    if SIZES[of] not in (2, 4) or len(registers) != 4:
        raise Unsupported(f"{len(registers)} registers of {of} in a group")
    kind, each = UNSIGNED[SIZES[of]], 4 // SIZES[of]
    thread = np.arange(GROUP)
    row, term = thread // WARP * 16 + thread % WARP // 4, thread % 4 * each

    def lefts(run: Any, here: Array) -> Array:
        made = np.zeros((*here.shape, ROWS, terms), kind)
        for number, value in enumerate(registers):
            bits = _by_group(run, value(run)).astype(np.uint32)
            places = row + number % 2 * 8, term + number // 2 * 4 * each
            for part in range(each):
                made[..., places[0], places[1] + part] = (bits >> np.uint32(16 * part)).astype(kind)
        return made

    return lefts


def _matrix(
    run: Any, here: Array, descriptor: Array, shape: tuple[int, int], size: int, turned: int
) -> Array:
    """The bits of an operand that a descriptor names, (blocks, groups, lines, terms)."""
    said = _by_group(run, descriptor)
    if (said != said[..., :1])[here].any():
        raise EmulatorError("the threads of a group name different matrices")
    place = said[..., 0].astype(np.uint64)
    modes = {int(one) for one in (place[here] >> np.uint64(62)).flat}
    if len(modes) != 1 or not modes <= _WIDTHS.keys():
        raise Unsupported("matrices whose pieces keep their order")
    width = _WIDTHS[modes.pop()]
    if ((place >> np.uint64(49)) & np.uint64(7))[here].any():
        raise Unsupported("a matrix whose pattern begins elsewhere")
    start, leading, stride = (
        ((place >> np.uint64(bit)) & np.uint64(0x3FFF)).astype(np.int64)[..., None, None] * 16
        for bit in (0, 16, 32)
    )
    line, term = np.ogrid[: shape[0], : shape[1]]
    if turned:
        if size != 2:
            raise Unsupported("a turned matrix of what is not in 16 bits")
        of = width // size
        offset = line % of * size + line // of * leading + term % 8 * width + term // 8 * stride
    else:
        offset = line // 8 * stride + line % 8 * width + term * size
    address = start + offset
    address = address ^ ((address >> 7 & (width // 16 - 1)) << 4)
    mask = np.broadcast_to(here[..., None, None], address.shape)
    memory, offsets = run.window("shared", address, None if here.all() else mask)
    places = np.broadcast_to(
        memory.checked(offsets, size, None if here.all() else mask), address.shape
    )
    if run.watches:
        _watch(run, here, offsets, places, size)
    return memory.read(places, UNSIGNED[size])


def _watch(run: Any, here: Array, offsets: Array, places: Array, size: int) -> None:
    warp = np.broadcast_to(np.arange(here.shape[1])[None, :, None, None] * 4, offsets.shape)
    moment = np.broadcast_to(_by_group(run, run.moment)[..., :1, None], offsets.shape)
    active = np.broadcast_to(here[..., None, None], offsets.shape)
    all_of_it = np.full(int(active.sum()), ALL_OF_A_WARP, np.int32)
    of_warp, when = warp[active].astype(np.int32), moment[active]
    run.shared.watch.reads(places[active], size, all_of_it, of_warp, when)
    run.groups.reads(here, places)
