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

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, prod
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.space import Knob, KnobKind, Modelled, Point, Proposal, Value
from tunefarm.search.spaces.features import features_of_family
from tunefarm.search.spaces.form import Reduction, reduction_of
from tunefarm.search.spaces.hardware import Hardware, hardware

UNROLLED_LIMIT = 64
"""Multiply-adds in the innermost loop's text; more take longer to compile, and gain nothing."""


@dataclass(frozen=True)
class Tile:
    """One point: what a thread computes at a time, and in which order.

    Attributes:
        rows: of the innermost row axis.
        planes: of the row axis around it.
        vectors, lanes: columns are `vectors` registers of `lanes` elements.
        unroll: steps of the longest reduction axis in the innermost loop's text.
        columns_first: the loop over column tiles is outside of that over row tiles.
        flat: every tile is a parallel task; else only the outer loop's iterations are.
        pack: the vector operand is copied into tile order first (constants always are).
        inline: stages before the reduction are computed where they are read (the padding of a
            pooling), not in a pass of their own.
    """

    rows: int
    planes: int
    vectors: int
    lanes: int
    unroll: int
    columns_first: bool
    flat: bool
    pack: bool
    inline: bool

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def pads(self, form: Reduction) -> dict[int, int]:
        """The axes that it does not divide, with the multiple that they are padded to."""
        sizes = _sizes(form, self)
        return {axis: size for axis, size in sizes.items() if form.extent(axis) % size}

    @property
    def accumulators(self) -> int:
        return self.rows * self.planes * self.vectors


class RegisterTileSpace:
    """Every tile of one reduction that fits the registers."""

    def __init__(self, workload: Any, target: Target, form: Reduction) -> None:
        self._workload = workload
        self._target = target
        self._form = form
        self._hardware = hardware(target)
        self._tiles = register_tiles(form, self._hardware)
        self._unrolls = [u for u in (1, 2, 4, 8) if form.extent(longest(form)) % u == 0]
        self._packs = pack_choices(form)
        self._inlines = [False, True] if form.before and not form.product else [False]

    @cached_property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        sizes = (
            *(len(self._tiles), len(self._unrolls), 4),
            *(len(self._packs), len(self._inlines)),
        )
        return (tuple(Knob(KnobKind.CHOICE, size) for size in sizes),)

    def modelled(self) -> list[Modelled]:
        found = []
        for values in itertools.product(*(range(knob.size) for knob in self.sketches[0])):
            tile = self._tile(values)
            if tile is not None:
                seconds = estimate(self._form, tile, self._hardware)
                found.append(Modelled(Point(0, values), seconds, _coordinates(tile)))
        return found

    def _tile(self, values: Sequence[Value]) -> Tile | None:
        """None for one that is left out: too long a text, or the same schedule as another."""
        chosen = [value for value in values if isinstance(value, int)]
        if len(chosen) < len(values):
            return None
        tile, unroll, order, pack, inline = chosen
        columns_first, flat = bool(order & 1), bool(order & 2)
        made = Tile(
            *self._tiles[tile],
            self._unrolls[unroll],
            columns_first,
            flat,
            self._packs[pack],
            self._inlines[inline],
        )
        if made.unroll > 1 and made.accumulators * made.unroll > UNROLLED_LIMIT:
            return None
        if order and 1 in _tile_counts(self._form, made):
            return None  # there is but one loop to order
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
        schedule = replay.new_schedule(self._workload, seed=1)
        try:
            schedule_tile(schedule, self._form, tile)
        except Exception:  # TVM raises many types for a primitive that cannot be applied
            return None
        replay.mark_complete(schedule, _note(tile))
        features = features_of_family(self._figures(tile))
        return Proposal(Point(0, values), replay.trace_json(schedule), features)

    def _figures(self, tile: Tile) -> list[float]:
        """What the cost model learns from: the workload, the tile, and the hardware model's say."""
        form, machine = self._form, self._hardware
        rows, columns = _tile_counts(form, tile)
        return [
            log2(estimate(form, tile, machine)),
            log2(form.flops),
            log2(form.depth),
            log2(rows),
            log2(columns),
            float(tile.accumulators),
            _loads(form, tile, machine) * machine.fma / tile.accumulators,
            float(_conflicts(form, tile)),
            *_coordinates(tile),
        ]

    def locate(self, trace: str) -> Point | None:
        note = replay.completed_by(trace)
        return self._by_note.get(note) if note is not None else None

    @cached_property
    def _by_note(self) -> dict[str, Point]:
        points = (one.point for one in self.modelled())
        return {_note(tile): p for p in points if (tile := self._tile(p.values))}


