"""Matrix tiles: products whose partial results are in the processor's matrix registers.

A tile is some registers high and some wide; for each step of the reduction it reads a register for
each of either, and multiplies each of the ones with each of the others. What is around it is that
of register tiles: weights are packed once, what follows is applied to a tile before it is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, inf, log2, prod
from typing import Any

from tvm import DataType

from tunefarm.devices.matrices import (
    COLUMNS,
    REGISTERS,
    ROWS,
    multiplies_halves,
    multiplies_matrices,
)
from tunefarm.devices.neighbours import FOURS
from tunefarm.devices.target import Target
from tunefarm.search.kernels.matrices import Sizes, pitch
from tunefarm.search.kernels.overlapping import overlappable, overlapped
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Reduction, load_of, stages_of
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware
from tunefarm.search.spaces.neighbours import is_as_stored, sums_at, sums_of
from tunefarm.search.spaces.register_tile import GAIN
from tunefarm.search.spaces.tile import (
    Before,
    Tile,
    divisors,
    in_order,
    parallel_tasks,
    tile_counts,
    tiled_rows,
)
from tunefarm.search.spaces.tile_estimate import refetched, stages_before
from tunefarm.search.spaces.tile_schedule import schedule_tile

MATRICES = "matrix-tile"


@dataclass(frozen=True)
class MatrixTile(Way):
    """What a thread computes at a time, and in which order.

    Attributes:
        high: rows of a register.
        rows: registers along the innermost axis of rows.
        planes: along the one around it.
        columns: registers beside each other.
        columns_first: the loop over columns of tiles is outside of that over rows of them.
        flat: every tile is a parallel task; else only the outer loop's iterations are.
    """

    high: int
    rows: int
    planes: int
    columns: int
    columns_first: int
    flat: int

    @property
    def tile(self) -> Tile:
        """As one of vectors."""
        order = (bool(self.columns_first), bool(self.flat))
        height = self.high * self.rows
        return Tile(
            height, self.planes, self.columns, COLUMNS, 1, *order, True, Before.APART, streams=True
        )

    @property
    def registers(self) -> int:
        """That its sums take, and the operands of a step."""
        tall = self.rows * self.planes
        return tall * self.columns + min(tall, self.columns) + 1

    def coordinates(self) -> tuple[float, ...]:
        counts = (self.high, self.rows, self.planes, self.columns)
        return (*(log2(count) for count in counts), 2.0 * self.columns_first, 2.0 * self.flat)


def matrix_tile_space(workload: Any, target: Target) -> FewWays[MatrixTile] | None:
    """The space of `workload`, None where it is no product of 8 bits, or of bfloat16, or there is
    no tile of it."""
    form = _form(workload, target, beyond=True)
    ways = list(_ways(form)) if form is not None and _readable(form) else []
    return _space(workload, target, form, MATRICES, ways) if form is not None and ways else None


def overlapped_matrix_tile_space(workload: Any, target: Target) -> FewWays[MatrixTile] | None:
    """The space of `workload` with registers whose rows overlap, of as many rows as promise most,
    in lines or across their ends; None where those that divide them do nearly as well."""
    form = _form(workload, target)
    if form is None:
        return None
    least = min((_promised(form, way.high) for way in _ways(form)), default=inf)
    promised = {
        (rows, across): _promised(form, rows, across)
        for across in (False, True)
        for rows in range(2, ROWS + 1)
        if overlappable(form, rows, across)
    }
    for rows, across in sorted(promised, key=lambda way: promised[way]):
        if promised[rows, across] >= GAIN * least:
            return None
        rewritten = overlapped(workload, rows, across)
        *before, product, store = stages_of(rewritten)
        made = sums_at(product, frozenset({form.vector.buffer}), before, (store,))
        ways = list(_ways(made)) if made is not None and _readable(made) else []
        if made is not None and ways:
            algorithm = f"{'across' if across else 'overlapped'} {rows}"
            family = f"overlapped-{MATRICES}"
            return _space(rewritten, target, made, family, ways, algorithm)
    return None


def _form(workload: Any, target: Target, beyond: bool = False) -> Reduction | None:
    form = sums_of(workload, beyond) if target.kind == "llvm" else None
    if form is None:
        return None
    if form.rounded:
        return form if multiplies_halves(target) else None
    return form if form.together == FOURS and multiplies_matrices(target) else None


def _space(
    workload: Any,
    target: Target,
    form: Reduction,
    family: str,
    ways: Sequence[MatrixTile],
    algorithm: str = "",
) -> FewWays[MatrixTile]:
    machine = hardware(target)
    return FewWays(
        family,
        workload,
        ways,
        partial(_estimate, form, machine),
        partial(_schedule, form),
        _figures(form, machine),
        algorithm=lambda _: algorithm,
    )


def _promised(form: Reduction, high: int, across: bool = False) -> float:
    """Cycles that registers of so many rows take for a line, or for all lines, of one step."""
    lines, row = tiled_rows(form)
    rows = form.extent(row) if row is not None else 1
    count = form.extent(lines) if lines is not None else 1
    whole, times = (rows * count, 1) if across else (rows, count)
    return times * ceil(whole / high) * max(LEAST, high)


def _readable(form: Reduction) -> bool:
    """Whether there are rows, evenly spaced, and constant weights that are the same for all of
    them."""
    planes_axis, rows_axis = tiled_rows(form)
    other, vector, variables = form.other, form.vector, form.block.node.iter_vars
    return (
        form.product
        and vector.free
        and all(axis is not None for axis in vector.plain)
        and {form.column, *form.reductions} <= set(vector.plain)
        and other is not None
        and not other.depends_on(form.column)
        and is_as_stored(form)
        and rows_axis is not None
        and not vector.depends_on(rows_axis)
        and (planes_axis is None or not vector.depends_on(planes_axis))
        and pitch(load_of(form), variables, rows_axis) is not None
        and form.limits[form.column] % COLUMNS == 0
        and bool(_run(form))
    )


def _run(form: Reduction) -> tuple[int, ...]:
    """The innermost axes of the reduction whose terms lie one after another in memory."""
    assert form.other is not None
    found: list[int] = []
    length = 1
    strides = form.other.strides
    known = [axis for axis in form.reductions if strides[axis] is not None]
    for axis in sorted(known, key=lambda axis: (strides[axis] or 0, -axis)):
        if form.extent(axis) > 1 and form.other.strides[axis] != length:
            break
        found.append(axis)
        length *= form.extent(axis)
    return tuple(reversed(found))


def _terms(form: Reduction) -> int:
    """Groups that one instruction takes: as many as divide what lies together."""
    length = prod(map(form.extent, _run(form)))
    return max(one for one in divisors(length) if one <= ROWS)


def _ways(form: Reduction) -> Iterator[MatrixTile]:
    planes_axis, rows_axis = tiled_rows(form)
    if rows_axis is None:
        return
    rows = form.limits[rows_axis]
    planes = form.limits[planes_axis] if planes_axis is not None else 1
    columns = form.limits[form.column] // COLUMNS
    tallest = max(one for one in divisors(rows) if one <= ROWS)
    counts = range(1, REGISTERS)
    for high in (one for one in divisors(rows) if tallest / 2 < one <= ROWS):
        for down, deep, beside, first, flat in itertools.product(
            counts, counts, counts, (0, 1), (0, 1)
        ):
            way = MatrixTile(high, down, deep, beside, first, flat)
            whole = not (rows // high % down or planes % deep or columns % beside)
            if whole and way.registers <= REGISTERS and in_order(form, way.tile):
                yield way


def _schedule(form: Reduction, schedule: Any, way: MatrixTile) -> None:
    _, rows_axis = tiled_rows(form)
    assert rows_axis is not None, "else it has no ways"
    sizes = Sizes(way.high, rows_axis, form.column, _run(form), _terms(form))
    schedule_tile(schedule, form, way.tile, matrices=sizes)


LEAST = 9.0
"""Cycles of the instruction that multiplies: one for each row of a register, at least so many."""
NEAR, FAR = 128.0, 64.0
"""Bytes a cycle that registers are loaded with from the first and the second level of caches."""
L1 = 32 << 10
"""Bytes that are kept near."""
OVERLAP = 0.7
"""How much of the shorter of multiplying and loading is not hidden behind the longer."""
BEYOND = 20.0
"""Bytes a cycle that a core gets from beyond its second level."""
FINISH, AFTER = 1.0, 0.6
"""Cycles of a vector of sums, and of an operation that follows them."""
CONFIGURE = 120.0
"""Cycles of a task's beginning and end."""
APART, SHARED = 6.0, 14.0
"""Cycles of a piece of the result's row that is stored by itself, beside pieces that come from
another core; where these are of the same line of a cache."""
LINE = 64


