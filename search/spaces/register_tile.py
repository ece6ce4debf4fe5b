"""Register tiles: a reduction whose partial results never leave the vector registers.

For matrix products, convolutions (dense, grouped, depthwise), batched products and pooling. A tile
of `rows x vectors` results is accumulated in registers while the whole reduction runs over it; the
elementwise stages that follow are applied to the tile before it is stored. Constant operands are
repacked once so that a tile's columns are contiguous at every step of the reduction, others on
request. The structure is that of the kernels in Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.

One text serves every CPU: `Hardware` says how wide and how many the registers are, and a point
that would not fit them does not exist.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, inf, log2, prod
from typing import Any

from tvm.ir.expr import TensorLoad

from tunefarm.devices.neighbours import NARROW, PAIRS
from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.kernels.filling import WEIGHTS, fillable, filled
from tunefarm.search.kernels.neighbours import LENGTHS
from tunefarm.search.kernels.overlapping import overlappable, overlapped, tiled_axes
from tunefarm.search.space import Description, Knob, KnobKind, Modelled, Point, Proposal, Value
from tunefarm.search.spaces.family import in_words, realised
from tunefarm.search.spaces.form import Reduction, reduction_at, reduction_of, stages_of
from tunefarm.search.spaces.hardware import Hardware, hardware, multiplying
from tunefarm.search.spaces.neighbours import computed_by, sums_at, sums_of
from tunefarm.search.spaces.tile import (
    Before,
    Tile,
    divisors,
    in_order,
    longest,
    slid_over,
    tiled_rows,
)
from tunefarm.search.spaces.tile_estimate import estimate, tile_figures
from tunefarm.search.spaces.tile_schedule import schedule_tile

TILES = "register-tile"
UNROLLED_LIMIT = 64
"""Instructions that multiply or add in the innermost loop's text; more take longer to compile, and
gain nothing."""
WINDOW_LIMIT = 160
"""Of a whole window of one channel at a time, which gain by what they load but once."""


class RegisterTileSpace:
    """Every tile of one reduction that fits the registers.

    Args:
        family: its name.
        algorithm: how the kernel was rewritten (`replay.rewritten`), "" where it was not.
        maker: of a rewritten kernel, the stage that makes the vector operand; "" for none.
    """

    def __init__(
        self,
        workload: Any,
        target: Target,
        form: Reduction,
        family: str = TILES,
        algorithm: str = "",
        maker: str = "",
    ) -> None:
        self._workload = workload
        self._family = family
        self._algorithm = algorithm
        self._maker = maker
        self._form = form
        self._hardware = multiplying(target, form.together, form.rounded)
        self._tiles = register_tiles(form, self._hardware)
        self._unrolls = unroll_choices(form)
        self._packs = pack_choices(form)
        self._befores = before_choices(form)

    @cached_property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        sizes = (
            *(len(self._tiles), len(self._unrolls), 4),
            *(len(self._packs), len(self._befores), 1 + has_single_row(self._form)),
        )
        return (tuple(Knob(KnobKind.CHOICE, size) for size in sizes),)

    def modelled(self) -> Sequence[Modelled]:
        return self._modelled

    @cached_property
    def _modelled(self) -> tuple[Modelled, ...]:
        found = []
        for values in itertools.product(*(range(knob.size) for knob in self.sketches[0])):
            tile = self._tile(values)
            if tile is not None:
                seconds = estimate(self._form, tile, self._hardware)
                found.append(Modelled(Point(0, values), seconds, _coordinates(tile)))
        return tuple(found)

    def _tile(self, values: Sequence[Value]) -> Tile | None:
        """None for one that is left out: too long a text, or the same schedule as another."""
        chosen = [value for value in values if isinstance(value, int)]
        if len(chosen) < len(values):
            return None
        tile, unroll, order, pack, before, streams = chosen
        columns_first, flat = bool(order & 1), bool(order & 2)
        made = Tile(
            *self._tiles[tile],
            self._unrolls[unroll],
            columns_first,
            flat,
            self._packs[pack],
            self._befores[before],
            bool(streams),
        )
        if made.unroll > 1 and not may_unroll(self._form, made, self._hardware):
            return None
        if not in_order(self._form, made):
            return None
        if made.streams and (made.vectors == 1 or not made.pack):
            return None  # it is one stream as it is
        return made

    def realise(self, point: Point, seed: int) -> Proposal | None:
        """See `Space.realise`; a None among the values is drawn from `seed`."""
        values = point.values
        if None in values:
            fitting = [
                one.point.values
                for one in self.modelled()
                if all(v in (None, w) for v, w in zip(values, one.point.values, strict=True))
            ]
            if not fitting:
                return None
            values = random.Random(seed).choice(fitting)
        tile = self._tile(values)
        if tile is None:
            return None
        return realised(
            self._workload,
            lambda schedule: self._schedule(schedule, tile),
            Point(0, values),
            in_words(self._family, tile),
            self._described(tile),
            self._algorithm,
        )

    def _schedule(self, schedule: Any, tile: Tile) -> None:
        maker = schedule.get_sblock(self._maker) if self._maker else None
        schedule_tile(schedule, self._form, tile, maker)

    def describe(self, point: Point) -> Description | None:
        tile = self._tile(point.values)
        return self._described(tile) if tile is not None else None

    def _described(self, tile: Tile) -> Description:
        """All tiles are one family to a cost model: what it learns of one sort holds for the
        other, and how the two compare is learnt with it."""
        figures = tile_figures(self._form, tile, self._hardware)
        return Description(TILES, (*figures, *_coordinates(tile), float(bool(self._algorithm))))

    def locate(self, trace: str) -> Point | None:
        note = replay.completed_by(trace)
        if note is None or (replay.algorithm_of(trace) or "") != self._algorithm:
            return None
        return self._by_note.get(note)

    @cached_property
    def _by_note(self) -> dict[str, Point]:
        points = (one.point for one in self.modelled())
        return {in_words(self._family, tile): p for p in points if (tile := self._tile(p.values))}


def _coordinates(tile: Tile) -> tuple[float, ...]:
    """Doublings, and two steps for another order."""
    counts = (tile.rows, tile.planes, tile.vectors, tile.lanes, tile.unroll)
    flags = (tile.columns_first, tile.flat, tile.pack, *(tile.before is one for one in Before))
    return (*(log2(count) for count in counts), *(2.0 * flag for flag in (*flags, tile.streams)))


def register_tile_space(workload: Any, target: Target) -> RegisterTileSpace | None:
    """The space of `workload`, None where it is no such reduction or has no tile."""
    if target.kind != "llvm":
        return None
    form = sums_of(workload, beyond=True)
    if form is None or not computed_by(target, form) or not pack_choices(form):
        return None
    if not register_tiles(form, multiplying(target, form.together, form.rounded)):
        return None
    return RegisterTileSpace(workload, target, form)


def filled_tile_space(workload: Any, target: Target) -> RegisterTileSpace | None:
    """The space of `workload` with its groups of columns filled up to whole vectors, None where
    they need not or cannot be."""
    if target.kind != "llvm":
        return None
    machine, form = hardware(target), reduction_of(workload)
    if form is None or not fillable(form, machine.lanes):
        return None
    rewritten = filled(workload, machine.lanes)
    *before, _weights, product, store = stages_of(rewritten)
    made = reduction_at(product, frozenset({WEIGHTS}), before, (store,))
    if made is None or can_pad(made, machine) or not register_tiles(made, machine):
        return None  # a plain product of odd sizes is filled up by its register tiles
    algorithm = f"filled {machine.lanes}"
    return RegisterTileSpace(rewritten, target, made, "filled-tile", algorithm, WEIGHTS)


GAIN = 0.93
"""Of the best tile's time that divides the rows: what overlapping ones have to promise to be tried.
Those that fill a product's rows up are about as good, and are tried beside them."""