def _coordinates(tile: Tile) -> tuple[float, ...]:
    """Doublings, and two steps for another order."""
    counts = (tile.rows, tile.planes, tile.vectors, tile.lanes, tile.unroll)
    flags = (tile.columns_first, tile.flat, tile.pack, tile.inline)
    return (*(log2(count) for count in counts), *(2.0 * flag for flag in flags))


def _note(tile: Tile) -> str:
    """A point in words, for the trace: whoever reads the trace sees what it is."""
    fields = {f.name: getattr(tile, f.name) for f in dataclasses.fields(tile)}
    return " ".join(["register-tile", *(f"{name}={value}" for name, value in fields.items())])


def register_tile_space(workload: Any, target: Target) -> RegisterTileSpace | None:
    """The space of `workload`, None where it is no such reduction or has no tile."""
    if target.kind != "llvm":
        return None
    form = reduction_of(workload)
    if form is None or not register_tiles(form, hardware(target)) or not pack_choices(form):
        return None
    return RegisterTileSpace(workload, target, form)


# ------------------------------------------------------------------------------------- the space


def register_tiles(form: Reduction, machine: Hardware) -> list[tuple[int, int, int, int]]:
    """(rows, planes, vectors, lanes) of every tile that fits the register file."""
    planes_axis, rows_axis = tiled_rows(form)
    row_counts = divisors(form.limits[rows_axis]) if rows_axis is not None else [1]
    plane_counts = divisors(form.limits[planes_axis]) if planes_axis is not None else [1]
    columns_and_lanes = column_tiles(form, machine)
    if can_pad(form) and rows_axis is not None:
        tall = min(16, form.extent(rows_axis))
        row_counts = sorted({*row_counts, *range(1, tall + 1)})
        wide = [(v * machine.lanes, machine.lanes) for v in (1, 2, 3, 4, 6, 8)]
        known = [columns for columns, _ in columns_and_lanes]
        extent = form.extent(form.column)
        columns_and_lanes += [(c, n) for c, n in wide if c not in known and c <= extent]
    found = []
    for columns, lanes in columns_and_lanes:
        vectors = columns // lanes
        for rows, planes in itertools.product(row_counts, plane_counts):
            # The accumulators, the vectors that are loaded, and what a broadcast takes.
            loaded = vectors + machine.broadcast_registers if form.product else 1
            needed = rows * planes * vectors + loaded
            if needed <= machine.registers:
                found.append((rows, planes, vectors, lanes))
    return found


def can_pad(form: Reduction) -> bool:
    """Whether the kernel is a plain product of matrices, which may be filled up with zeros to whole
    tiles: worth it where a size has no good divisors."""
    _, rows_axis = tiled_rows(form)
    operands = [form.vector, *([form.other] if form.other is not None else [])]
    plain = all(axis is not None for operand in operands for axis in operand.plain)
    odd = form.extent(form.column) % 16 or (rows_axis is not None and form.extent(rows_axis) % 4)
    return bool(
        form.product
        and plain
        and rows_axis is not None
        and odd
        and not form.before
        and not form.copies
        and form.rows == (rows_axis,)
    )


def column_tiles(form: Reduction, machine: Hardware) -> list[tuple[int, int]]:
    """(columns, lanes): a number of columns comes once, with the widest vectors that divide it."""
    widest: dict[int, int] = {}
    limit = form.limits[form.column]
    widths = [w for w in machine.widths() if limit % w == 0]
    if max(widths, default=0) < machine.lanes // 2:
        # Vectors of 7 or 14 are better than none, or than short ones: compilers split them.
        odd = [w for w in divisors(limit) if max(4, *widths, 0) <= w <= machine.lanes]
        widths = sorted({*widths, *odd}, reverse=True)
    for lanes in widths:
        for columns in divisors(limit):
            if columns % lanes == 0 and columns // lanes < machine.registers:
                widest.setdefault(columns, lanes)
    return sorted(widest.items())


