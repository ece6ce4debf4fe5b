"""Instructions that the threads of a warp do together: votes, shuffles, matrices.

Where which element of a matrix lies: NVIDIA, Parallel Thread Execution ISA, "Matrix Fragments for
mma.m16n8k..". For ``wmma`` it is nobody's business, and it is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.faults import EmulatorError, IllegalAddress, Unsupported
from tunefarm.measure.cuda.emulator.memory import ALL_OF_A_WARP, PIECE, WARP
from tunefarm.measure.cuda.emulator.operations import COMBINED
from tunefarm.measure.cuda.emulator.ptx import SIZES, Instruction, Operand, Pair, Vector, space_of
from tunefarm.measure.cuda.emulator.values import UNSIGNED, Array, spread, to_half, unpacked

Step = Callable[[Any], None]
_LANE = np.arange(WARP)
ALIGNED = 16
"""Bytes, of which where matrices begin, and from line to line, are multiples."""
UNKNOWN = 0xFFFFFFFF


def parts_of(operand: Operand) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector):
        raise Unsupported(str(operand))
    return operand.parts


def by_warp(run: Any, value: Array) -> Array:
    """(blocks, warps, threads of a warp)."""
    return spread(value, run.shape).reshape(run.blocks, -1, WARP)


def together(run: Any) -> Array | None:
    """Which warps are here, (blocks, warps); None for all.

    Raises:
        EmulatorError: of one only some threads are.
    """
    if run.mask is None:
        return None
    active = by_warp(run, run.mask)
    whole = active.all(-1)
    if (active.any(-1) != whole).any():
        raise EmulatorError("only some threads of a warp come to what all do together")
    return whole


def _activemask(translator: Any, instruction: Instruction) -> Step:
    put = translator.put(instruction.operands[0], "b32")

    def step(run: Any) -> None:
        put(run, _spread(run, _ballot(run, np.bool_(True))))

    return step


def _ballot(run: Any, said: Array) -> Array:
    active = run.active() & said
    return (by_warp(run, active) * (np.uint64(1) << _LANE.astype(np.uint64))).sum(-1)


def _spread(run: Any, value: Array) -> Array:
    """Each warp's value, to all of its threads."""
    return np.repeat(value.astype(np.uint32), WARP, -1)


def _vote(translator: Any, instruction: Instruction) -> Step:
    target, given, *_ = instruction.operands
    said, mode = translator.value(given, "pred"), instruction.parts[2]
    put = translator.put(target, "b32" if mode == "ballot" else "pred")

    def step(run: Any) -> None:
        here, yes = _ballot(run, np.bool_(True)), _ballot(run, said(run))
        if mode == "ballot":
            put(run, _spread(run, yes))
            return
        made = {"all": yes == here, "any": yes != 0, "uni": (yes == here) | (yes == 0)}[mode]
        put(run, np.repeat(made, WARP, -1))

    return step


def _shfl(translator: Any, instruction: Instruction) -> Step:
    target, source, other, limits, *_ = instruction.operands
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    put = translator.put(first, "b32")
    told = translator.put(second, "pred") if second is not None else None
    value, by, how = (translator.value(one, "b32") for one in (source, other, limits))
    mode = instruction.parts[2]

    def step(run: Any) -> None:
        lanes = by_warp(run, value(run))
        distance, clamp = by_warp(run, by(run)).astype(int) & 31, by_warp(run, how(run)).astype(int)
        segment, most = clamp >> 8 & 31, clamp & 31
        top = (_LANE & segment) | (most & ~segment)
        if mode == "up":
            wanted, inside = _LANE - distance, _LANE - distance >= top
        elif mode == "down":
            wanted, inside = _LANE + distance, _LANE + distance <= top
        elif mode == "bfly":
            wanted = _LANE ^ distance
            inside = wanted <= top
        else:
            wanted = (_LANE & segment) | (distance & ~segment)
            inside = wanted <= top
        of = np.where(inside, wanted, _LANE) & (WARP - 1)
        found = np.take_along_axis(lanes, of, -1)
        # Of a thread that is not there nobody knows what comes.
        there = np.take_along_axis(by_warp(run, run.active()), of, -1)
        put(run, np.where(there, found, np.uint32(UNKNOWN)).reshape(run.shape))
        if told is not None:
            told(run, np.broadcast_to(inside, lanes.shape).reshape(run.shape))

    return step


