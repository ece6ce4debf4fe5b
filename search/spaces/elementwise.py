"""Element by element: chains of activations and sums, copies, shuffles, transposes.

Whatever is computed on the way is computed where the result is stored, so that memory is read once
and written once. A transpose reads along one axis and writes along another: it is done in squares,
of which every line that is read or written stays in the first-level cache until it is used up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_walk

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.kernels.halo import has_room
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.kernels.streaming import may_stream, stream_stores
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Stage, conditions, stages_of, stride
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware
from tunefarm.search.spaces.tile import divisors

SCALAR, BRANCH, LINE = 1.5, 0.6, 16
"""Cycles of an element alone, of one that a condition decides on; elements of a cache line."""
SHORTEST = 4
"""Elements that are worth a vector."""
WHOLE = 32
"""Vectors of a last axis that is unrolled whole: conditions on it are then decided beforehand."""
SMALL = 64 << 10
"""Bytes that one thread may do alone. Timed alone a larger kernel may do well on one thread, for it
finds what it reads in its caches; in a network half of it is in the other cores'."""
MEMORY = 8.0
"""Bytes a cycle and core from beyond the caches: what binds whatever is large."""


@dataclass(frozen=True)
class Chain:
    """A kernel that is one elementwise stage, once everything before it is computed there.

    Attributes:
        inlined: names of the stages that are computed in the last one.
        last: the stage that is left, with all that it reads.
        flat: every operand lies like the result, so that all axes are one; never where there is
            room around the result.
        crossed: the axis along which an operand is contiguous that the last axis is not; None
            where there is none.
        run: elements of the last axis that in every operand lie together, or are one and the same:
            all of it, or those from each multiple of `run` to the next (heads that are joined).
        bytes: that are read and written.
    """

    inlined: tuple[str, ...]
    last: Stage
    flat: bool
    crossed: int | None
    run: int
    bytes: int

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.last.axes)

    @property
    def points(self) -> int:
        return self.last.points

    @property
    def single(self) -> bool:
        """There is but one axis to share out: all are one, or the others have a single element."""
        return self.flat or max(self.extents[:-1], default=1) == 1


@dataclass(frozen=True)
class Sweep(Way):
    """One point.

    Attributes:
        shares: parallel tasks; 1 for none, which for small kernels is fastest.
        lanes: elements of a vector of the last axis, 1 for none.
        unroll: vectors in the text.
        square: side of a transpose's squares, else 1.
        gather: a square is read across and written along, else read along and written across.
        stream: the result passes the caches by.
    """

    shares: int
    lanes: int
    unroll: int
    square: int
    gather: bool
    stream: bool = False

    def coordinates(self) -> tuple[float, ...]:
        counts = (self.shares, self.lanes, self.unroll, self.square)
        return (*(log2(count) for count in counts), 2.0 * self.gather, 2.0 * self.stream)


def chain_of(workload: Any) -> Chain | None:
    """The kernel as a chain, None where it reduces or cannot be one stage."""
    try:
        stages = stages_of(workload)
    except ValueError:
        return None
    if not stages or any(stage.reduces or not stage.direct for stage in stages):
        return None
    inlined = tuple(stage.name for stage in stages[:-1])
    schedule = replay.new_schedule(workload, seed=1)
    try:
        for name in inlined:
            schedule.compute_inline(schedule.get_sblock(name))
        (last,) = stages_of(schedule.mod)
    except Exception:  # several outputs, or a stage that cannot be inlined
        return None
    return _chain(inlined, last, has_room(workload))