def overlapped_tile_space(workload: Any, target: Target) -> RegisterTileSpace | None:
    """The space of `workload` with tiles of rows that overlap, of as many rows as promise most, in
    lines or across their ends; None where those that divide them do nearly as well."""
    if target.kind != "llvm":
        return None
    form = sums_of(workload)
    if form is None or not computed_by(target, form):
        return None
    machine = multiplying(target, form.together, form.rounded)
    columns = column_tiles(form, machine)
    promised = {
        (n, across): _least(longer, machine, _that_fit(longer, machine, [n], [1], columns))
        for across in (False, True)
        for n in range(2, 16)
        if overlappable(form, n, across)
        for longer in [_longer(form, tiled_axes(form, across), n)]
    }
    least = _least(form, machine, dividing_tiles(form, machine)) if promised else inf
    better = {way: seconds for way, seconds in promised.items() if seconds < GAIN * least}
    if not better:
        return None
    # With windows every row of a tile across lines has an address of its own, which tiles in lines
    # do without, and which the estimate does not see.
    windows = sum(form.extent(axis) > 1 for axis in form.reductions) > 1
    dearer = {False: 1.0, True: 1 / GAIN if windows else 1.0}
    best = min(better, key=lambda way: better[way] * dearer[way[1]])
    rewritten = overlapped(workload, *best)
    *before, product, store = stages_of(rewritten)
    weights = frozenset({form.vector.buffer})
    made = sums_at(product, weights, before, (store,))
    if made is None or not computed_by(target, made) or not register_tiles(made, machine):
        return None
    rows, across = best
    algorithm = f"{'across' if across else 'overlapped'} {rows}"
    return RegisterTileSpace(rewritten, target, made, "overlapped-tile", algorithm)