def _redux(translator: Any, instruction: Instruction) -> Step:
    target, source, _ = instruction.operands
    kind, how = instruction.parts[-1], instruction.parts[2]
    put, value = translator.put(target, kind), translator.value(source, kind)
    combine = COMBINED[how]

    def step(run: Any) -> None:
        together(run)
        lanes = by_warp(run, value(run))
        put(run, np.repeat(combine.reduce(lanes, -1, dtype=lanes.dtype), WARP, -1))

    return step


def _bar(translator: Any, instruction: Instruction) -> Step:
    """bar.warp.sync"""
    return lambda run: run.warps_met()


# ------------------------------------------------------------------------------------- wmma


def shape_of(parts: tuple[str, ...]) -> tuple[int, int, int]:
    text = next(part for part in parts if part.startswith("m") and part[1:2].isdigit())
    m, _, rest = text[1:].partition("n")
    n, _, k = rest.partition("k")
    return int(m), int(n), int(k)


def _wmma(translator: Any, instruction: Instruction) -> Step:
    make = {"load": _wmma_load, "store": _wmma_store, "mma": _wmma_mma}[instruction.parts[1]]
    return make(translator, instruction)


def _wmma_places(
    translator: Any, instruction: Instruction, place: Any, stride: Any, rows: int, columns: int
) -> Callable[[Any], Array]:
    """Addresses of a matrix's elements, by (block, warp, row, column)."""
    kind = instruction.parts[-1]
    size = SIZES[kind]
    by_rows = instruction.parts[5] == "row"
    address, leading = translator.address(place), translator.value(stride, "u32")
    row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]

    def places(run: Any) -> Array:
        start = by_warp(run, address(run))
        if (start != start[..., :1]).any() and run.mask is None:
            raise EmulatorError("the threads of a warp name different matrices")
        step = by_warp(run, leading(run))[..., :1, None].astype(np.int64)
        here = together(run)
        for name, number in (("begins", start[..., 0]), ("lines lie", step[..., 0, 0] * size)):
            wrong = number.astype(np.int64) % ALIGNED != 0
            if (wrong if here is None else wrong & here).any():
                raise IllegalAddress(f"a matrix {name} at no multiple of {ALIGNED}")
        offset = row * step + column if by_rows else row + column * step
        return start[..., :1, None].astype(np.int64) + offset * size

    return places


def _access(run: Any, space: str, address: Array, size: int, writes: bool) -> tuple[Any, Array]:
    """Memory and places of elements by (block, warp, row, column); race-checked by warp."""
    here = together(run)
    mask = None if here is None else np.broadcast_to(here[..., None, None], address.shape)
    memory, offsets = run.window(space, address, mask)
    places = np.broadcast_to(memory.checked(offsets, size, mask), offsets.shape)
    if memory is run.shared and run.watches:
        warp = np.broadcast_to(np.arange(offsets.shape[1])[None, :, None, None], offsets.shape)
        moment = run.moment.reshape(run.blocks, -1, WARP)[..., :1, None]
        moment = np.broadcast_to(moment, offsets.shape)
        active = np.ones(offsets.shape, bool) if mask is None else mask
        note = run.shared.watch.writes if writes else run.shared.watch.reads
        all_of_it = np.full(int(active.sum()), ALL_OF_A_WARP, np.int32)
        note(places[active], size, all_of_it, warp[active].astype(np.int32), moment[active])
        if run.barriers.used:
            block = np.broadcast_to(np.arange(run.blocks)[:, None, None, None], offsets.shape)
            pieces = places[active] // PIECE
            run.engine.touches(block[active], warp[active], pieces, writes)
    return memory, places


def _wmma_load(translator: Any, instruction: Instruction) -> Step:
    target, place, stride = instruction.operands
    parts = instruction.parts
    m, n, k = shape_of(parts)
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n)}[parts[2]]
    kind, space = parts[-1], space_of(parts)
    places = _wmma_places(translator, instruction, place, stride, rows, columns)
    put = _fragment_put(translator, target, kind)

    def step(run: Any) -> None:
        memory, at = _access(run, space, places(run), SIZES[kind], writes=False)
        put(run, memory.read(at, UNSIGNED[SIZES[kind]]))

    return step


