"""A convolution by minimal filtering: fewer products, more additions.

Tiles of the image and the filters are transformed (`cook_toom`); what was a convolution is then a
product of matrices at each of the transform's points, and the result is transformed back (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). With 4x4 results a tile,
a 3x3 convolution takes a quarter of its products. Filters are constants: they are transformed when
they are packed.

This is another algorithm for the same kernel, not a schedule of its text: `winograd` rewrites the
text, and a schedule of the new one follows.

Integers (`spaces.neighbours`) are done so in floating point, and what comes out is rounded to whole
numbers: where pairs are multiplied at once that is worth it, of fours it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tvm import te, tirx
from tvm.sym import Analyzer

from tunefarm.devices.neighbours import FOURS, steps_of
from tunefarm.search.kernels.cook_toom import Matrix, filtering
from tunefarm.search.kernels.restaged import placeholder_of
from tunefarm.search.kernels.splice import renamed, spliced
from tunefarm.search.spaces.form import Reduction, load_of, sums_from_zero
from tunefarm.search.spaces.neighbours import sums_of

TAPS = (3, 5)
"""Sides of the filters for which it pays."""

PRODUCT = "winograd_product"
FILTERS = ("winograd_filter_rows", "winograd_filters")
SIGNAL = ("winograd_tile", "winograd_rows", "winograd_points")
RESULT = ("winograd_back", "winograd_result", "winograd_image")
"""Names of the stages that `winograd` makes, in the order of the text."""


@dataclass(frozen=True)
class Convolution:
    """A kernel that `winograd` can rewrite: channels last, no stride and no dilation.

    Attributes:
        form: the kernel as a reduction.
        image: the padded input: batch, rows, columns, channels.
        taps: rows and columns of a filter.
        filters: how many there are.
        channels: that each filter sees; fewer than the image's where there are groups.
    """

    form: Reduction
    image: tuple[int, int, int, int]
    taps: int
    filters: int
    channels: int

    @property
    def group(self) -> int:
        """Filters that see the same channels."""
        return self.filters * self.channels // self.image[3]

    def tiles(self, size: int) -> tuple[int, int]:
        """Rows and columns of tiles with `size` x `size` results."""
        _, rows, columns, _ = self.image
        return tuple(-(-(of - self.taps + 1) // size) for of in (rows, columns))  # type: ignore[return-value]


def convolution_of(workload: Any) -> Convolution | None:
    """`workload` as a convolution that can be rewritten, None where it is something else."""
    form = sums_of(workload)
    gains = form is not None and form.together != FOURS and not form.rounded
    if form is None or form.other is None or not form.product or not gains:
        return None
    if len(form.spatial) != 4 or len(form.reductions) != 3:
        return None
    if len(form.before) + len(form.copies) > 1:
        return None
    *outer, depth = form.other.shape
    image, filters = (*outer, depth * form.terms), form.vector
    if len(image) != 4 or not filters.free:
        return None
    n, y, x, k = form.spatial
    r, s, c = form.reductions
    taps, channels = form.extent(r), form.extent(c) * form.terms
    if filters.plain != (r, s, c, k) or form.extent(s) != taps or taps not in TAPS:
        return None
    results = (image[0], image[1] - taps + 1, image[2] - taps + 1)
    if tuple(form.extent(axis) for axis in (n, y, x)) != results or image[3] % channels:
        return None
    if form.extent(k) % (image[3] // channels):
        return None
    found = Convolution(form, image, taps, form.extent(k), channels)
    return found if _reads_as(found) and sums_from_zero(form.block) else None


def _reads_as(convolution: Convolution) -> bool:
    """Whether the image is read at n, y + r, x + s, and at a filter's own channels."""
    form = convolution.form
    axes = [variable.var for variable in form.block.node.iter_vars]
    n, y, x, k = (axes[place] for place in form.spatial)
    r, s, c = (axes[place] for place in form.reductions)
    channel = c * form.terms
    if convolution.channels < convolution.image[3]:
        channel += tirx.floordiv(k, convolution.group) * convolution.channels
    if form.together:
        for step, axis in zip(steps_of(form.together), axes[-len(form.together) :], strict=True):
            channel += axis * step
    known = Analyzer()
    for variable in form.block.node.iter_vars:
        known.bind(variable.var, variable.dom)
    return all(
        known.can_prove_equal(index, wanted)
        for index, wanted in zip(load_of(form).indices, (n, y + r, x + s, channel), strict=True)
    )


def winograd(workload: Any, size: int) -> Any:
    """`workload` rewritten, with tiles of `size` x `size` results; its arguments and every stage
    before and after the convolution stay as they are.

    Raises:
        ValueError: the kernel is no such convolution, or `size` is too large for it.
    """
    convolution = convolution_of(workload)
    if convolution is None:
        raise ValueError("not a convolution that can be done by minimal filtering")
    return filtered(workload, convolution, size)


def filtered(workload: Any, convolution: Convolution, size: int) -> Any:
    """As `winograd`, of a kernel that is known to be `convolution`."""
    function = workload["main"]
    block = convolution.form.block
    made = _stages(convolution, size)
    sources = {region.source.name: region.source for region in block.node.reads}
    theirs = [
        sources[convolution.form.other.buffer],  # type: ignore[union-attr]
        sources[convolution.form.vector.buffer],
        block.node.writes[0].source,
    ]

    stages = renamed(made.body, dict(zip(made.params, theirs, strict=True))).block
    return spliced(function, {block.name: stages.body.seq}, stages.alloc_buffers)