def _longer(form: Reduction, tiled: Sequence[int], rows: int) -> Reduction:
    """With as many rows as tiles of `rows` compute, all on the last of the `tiled` axes; the
    other becomes one of 1."""
    extent = ceil(prod(form.extent(axis) for axis in tiled) / rows) * rows
    axes, limits = list(form.block.axes), list(form.limits)
    for axis in tiled:
        limits[axis] = extent if axis == tiled[-1] else 1
        axes[axis] = replace(axes[axis], extent=limits[axis])
    return replace(form, block=replace(form.block, axes=tuple(axes)), limits=tuple(limits))


def _least(form: Reduction, machine: Hardware, tiles: Sequence[tuple[int, int, int, int]]) -> float:
    """Seconds that the best of `tiles` is expected to take, in its best order."""
    pack, before = pack_choices(form), before_choices(form)
    made = (
        Tile(*tile, 1, columns_first, False, pack[0], before[0])
        for tile in tiles
        for columns_first in (True, False)
        if pack
    )
    return min((estimate(form, tile, machine) for tile in made), default=inf)


def register_tiles(form: Reduction, machine: Hardware) -> list[tuple[int, int, int, int]]:
    """(rows, planes, vectors, lanes) of every tile that fits the register file."""
    found = dividing_tiles(form, machine)
    if can_pad(form, machine):
        _, rows_axis = tiled_rows(form)
        assert rows_axis is not None, "else it could not be padded"
        tall = min(16, form.extent(rows_axis))
        row_counts = sorted({*divisors(form.limits[rows_axis]), *range(1, tall + 1)})
        known = column_tiles(form, machine)
        wide = [(v * machine.lanes, machine.lanes) for v in (1, 2, 3, 4, 6, 8)]
        extent = form.extent(form.column)
        filled = [one for one in wide if one[0] <= extent and one[0] not in dict(known)]
        found = _that_fit(form, machine, row_counts, [1], [*known, *filled])
    return found


def dividing_tiles(form: Reduction, machine: Hardware) -> list[tuple[int, int, int, int]]:
    """Those that nothing has to be padded for."""
    planes_axis, rows_axis = tiled_rows(form)
    row_counts = divisors(form.limits[rows_axis]) if rows_axis is not None else [1]
    plane_counts = divisors(form.limits[planes_axis]) if planes_axis is not None else [1]
    return _that_fit(form, machine, row_counts, plane_counts, column_tiles(form, machine))