def _wmma_store(translator: Any, instruction: Instruction) -> Step:
    place, source, stride = instruction.operands
    parts = instruction.parts
    m, n, _ = shape_of(parts)
    kind, space = parts[-1], space_of(parts)
    places = _wmma_places(translator, instruction, place, stride, m, n)
    fragment = _fragment(translator, source, kind, m, n)

    def step(run: Any) -> None:
        memory, at = _access(run, space, places(run), SIZES[kind], writes=True)
        here = together(run)
        bits = fragment(run)
        if here is None:
            memory.write(at, bits)
        else:
            memory.write(at[here], bits[here])

    return step


def _wmma_mma(translator: Any, instruction: Instruction) -> Step:
    target, left, right, sums = instruction.operands
    parts = instruction.parts
    m, n, k = shape_of(parts)
    kinds = parts[parts.index(f"m{m}n{n}k{k}") + 1 :]
    # Of float16 operands the types are not said, only the sums'.
    of = kinds[1] if len(kinds) == 4 else "f16"
    to, since = kinds[0], kinds[-1]
    a = _fragment(translator, left, of, m, k)
    b = _fragment(translator, right, of, k, n)
    c = _fragment(translator, sums, since, m, n)
    put = _fragment_put(translator, target, to)

    def step(run: Any) -> None:
        together(run)
        put(run, multiplied(of, a(run), b(run), since, c(run), to))

    return step


def multiplied(of: str, a: Array, b: Array, since: str, c: Array, to: str) -> Array:
    """Bits of a b + c; sums of whole numbers are exact, others in float32."""
    if of in ("s8", "u8"):
        signed = np.int8 if of == "s8" else np.uint8
        product = a.view(signed).astype(np.float64) @ b.view(signed).astype(np.float64)
        return (product.astype(np.int64) + c.view(np.int32)).astype(np.int32).view(np.uint32)
    total = unpacked(of, a) @ unpacked(of, b)
    total = total + (c.view(np.float32) if since == "f32" else unpacked(since, c))
    return to_half(total) if to == "f16" else total.view(np.uint32)


def _fragment_put(translator: Any, target: Any, kind: str) -> Callable[[Any, Array], None]:
    """A matrix's bits, (blocks, warps, rows, columns), into the registers of its warp: in order,
    an equal number of elements each; registers that this leaves over repeat them."""
    puts = [translator.put(one, "b32") for one in parts_of(target)]
    each = 4 // SIZES[kind]

    def put(run: Any, bits: Array) -> None:
        count = prod(bits.shape[-2:]) // WARP // each
        words = np.ascontiguousarray(bits).reshape(run.blocks, -1, WARP, count, each)
        words = words.view(np.uint32)[..., 0]
        for number, one in enumerate(puts):
            one(run, words[..., number % count].reshape(run.shape))

    return put


def _fragment(
    translator: Any, source: Any, kind: str, rows: int, columns: int
) -> Callable[[Any], Array]:
    """The contrary."""
    count = rows * columns // WARP * SIZES[kind] // 4
    values = [translator.value(one, "b32") for one in parts_of(source)[:count]]
    dtype = UNSIGNED[SIZES[kind]]

    def fragment(run: Any) -> Array:
        words = np.stack([by_warp(run, value(run)) for value in values], -1)
        bits = np.ascontiguousarray(words).view(dtype)
        return bits.reshape(run.blocks, -1, rows, columns)

    return fragment


# ----------------------------------------------------------------------------- mma, ldmatrix


def mma_places(rows: int, depth: int, each: int) -> tuple[Array, Array]:
    """Where a register's elements of the left operand of ``mma.m16n8k..`` lie.

    Args:
        each: elements in a register.

    Returns:
        Rows and columns by (thread, register, element); for the right operand, whose columns are
        the left one's rows, with 8 of them.
    """
    count = rows * depth // WARP // each
    lane, register, element = np.ogrid[:WARP, :count, :each]
    row = lane // 4 + (8 * (register % 2) if rows == 16 else 0)
    half = register // 2 if rows == 16 else register
    column = (lane % 4) * each + element + half * 4 * each
    shape = (WARP, count, each)
    return np.broadcast_to(row, shape), np.broadcast_to(column, shape)