def _stages(convolution: Convolution, size: int) -> Any:
    """The stages as a function of image, filters and result, each named as above."""
    batch, rows, columns, depth = convolution.image
    taps, filters, channels = convolution.taps, convolution.filters, convolution.channels
    down, across = convolution.tiles(size)
    points = size + taps - 1
    tiles = batch * down * across
    of = filtering(size, taps)
    form = convolution.form
    terms, groups = form.terms, form.together
    assert form.other is not None, "a product of two"
    image = placeholder_of(form, form.other, "image")
    weights = placeholder_of(form, form.vector, "weights")
    whole = (down * size + taps - 1, across * size + taps - 1) == (rows, columns)

    def as_float(value: Any) -> Any:
        return value.astype("float32") if terms > 1 else value

    def pixel(p: Any, i: Any, j: Any, c: Any) -> Any:
        y, x = p // across % down * size + i, p % across * size + j
        read = as_float(image[p // (down * across), y, x, c])
        if whole:
            return read
        inside = tirx.all(y < rows, x < columns)
        return tirx.if_then_else(inside, read, tirx.const(0.0, "float32"))

    def tap(r: Any, s: Any, c: Any, k: Any) -> Any:
        places = zip(steps_of(groups), groups, strict=True)
        within = [c % terms // step % size for step, size in places]
        return as_float(weights(r, s, c // terms, k, *within))

    filter_rows = te.compute(
        (points, taps, channels, filters),
        lambda i, s, c, k: _times(of.taps, i, lambda r: tap(r, s, c, k)),
        name=FILTERS[0],
    )
    transformed = te.compute(
        (points, points, channels, filters),
        lambda i, j, c, k: _times(of.taps, j, lambda s: filter_rows[i, s, c, k]),
        name=FILTERS[1],
    )
    tile = te.compute((tiles, points, points, depth), pixel, name=SIGNAL[0])
    tile_rows = te.compute(
        (tiles, points, points, depth),
        lambda p, i, s, c: _times(of.signal, i, lambda r: tile[p, r, s, c]),
        name=SIGNAL[1],
    )
    signal = te.compute(
        (points, points, tiles, depth),
        lambda i, j, p, c: _times(of.signal, j, lambda s: tile_rows[p, i, s, c]),
        name=SIGNAL[2],
    )
    along = te.reduce_axis((0, channels), name="c")

    def channel(k: Any) -> Any:
        return along if channels == depth else k // convolution.group * channels + along

    product = te.compute(
        (points, points, tiles, filters),
        lambda i, j, p, k: te.sum(signal[i, j, p, channel(k)] * transformed[i, j, along, k], along),
        name=PRODUCT,
    )
    back_rows = te.compute(
        (tiles, size, points, filters),
        lambda p, i, s, k: _times(of.output, i, lambda r: product[r, s, p, k]),
        name=RESULT[0],
    )
    back = te.compute(
        (tiles, size, size, filters),
        lambda p, i, j, k: _times(of.output, j, lambda s: back_rows[p, i, s, k]),
        name=RESULT[1],
    )

    def whole_number(value: Any) -> Any:
        return tirx.nearbyint(value).astype("int32") if terms > 1 else value

    result = te.compute(
        (batch, rows - taps + 1, columns - taps + 1, filters),
        lambda n, y, x, k: whole_number(
            back[(n * down + y // size) * across + x // size, y % size, x % size, k]
        ),
        name=RESULT[2],
    )
    return te.create_prim_func([image, weights, result], index_dtype_override="int64")


def _times(matrix: Matrix, row: Any, element: Callable[[int], Any]) -> Any:
    """The product of a matrix's `row` with a vector; `row` is decided when its loop is unrolled."""
    values = [_sum(coefficients, element) for coefficients in matrix]
    chosen = values[-1]
    for index, value in reversed(list(enumerate(values[:-1]))):
        chosen = tirx.Select(row == index, value, chosen)
    return chosen


def _sum(coefficients: Sequence[Fraction], element: Callable[[int], Any]) -> Any:
    """Terms of even and of odd powers apart, each with a positive first coefficient: the rows of a
    point and of its negative then have both sums in common, and the compiler finds that out."""
    parts = []
    for parity in (0, 1):
        terms = [(i, c) for i, c in enumerate(coefficients) if c and i % 2 == parity]
        if terms:
            sign = 1 if terms[0][1] > 0 else -1
            total = None
            for index, coefficient in terms:
                total = _plus(total, sign * coefficient, element(index))
            parts.append((sign, total))
    whole = None
    for sign, part in parts:
        whole = _plus(whole, Fraction(sign), part)
    return whole


def _plus(total: Any, coefficient: Fraction, value: Any) -> Any:
    if total is None:
        return value if coefficient == 1 else value * tirx.const(float(coefficient), "float32")
    if coefficient == 1:
        return total + value
    if coefficient == -1:
        return total - value
    return total + value * tirx.const(float(coefficient), "float32")