def tiled_rows(form: Reduction) -> tuple[int | None, int | None]:
    """The two row axes that are tiled, outer and inner: the innermost that have more than one."""
    long = [axis for axis in form.rows if form.limits[axis] > 1]
    return (long[-2] if len(long) > 1 else None), (long[-1] if long else None)


def longest(form: Reduction) -> int:
    """The reduction axis that is innermost and unrolled."""
    return max(form.reductions, key=lambda axis: (form.extent(axis), axis))


def reduction_order(form: Reduction) -> list[int]:
    last = longest(form)
    return [*(axis for axis in form.reductions if axis != last), last]


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


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _sizes(form: Reduction, tile: Tile) -> dict[int, int]:
    """The tiled axes and how much of each a tile takes."""
    planes_axis, rows_axis = tiled_rows(form)
    sizes = {form.column: tile.columns}
    if rows_axis is not None:
        sizes[rows_axis] = tile.rows
    if planes_axis is not None:
        sizes[planes_axis] = tile.planes
    return sizes


def _tile_counts(form: Reduction, tile: Tile) -> tuple[int, int]:
    """How many row tiles and column tiles there are."""
    sizes = _sizes(form, tile)
    counts = {axis: ceil(form.extent(axis) / sizes.get(axis, 1)) for axis in form.spatial}
    return prod(counts.values()) // counts[form.column], counts[form.column]


# ----------------------------------------------------------------------------- the hardware model