def _estimate(form: Reduction, machine: Hardware, way: MatrixTile) -> float:
    """Seconds of one call at 3 GHz: to order points by, not to quote."""
    tile, terms = way.tile, _terms(form)
    row_tiles, column_tiles = tile_counts(form, tile)
    tasks = parallel_tasks(form, tile)
    share = ceil(tasks / machine.cores) / tasks
    tall, steps = way.rows * way.planes, form.depth // terms
    multiplies = tall * way.columns * max(LEAST, way.high)
    panel = 4.0 * form.depth * COLUMNS * way.columns
    weights = 4.0 * COLUMNS * terms * way.columns / (NEAR if _stays(form, tile, panel) else FAR)
    loads = tall * way.high * 4.0 * max(terms, COLUMNS) / NEAR + weights
    step = max(multiplies, loads) + OVERLAP * min(multiplies, loads)
    finish = tall * way.high * way.columns * (FINISH + AFTER * form.operations_after)
    cycles = row_tiles * column_tiles * (steps * step + finish) * share
    cycles += CONFIGURE * tasks * share + (LAUNCH if tasks > 1 else 0.0)
    cycles += refetched(form, tile, machine, row_tiles, column_tiles) / BEYOND
    cycles += stages_before(form, tile, machine, row_tiles, column_tiles)
    if column_tiles > 1 and (way.columns_first or way.flat):
        pieces = row_tiles * column_tiles * share * tall * way.high
        cycles += pieces * (SHARED if tile.columns * _bytes(form) < LINE else APART)
    return cycles / 3e9


def _bytes(form: Reduction) -> int:
    """Of an element of the result."""
    stored = (form.block, *form.after)[-1].node.writes[0].source
    return int(DataType(stored.dtype).itemsize)


def _stays(form: Reduction, tile: Tile, panel: float) -> bool:
    """Whether a tile finds its weights where the one before it left them."""
    return tile.columns_first and panel <= L1


def _figures(form: Reduction, machine: Hardware) -> tuple[float, ...]:
    _, rows_axis = tiled_rows(form)
    other = form.other
    assert other is not None
    return (
        log2(form.flops),
        log2(form.depth),
        float(_terms(form)),
        log2(form.extent(form.column)),
        log2(form.points_written),
        float(other.strides[rows_axis] or 0) if rows_axis is not None else -1.0,
        float(len(form.before)),
        float(form.operations_after),
        *machine.figures(),
    )