def _chain(inlined: tuple[str, ...], last: Stage, room: bool) -> Chain | None:
    store = last.node.body
    axes = [variable.var for variable in last.node.iter_vars]
    if not axes or last.points < 2:
        return None
    loads: list[Any] = []
    structural_walk(store.value, (TensorLoad, loads.append))
    ranges = Analyzer()
    for variable in last.node.iter_vars:
        ranges.bind(variable.var, variable.dom)
    strides = [[stride(load, axis, ranges) for axis in axes] for load in loads]
    crossed = [
        place
        for of in strides
        for place, step in enumerate(of[:-1])
        if step == 1 and of[-1] not in (0, 1) and last.axes[place].extent > 1
    ]
    alike = not conditions(store) and all(
        structural_equal(list(load.indices), list(store.indices))
        and tuple(map(int, load.source.shape)) == last.shape
        for load in loads
    )
    return Chain(
        inlined,
        last,
        alike and not room,
        crossed[0] if crossed else None,
        _run(last, loads),
        _width(store.buffer) * last.points
        + sum(
            _width(load.source) * _read(last, load, of)
            for load, of in zip(loads, strides, strict=True)
        ),
    )


def _run(last: Stage, loads: list[Any]) -> int:
    """See `Chain.run`; 1 for none."""
    *outer, axis = last.node.iter_vars
    extent = last.axes[-1].extent
    part, place = (tirx.Var(name, "int64") for name in ("part", "place"))
    for run in reversed([d for d in divisors(extent) if d >= SHORTEST]):
        ranges = Analyzer()
        for variable in outer:
            ranges.bind(variable.var, variable.dom)
        ranges.bind(part, Range(0, extent // run))
        ranges.bind(place, Range(0, run))
        split = {axis.var: part * run + place}
        parts = [
            tirx.BufferLoad(load.source, [renamed(index, split) for index in load.indices])
            for load in loads
        ]
        if all(stride(load, place, ranges) in (0, 1) for load in parts):
            return run
    return 1


def _width(buffer: Any) -> int:
    """Bytes of an element."""
    return max(1, int("".join(c for c in str(buffer.dtype) if c.isdigit()) or 8) // 8)


def _read(last: Stage, load: Any, strides: list[int | None]) -> int:
    """Elements of an operand: what an axis does not move is read once, and no more than it has."""
    moved = prod(axis.extent for axis, s in zip(last.axes, strides, strict=True) if s != 0)
    return min(moved, prod(map(int, load.source.shape)))


def elementwise_space(workload: Any, target: Target) -> FewWays[Sweep] | None:
    """The space of `workload`, None where it is no chain."""
    if target.kind != "llvm":
        return None
    form, machine = chain_of(workload), hardware(target)
    sweeps = tuple(dict.fromkeys(_sweeps(form, machine))) if form is not None else ()
    if form is None or not sweeps:
        return None
    return FewWays(
        "elementwise",
        workload,
        sweeps,
        lambda one: _estimate(form, one, machine),
        lambda schedule, one: schedule_sweep(schedule, form, one),
        (
            log2(form.points),
            log2(form.bytes),
            log2(form.extents[-1]),
            float(form.flat),
            float(form.crossed is not None),
            float(form.last.branches),
            *machine.figures(),
        ),
    )


def _estimate(form: Chain, one: Sweep, machine: Hardware) -> float:
    """Seconds at 3 GHz: the elements, what a square misses of its cache lines, memory."""
    cores = min(one.shares, machine.cores)
    each = SCALAR / min(one.lanes, machine.lanes) * (1.0 + 0.5 / one.unroll)
    if form.last.branches and one.lanes * one.unroll != form.extents[-1]:
        each += BRANCH
    if form.crossed is not None:
        each += 0.5 + 4.0 * max(0, LINE - one.square) / LINE
    near = form.bytes < 2 * machine.cores * machine.l2
    # A plain store reads what it overwrites.
    written = _width(form.last.node.body.buffer) * form.points
    moved = form.bytes + (0 if near or one.stream else written)
    memory = moved / (machine.bytes_per_cycle if near else MEMORY)
    launch = LAUNCH + 50.0 * one.shares if one.shares > 1 else 0.0
    return (max(form.points * each, memory) / cores + launch) / 3e9


def _sweeps(form: Chain, machine: Hardware) -> Iterator[Sweep]:
    length = form.points if form.flat else form.extents[-1]
    widths = _widths(form.points if form.flat else form.run, machine)
    across = form.extents[form.crossed] if form.crossed is not None else 1
    squares = [s for s in (4, 8, 16, 32) if s <= min(across, length)] if across > 1 else []
    steps = [(lanes, unroll, 1, False) for lanes in widths or [1] for unroll in (1, 2, 4, 8)]
    if form.last.branches:
        whole = [(lanes, length // lanes) for lanes in widths if length // lanes <= WHOLE]
        steps += [(lanes, unroll, 1, False) for lanes, unroll in whole]
    if widths and form.last.branches:
        steps.append((1, 1, 1, False))
    if squares:
        steps = [(1, 1, square, gather) for square in squares for gather in (False, True)]
    parallels = (0, 1, 8) if form.bytes <= SMALL else (1, 8)
    for (lanes, unroll, square, gather), parallel in itertools.product(steps, parallels):
        if length % (lanes * unroll) == 0:
            shares = parallel * machine.cores or 1
            rest = form.points // (lanes * unroll if form.single else length)
            if shares == 1 or rest >= shares or form.crossed is not None:
                yield Sweep(shares, lanes, unroll, square, gather)
                if square == 1 and lanes == machine.lanes and may_stream(form.last):
                    yield Sweep(shares, lanes, unroll, square, gather, stream=True)


def _widths(length: int, machine: Hardware) -> list[int]:
    """Vectors that divide a run; where none of those does that fill at least half a register, odd
    ones as well: compilers split them, and still do better than element by element."""
    widths = [w for w in machine.widths() if length % w == 0]
    if max(widths, default=0) < machine.lanes // 2:
        widths += [w for w in range(machine.lanes, 3, -1) if length % w == 0 and w not in widths]
    return widths


def schedule_sweep(schedule: Any, form: Chain, one: Sweep) -> None:
    """Apply `one` to the unscheduled kernel in `schedule`."""
    for name in form.inlined:
        schedule.compute_inline(schedule.get_sblock(name))
    block = schedule.get_sblock(form.last.name)
    loops = schedule.get_loops(block)
    if one.square > 1:
        outer = _squares(schedule, form, one, loops)
    elif form.flat:
        steps, vectors, lane = schedule.split(_fuse(schedule, loops), [None, one.unroll, one.lanes])
        outer = [steps]
        _innermost(schedule, vectors, lane, one.stream)
    else:
        steps, vectors, lane = schedule.split(loops[-1], [None, one.unroll, one.lanes])
        outer = [*loops[:-1], steps] if form.single else loops[:-1]
        _innermost(schedule, vectors, lane, one.stream)
    if one.shares > 1:
        fused = _fuse(schedule, _to_share(schedule, outer, one.shares))
        extent = int(schedule.get(fused).extent)
        share, _ = schedule.split(fused, [min(one.shares, extent), None])
        schedule.parallel(share)


def _to_share(schedule: Any, loops: list[Any], shares: int) -> list[Any]:
    """The outermost loops that can be divided into so many shares by themselves, else all: where
    an element lies is easier to tell in loops that are as long as the axes."""
    extents = [int(schedule.get(loop).extent) for loop in loops]
    enough = (n for n in range(1, len(loops)) if prod(extents[:n]) % shares == 0)
    return loops[: next(enough, len(loops))]


def _fuse(schedule: Any, loops: list[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _innermost(schedule: Any, vectors: Any, lane: Any, stream: bool) -> None:
    schedule.vectorize(lane)
    schedule.unroll(vectors)
    if stream:
        stream_stores(schedule, lane)


def _squares(schedule: Any, form: Chain, one: Sweep, loops: list[Any]) -> list[Any]:
    """Split the crossed axis and the last one; the loops outside of a square."""
    assert form.crossed is not None
    far, across = schedule.split(loops[form.crossed], [None, one.square])
    steps, along = schedule.split(loops[-1], [None, one.square])
    rest = [loop for place, loop in enumerate(loops[:-1]) if place != form.crossed]
    inner = (across, along) if one.gather else (along, across)
    schedule.reorder(*rest, far, steps, *inner)
    return [*rest, far, steps]