def _that_fit(
    form: Reduction,
    machine: Hardware,
    row_counts: Sequence[int],
    plane_counts: Sequence[int],
    columns_and_lanes: Sequence[tuple[int, int]],
) -> list[tuple[int, int, int, int]]:
    counts = itertools.product(columns_and_lanes, row_counts, plane_counts)
    tiles = [(rows, planes, columns // n, n) for (columns, n), rows, planes in counts]
    if form.together:
        tiles = [one for one in tiles if one[3] in LENGTHS]
    return [one for one in tiles if _spare(form, machine, *one) >= 0]


def _spare(
    form: Reduction, machine: Hardware, rows: int, planes: int, vectors: int, lanes: int
) -> int:
    """Registers beside the accumulators, the vectors that are loaded, what a broadcast takes, and
    one that is free: with all of them taken compilers spill in the innermost loop, and a
    convolution takes twice its time. Where broadcasts have a register, that one is free by turns,
    as long as a step is not unrolled (`may_unroll`)."""
    held = vectors * machine.registers_of(lanes)
    loaded = held + max(1, machine.broadcast_registers) if form.product else 1
    return machine.registers - rows * planes * held - loaded


def may_unroll(form: Reduction, tile: Tile, machine: Hardware) -> bool:
    """Whether compilers keep an unrolled text of `tile` in registers, and get done with it."""
    spare = _spare(form, machine, tile.rows, tile.planes, tile.vectors, tile.lanes)
    free = 1 if form.product and machine.broadcast_registers else 0
    instructions = 1 if form.rounded else {PAIRS: 2, NARROW: 3}.get(form.together, 1)
    line = slid_over(form) is not None and tile.unroll >= form.extent(longest(form))
    limit = WINDOW_LIMIT if line else UNROLLED_LIMIT
    return spare >= free and tile.accumulators * tile.unroll * instructions <= limit


def unroll_choices(form: Reduction) -> list[int]:
    """Steps of the longest reduction in a text; of a window, also those of a line, and all."""
    line = form.extent(longest(form))
    known = [u for u in (1, 2, 4, 8) if line % u == 0]
    return sorted({*known, line, form.depth}) if slid_over(form) is not None else known


def can_pad(form: Reduction, machine: Hardware) -> bool:
    """Whether the kernel is a plain product of matrices that is worth filling up with zeros to
    whole tiles: where a size has no good divisors, or tiles that divide it have too few sums for
    multiply-adds not to wait for each other."""
    planes_axis, rows_axis = tiled_rows(form)
    operands = [form.vector, *([form.other] if form.other is not None else [])]
    plain = all(axis is not None for operand in operands for axis in operand.plain)
    if (
        not (form.product and plain)
        or rows_axis is None
        or form.together
        or form.before
        or form.copies
        or form.beyond
        or planes_axis is not None
    ):
        return False
    if form.extent(form.column) % 16 or form.extent(rows_axis) % 4:
        return True
    sums = (rows * planes * vectors for rows, planes, vectors, _ in dividing_tiles(form, machine))
    return max(sums, default=0) < machine.fma * machine.latency


def column_tiles(form: Reduction, machine: Hardware) -> list[tuple[int, int]]:
    """(columns, lanes): a number of columns comes once, with the widest vectors that divide it."""
    widest: dict[int, int] = {}
    limit = form.limits[form.column]
    widths = [w for w in machine.widths() if limit % w == 0]
    if form.together:
        widths = [w for w in widths if w in LENGTHS]
    elif max(widths, default=0) < machine.lanes // 2:
        # Vectors of 7 or 14 are better than none, or than short ones: compilers split them.
        odd = [w for w in divisors(limit) if max(4, *widths, 0) <= w]
        whole = [w for w in odd if w <= machine.lanes]
        # Two registers to a vector, where there is no other way: 9 or 13 columns in eights.
        halved = [w for w in odd if w <= 2 * machine.lanes] if not widths else []
        widths = sorted({*widths, *(whole or halved)}, reverse=True)
    for lanes in widths:
        for columns in divisors(limit):
            if columns % lanes == 0 and columns // lanes < machine.registers:
                widest.setdefault(columns, lanes)
    return sorted(widest.items())


def before_choices(form: Reduction) -> list[Before]:
    """Where the stages before the reduction may be computed."""
    if not form.before:
        return [Before.APART]
    if form.together:  # whose instruction reads what lies in memory
        return [Before.APART, Before.LOCAL]
    # An element that every column uses is not computed at each use, but may be read elsewhere.
    reused = form.product and form.other is not None and form.other.strides[form.column] == 0
    branches = any(stage.branches for stage in form.before)
    moves = all(isinstance(stage.node.body.value, TensorLoad) for stage in form.before)
    return [Before.APART, Before.LOCAL] if branches or (reused and not moves) else list(Before)


def has_single_row(form: Reduction) -> bool:
    """Whether it is one row times constants, which are read once. (Of integers it has not been
    tried what streams gain.)"""
    alone = all(form.extent(axis) == 1 for axis in form.rows)
    floats = form.rounded or not form.together
    return form.product and floats and form.vector.free and alone


def pack_choices(form: Reduction) -> list[bool]:
    """Whether the vector operand may, must or must not be packed; none where it cannot be read."""
    vector = form.vector
    packable = all(axis is not None for axis in vector.plain) and form.column in vector.plain
    if packable and vector.free and form.product:
        return [True]
    # Constants of which both operands hold the column (depthwise) are small: read as they are.
    readable = form.other is None or form.other.strides[form.column] in (0, 1, None)
    choices = [False] if vector.strides[form.column] in (1, 2) and readable else []
    if packable and form.product and form.depth > 1:
        choices.append(True)
    return choices