def estimate(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by, not to quote.

    A step of the reduction is bound by multiply-adds, by loads, or by the latency of a chain of
    additions; a tile adds its stores and the loops around it; uneven shares of the cores and what
    is read again from the outer caches stretch the whole.
    """
    row_tiles, column_tiles = _tile_counts(form, tile)
    multiplies = tile.accumulators * (1.0 if tile.lanes == machine.lanes else 1.05) / machine.fma
    step = max(multiplies, _loads(form, tile, machine), machine.latency) + 0.6 / tile.unroll
    finish = tile.accumulators * (2.0 + len(form.after)) + (24.0 if tile.flat else 12.0)
    tasks = row_tiles * column_tiles
    if not tile.flat and min(row_tiles, column_tiles) > 1:
        tasks = column_tiles if tile.columns_first else row_tiles
    share = ceil(tasks / machine.cores) / tasks
    cycles = row_tiles * column_tiles * (form.depth * step + finish) * share
    cycles += _refetched(form, tile, machine, row_tiles, column_tiles) / machine.bytes_per_cycle
    if form.before and not tile.inline:
        cycles += sum(stage.points for stage in form.before) / machine.lanes / machine.cores
    if pads := tile.pads(form):
        cycles += 1.0 * form.points_written / machine.cores
        cycles += _other_bytes(form) / 4 / machine.cores if len(pads) > 1 else 0.0
    if tile.pack and not form.vector.free:
        cycles += 0.5 * prod(form.vector.shape) / machine.cores
    return cycles / 3e9


def _loads(form: Reduction, tile: Tile, machine: Hardware) -> float:
    """Cycles for a step's loads: its vectors, and a broadcast for each row."""
    rows = tile.rows * tile.planes
    other = form.other
    if not form.product:
        return tile.accumulators * (form.vector.strides[form.column] or 1) / machine.loads
    if other is None or other.strides[form.column] != 0:
        return (tile.vectors + tile.accumulators) / machine.loads
    return (tile.vectors + rows + 3.0 * _conflicts(form, tile)) / machine.loads


def _conflicts(form: Reduction, tile: Tile) -> int:
    """Rows beyond the ways of the first-level cache, where their distance makes them share sets."""
    planes_axis, rows_axis = tiled_rows(form)
    if form.other is None or form.other.strides[longest(form)] != 1:
        return 0
    row: int = 4 * (form.other.strides[rows_axis] or 0) if rows_axis is not None else 0
    plane = 4 * (form.other.strides[planes_axis] or 0) if planes_axis is not None else 0
    sets = Counter(
        (r * row + p * plane) % 4096 // 64 for r in range(tile.rows) for p in range(tile.planes)
    )
    # One way is kept for the vectors that stream through.
    return sum(max(0, count - 7) + (count if count > 8 else 0) for count in sets.values())


def _refetched(
    form: Reduction, tile: Tile, machine: Hardware, row_tiles: int, column_tiles: int
) -> float:
    """Bytes a core reads from beyond its second-level cache, besides a first time."""
    vector = 4.0 * prod(form.vector.shape)
    other = _other_bytes(form)
    panel = 4.0 * form.depth * tile.columns
    rows = 4.0 * form.depth * tile.rows * tile.planes
    half = machine.l2 / 2
    if tile.columns_first:
        passes = row_tiles if panel > half else 1
        return vector / machine.cores * passes + (other * column_tiles if other > half else other)
    streams = row_tiles / machine.cores if vector > half else 1.0
    again = column_tiles if rows > half else 1
    return vector * streams + other / machine.cores * again


def _other_bytes(form: Reduction) -> float:
    """Of the broadcast operand: a strided convolution does not touch all of it."""
    if form.other is None:
        return 0.0
    rows = prod(form.extent(axis) for axis in form.spatial if axis != form.column)
    return 4.0 * min(prod(form.other.shape), rows * form.depth)


# --------------------------------------------------------------------------------- the schedule


def schedule_tile(schedule: Any, form: Reduction, tile: Tile) -> None:
    """Apply `tile` to the unscheduled kernel in `schedule`."""
    inlined = form.before if tile.inline else ()
    for stage in (*form.copies, *inlined, *form.after[:-1]):
        schedule.compute_inline(schedule.get_sblock(stage.name))
    block = schedule.get_sblock(form.block.name)
    fills: dict[str, Any] = {}
    stages: list[Any] = []
    if padded := bool(tile.pads(form)):
        fills, cut = _pad(schedule, block, form, tile)
        stages = [cut]
    if tile.pack:
        _pack(schedule, block, form, tile, fills.pop(form.vector.buffer, None))
    stages += fills.values()
    store = schedule.cache_write(block, 0, "local") if padded else _result(schedule, block, form)
    inner = _tile_loops(schedule, store, form, tile)
    schedule.compute_at(block, inner.last, preserve_unit_loops=True)
    schedule.parallel(inner.parallel)
    _vectorise(schedule, inner.column, tile)
    for loop in inner.rows:
        schedule.unroll(loop)
    _accumulate(schedule, block, form, tile)
    for stage in () if tile.inline else form.before:
        schedule_elementwise(schedule, schedule.get_sblock(stage.name), tile.lanes)
    for one in stages:
        schedule_elementwise(schedule, one, tile.lanes)


def _pad(schedule: Any, block: Any, form: Reduction, tile: Tile) -> tuple[dict[str, Any], Any]:
    """Fill the matrices up to whole tiles; the stages that do it, by the operand that they fill,
    and the one that cuts the result out again and applies what follows."""
    pads = tile.pads(form)
    schedule.pad_einsum(block, [pads.get(axis, 1) for axis in range(len(form.block.axes))])
    (cut,) = schedule.get_consumers(block)
    fills = {
        schedule.get(fill).reads[0].source.name: fill for fill in schedule.get_producers(block)
    }
    if not form.after:
        return fills, cut
    schedule.compute_inline(cut)
    return fills, schedule.get_sblock(form.after[-1].name)


def _pack(schedule: Any, block: Any, form: Reduction, tile: Tile, fill: Any) -> None:
    """Lay the vector operand out in tiles of columns, in the order in which they are read: by
    `fill`, the stage that copies it anyway, or by one that is made for it."""
    vector, columns = form.vector, tile.columns
    axes = list(vector.plain)
    column = axes.index(form.column)
    order = [*(axis for axis in form.spatial if axis in axes), *reduction_order(form)]
    rest = [axes.index(axis) for axis in order if axis in axes and axis != form.column]
    packed = fill or schedule.cache_read(block, vector.read, "global")
    schedule.transform_layout(
        block,
        ("read", vector.read),
        lambda *index: [
            index[column] // columns, *(index[d] for d in rest), index[column] % columns
        ],
    )  # fmt: skip
    if vector.free:
        schedule.annotate(packed, "meta_schedule.layout_rewrite_preproc", True)
        return
    loops = schedule.get_loops(packed)
    outer, inner = schedule.split(loops[column], [None, columns])
    schedule.reorder(outer, *(loops[d] for d in rest), inner)
    schedule.parallel(schedule.fuse(outer, loops[rest[0]]))
    _vectorise(schedule, inner, tile)


def _result(schedule: Any, block: Any, form: Reduction) -> Any:
    """The block that stores the tile: the last stage after the reduction, or a plain copy."""
    if not form.after:
        return schedule.cache_write(block, 0, "local")
    schedule.set_scope(block, 0, "local")
    return schedule.get_sblock(form.after[-1].name)


@dataclass(frozen=True)
class _Loops:
    """Of the storing block: which is parallel, which encloses a tile, and the tile's own."""

    parallel: Any
    last: Any
    rows: list[Any]
    column: Any


def _tile_loops(schedule: Any, store: Any, form: Reduction, tile: Tile) -> _Loops:
    sizes = _sizes(form, tile)
    outer, rows, column_outer, column = [], [], [], None
    for axis, loop in zip(form.spatial, schedule.get_loops(store), strict=True):
        if axis not in sizes:
            outer.append(loop)
            continue
        outside, inside = schedule.split(loop, [None, sizes[axis]])
        if axis == form.column:
            column_outer, column = [outside], inside
        else:
            outer.append(outside)
            rows.append(inside)
    ordered = [*column_outer, *outer] if tile.columns_first else [*outer, *column_outer]
    schedule.reorder(*ordered, *rows, column)
    if tile.flat or not outer:
        groups = [ordered]
    elif tile.columns_first:
        groups = [column_outer, outer]
    else:
        groups = [outer, column_outer]
    fused = [schedule.fuse(*group) if len(group) > 1 else group[0] for group in groups]
    return _Loops(fused[0], fused[-1], rows, column)


def _accumulate(schedule: Any, block: Any, form: Reduction, tile: Tile) -> None:
    """Inside a tile: the reduction outermost, then its unrolled steps, rows and vectors."""
    loops = dict(enumerate(schedule.get_loops(block)[-len(form.block.axes) :]))
    vectors, lane = schedule.split(loops[form.column], [None, tile.lanes])
    steps, unrolled = schedule.split(loops[longest(form)], [None, tile.unroll])
    outer = [loops[axis] for axis in reduction_order(form)[:-1]]
    rows = [loops[axis] for axis in form.spatial if axis != form.column]
    schedule.reorder(*outer, steps, unrolled, *rows, vectors, lane)
    schedule.vectorize(lane)
    for loop in (unrolled, *rows, vectors):
        schedule.unroll(loop)
    # Last, for it refuses loops that are not yet what they are to be.
    schedule.decompose_reduction(block, [*outer, steps][0])


def _vectorise(schedule: Any, loop: Any, tile: Tile) -> None:
    """A tile's columns: its vectors unrolled."""
    vectors, lane = schedule.split(loop, [None, tile.lanes])
    schedule.vectorize(lane)
    schedule.unroll(vectors)


def schedule_elementwise(schedule: Any, block: Any, lanes: int) -> None:
    """A stage of its own: all but the last axis in parallel, the last one in vectors."""
    loops = schedule.get_loops(block)
    columns = int(schedule.get(loops[-1]).extent)
    if len(loops) > 1:
        schedule.parallel(schedule.fuse(*loops[:-1]) if len(loops) > 2 else loops[0])
    for width in (lanes, lanes // 2, lanes // 4):
        if width > 1 and columns % width == 0:
            schedule.vectorize(schedule.split(loops[-1], [None, width])[1])
            return