def sum_places() -> tuple[Array, Array]:
    """Rows and columns of the sums' elements, by (thread, element); there are four each."""
    lane, element = np.ogrid[:WARP, :4]
    row, column = lane // 4 + 8 * (element // 2), (lane % 4) * 2 + element % 2
    return np.broadcast_to(row, (WARP, 4)), np.broadcast_to(column, (WARP, 4))


def _mma(translator: Any, instruction: Instruction) -> Step:
    parts = instruction.parts
    m, n, k = shape_of(parts)
    kinds = parts[-4:]
    to, of, _, since = kinds
    if (m, n) != (16, 8) or "sp" in parts or to not in ("f32", "s32") or to != since:
        raise Unsupported(instruction.text)
    target, left, right, sums = instruction.operands
    each = 4 // SIZES[of]
    a = _scattered(translator, left, of, *mma_places(16, k, each), (16, k))
    b = _scattered(translator, right, of, *mma_places(8, k, each), (8, k))
    row, column = sum_places()
    c = [translator.value(one, "b32") for one in parts_of(sums)]
    puts = [translator.put(one, "b32") for one in parts_of(target)]

    def step(run: Any) -> None:
        together(run)
        total = np.zeros((run.blocks, run.threads // WARP, 16, 8), np.uint32)
        for number, value in enumerate(c):
            total[..., row[:, number], column[:, number]] = by_warp(run, value(run))
        made = multiplied(of, a(run), np.swapaxes(b(run), -1, -2), since, total, to)
        for number, put in enumerate(puts):
            put(run, made[..., row[:, number], column[:, number]].reshape(run.shape))

    return step


def _scattered(
    translator: Any, source: Any, kind: str, row: Array, column: Array, shape: tuple[int, int]
) -> Callable[[Any], Array]:
    """A matrix's bits out of registers whose elements lie at (`row`, `column`)."""
    values = [translator.value(one, "b32") for one in parts_of(source)]
    dtype = UNSIGNED[SIZES[kind]]

    def matrix(run: Any) -> Array:
        made = np.empty((run.blocks, run.threads // WARP, *shape), dtype)
        for number, value in enumerate(values):
            bits = np.ascontiguousarray(by_warp(run, value(run)))[..., None].view(dtype)
            made[..., row[:, number], column[:, number]] = bits
        return made

    return matrix


def _ldmatrix(translator: Any, instruction: Instruction) -> Step:
    """Of rows of eight halves whose addresses threads 8i to 8i + 7 name, for matrix i."""
    target, place = instruction.operands
    parts = instruction.parts
    if "m8n8" not in parts or parts[-1] != "b16":
        raise Unsupported(instruction.text)
    turned = "trans" in parts
    puts = [translator.put(one, "b32") for one in parts_of(target)]
    address = translator.address(place)
    lane = np.arange(WARP)
    columns = np.stack([lane % 4 * 2, lane % 4 * 2 + 1], -1)

    def step(run: Any) -> None:
        rows = by_warp(run, address(run))[..., : 8 * len(puts), None].astype(np.int64)
        here = together(run)
        wrong = rows % ALIGNED != 0
        if (wrong if here is None else wrong & here[..., None, None]).any():
            raise IllegalAddress(f"rows of a matrix begin at no multiple of {ALIGNED}")
        memory, at = _access(run, "shared", rows + 2 * np.arange(8), 2, writes=False)
        halves = memory.read(at, np.uint16).reshape(run.blocks, -1, len(puts), 8, 8)
        if turned:
            halves = np.swapaxes(halves, -1, -2)
        for number, put in enumerate(puts):
            pair = np.ascontiguousarray(halves[:, :, number][:, :, lane[:, None] // 4, columns])
            put(run, pair.view(np.uint32)[..., 0].reshape(run.shape))

    return step


KNOWN: dict[str, Callable[[Any, Instruction], Step]] = {
    "activemask": _activemask,
    "vote": _vote,
    "shfl": _shfl,
    "redux": _redux,
    "bar": _bar,
    "barrier": _bar,
    "wmma": _wmma,
    "mma": _mma,
    "ldmatrix": _ldmatrix,
}
