"""A tile of a reduction, and how it lies on the reduction's axes. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from math import ceil, prod

from tunefarm.search.spaces.form import Operand, Reduction

LIGHT = 4
"""Operations on an element that compilers put into vectors under a comparison of its column. Of an
error function's polynomial they make a tenth more of a whole product's time."""
LARGEST_WINDOW = 25
"""Steps of a window that may be in a text."""


class Before(enum.StrEnum):
    """Where the stages before the reduction, such as padding, are computed."""

    APART = "apart"
    """In a pass of their own."""
    INLINE = "inline"
    """Where they are read, each time anew."""
    LOCAL = "local"
    """Once for each iteration of the loops around the tiles: what it needs, into a small buffer."""


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
        before: where stages before the reduction are computed.
        streams: each vector's columns are packed by themselves, so that a tile reads as many
            streams as it has vectors, side by side. What is read once, for a single row, comes
            from far; a processor asks for it ahead in each stream, to the end of a page.
    """

    rows: int
    planes: int
    vectors: int
    lanes: int
    unroll: int
    columns_first: bool
    flat: bool
    pack: bool
    before: Before
    streams: bool = False

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def pads(self, form: Reduction) -> dict[int, int]:
        """The axes that it does not divide, with the multiple that they are padded to."""
        sizes = tile_sizes(form, self)
        return {axis: size for axis, size in sizes.items() if form.extent(axis) % size}

    def cuts_near(self, form: Reduction) -> bool:
        """Whether what padding added to the result is cut off inside the outer loop, where it is
        still in the core's own cache. Needs two loops; and what is computed along with it has to be
        little, for that gets no vectors of its own there."""
        return not self.flat and form.operations_after <= LIGHT

    @property
    def accumulators(self) -> int:
        return self.rows * self.planes * self.vectors


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


def slid_over(form: Reduction) -> Operand | None:
    """What a window of one channel at a time slides over, a small one; None for other sums, and
    for the largest of float32, which has it from memory where it is."""
    image = form.other if form.product else (form.vector if form.is_widened else None)
    single = image is not None and image.strides[form.column] not in (0, None)
    small = not form.together and 1 < form.depth <= LARGEST_WINDOW
    return image if single and small else None


def distinct(form: Reduction, tile: Tile) -> float:
    """Of what the rows of a tile read, the share that is loaded: a text with all steps of a
    window's line, or of the window, has each element that they read alike but once."""
    image = slid_over(form)
    if image is None:
        return 1.0
    share, last, strides = 1.0, longest(form), image.strides
    for axis, size in zip(tiled_rows(form), (tile.planes, tile.rows), strict=True):
        for taps in form.reductions:
            extent, step = form.extent(taps), strides[taps]
            moves = strides[axis] if axis is not None else None
            in_text = whole(form, tile) or (taps == last and tile.unroll == extent)
            if not step or not moves or not in_text:
                continue
            ratio, rest = divmod(moves, step)
            if rest == 0 and 0 < ratio < extent:
                share *= ((size - 1) * ratio + extent) / (size * extent)
    return share


def whole(form: Reduction, tile: Tile) -> bool:
    """Whether all steps of a window are in the text."""
    return tile.unroll > form.extent(longest(form))


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def tile_sizes(form: Reduction, tile: Tile) -> dict[int, int]:
    """The tiled axes and how much of each a tile takes."""
    planes_axis, rows_axis = tiled_rows(form)
    sizes = {form.column: tile.columns}
    if rows_axis is not None:
        sizes[rows_axis] = tile.rows
    if planes_axis is not None:
        sizes[planes_axis] = tile.planes
    return sizes


def tile_counts(form: Reduction, tile: Tile) -> tuple[int, int]:
    """How many row tiles and column tiles there are."""
    sizes = tile_sizes(form, tile)
    counts = {axis: ceil(form.extent(axis) / sizes.get(axis, 1)) for axis in form.spatial}
    return prod(counts.values()) // counts[form.column], counts[form.column]


def parallel_tasks(form: Reduction, tile: Tile) -> int:
    """Iterations of the loop that the cores share; if it is one, one core has it all."""
    rows, columns = tile_counts(form, tile)
    if tile.flat or not form.rows:
        return rows * columns
    return columns if tile.columns_first else rows


def in_order(form: Reduction, tile: Tile) -> bool:
    """Whether its loops are in an order of their own: where columns are a single tile, or where
    there are no rows, there is one order. Where rows are a single tile, there are two: the cores
    share the columns, or one of them has all, which for a little of them is sooner."""
    rows, columns = tile_counts(form, tile)
    if min(rows, columns) > 1:
        return True
    return not tile.flat and not (tile.columns_first and (columns == 1 or not form.rows))
