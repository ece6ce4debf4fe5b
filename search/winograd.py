"""A convolution by minimal filtering: fewer products, more additions.

Tiles of the image and the filters are transformed (`cook_toom`); what was a convolution is then a
product of matrices at each of the transform's points, and the result is transformed back (Lavin
and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016). With 4x4 results a tile,
a 3x3 convolution takes a quarter of its products. Filters are constants: they are transformed when
they are packed.

This is another algorithm for the same kernel, not a schedule of its text: `winograd` rewrites the
text, and a schedule of the new one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir.expr import Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_map

from tunefarm.search.cook_toom import Matrix, filtering
from tunefarm.search.spaces.form import Reduction, reduction_of

PRODUCT = "winograd_product"
FILTERS = ("winograd_filter_rows", "winograd_filters")
SIGNAL = ("winograd_tile", "winograd_rows", "winograd_points")
RESULT = ("winograd_back", "winograd_result", "winograd_image")
"""Names of the stages that `winograd` makes, in the order of the text."""


@dataclass(frozen=True)
class Convolution:
    """A kernel that `winograd` can rewrite: channels last, one group, no stride and no dilation.

    Attributes:
        form: the kernel as a reduction.
        image: the padded input: batch, rows, columns, channels.
        taps: rows and columns of a filter.
        filters: how many there are.
    """

    form: Reduction
    image: tuple[int, int, int, int]
    taps: int
    filters: int

    def tiles(self, size: int) -> tuple[int, int]:
        """Rows and columns of tiles with `size` x `size` results."""
        _, rows, columns, _ = self.image
        return tuple(-(-(of - self.taps + 1) // size) for of in (rows, columns))  # type: ignore[return-value]


def convolution_of(workload: Any) -> Convolution | None:
    """`workload` as a convolution that can be rewritten, None where it is something else."""
    form = reduction_of(workload)
    if form is None or form.other is None or not form.product or form.copies:
        return None
    if len(form.spatial) != 4 or len(form.reductions) != 3 or len(form.before) > 1:
        return None
    image, filters = form.other.shape, form.vector
    if len(image) != 4 or not filters.free:
        return None
    _, y, x, k = form.spatial
    r, s, c = form.reductions
    if filters.plain != (r, s, c, k) or form.extent(r) != form.extent(s) or form.extent(r) < 2:
        return None
    row, column = image[2] * image[3], image[3]
    steps = form.other.strides
    if [steps[axis] for axis in (y, r, x, s, c, k)] != [row, row, column, column, 1, 0]:
        return None
    if image[3] != form.extent(c):
        return None  # groups
    return Convolution(form, image, form.extent(r), form.extent(k))


def winograd(workload: Any, size: int) -> Any:
    """`workload` rewritten, with tiles of `size` x `size` results; its arguments and every stage
    before and after the convolution stay as they are.

    Raises:
        ValueError: the kernel is no such convolution, or `size` is too large for it.
    """
    convolution = convolution_of(workload)
    if convolution is None:
        raise ValueError("not a convolution that can be done by minimal filtering")
    function = workload["main"]
    block = convolution.form.block
    made = _stages(convolution, size)
    sources = {region.source.name: region.source for region in block.node.reads}
    theirs = [
        sources[convolution.form.other.buffer],  # type: ignore[union-attr]
        sources[convolution.form.vector.buffer],
        block.node.writes[0].source,
    ]

    def buffer(variable: Any) -> Any:
        for mine, other in zip(made.params, theirs, strict=True):
            if variable.same_as(mine):
                return other
        return variable

    stages = structural_map(made.body, (Var, buffer)).block
    root = function.body.block
    text: list[Any] = []
    for statement in root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]:
        text += list(stages.body.seq) if _holds(statement, block.name) else [statement]
    rewritten = SBlock(
        [],
        [],
        [],
        "root",
        tirx.SeqStmt(text),
        alloc_buffers=[*root.alloc_buffers, *stages.alloc_buffers],
    )
    body = SBlockRealize([], tirx.const(True, "bool"), rewritten)
    return tvm.IRModule({"main": function.with_body(body)})


def _holds(statement: Any, block: str) -> bool:
    from tvm_ffi import structural_walk

    names: list[str] = []
    structural_walk(statement, (SBlock, lambda node: names.append(node.name_hint)))
    return block in names


def _stages(convolution: Convolution, size: int) -> Any:
    """The stages as a function of image, filters and result, each named as above."""
    batch, rows, columns, channels = convolution.image
    taps, filters = convolution.taps, convolution.filters
    down, across = convolution.tiles(size)
    points = size + taps - 1
    tiles = batch * down * across
    of = filtering(size, taps)
    image = te.placeholder((batch, rows, columns, channels), name="image")
    weights = te.placeholder((taps, taps, channels, filters), name="weights")
    whole = (down * size + taps - 1, across * size + taps - 1) == (rows, columns)

    def pixel(p: Any, i: Any, j: Any, c: Any) -> Any:
        y, x = p // across % down * size + i, p % across * size + j
        read = image[p // (down * across), y, x, c]
        if whole:
            return read
        inside = tirx.all(y < rows, x < columns)
        return tirx.if_then_else(inside, read, tirx.const(0.0, "float32"))

    filter_rows = te.compute(
        (points, taps, channels, filters),
        lambda i, s, c, k: _times(of.taps, i, lambda r: weights[r, s, c, k]),
        name=FILTERS[0],
    )
    transformed = te.compute(
        (points, points, channels, filters),
        lambda i, j, c, k: _times(of.taps, j, lambda s: filter_rows[i, s, c, k]),
        name=FILTERS[1],
    )
    tile = te.compute((tiles, points, points, channels), pixel, name=SIGNAL[0])
    tile_rows = te.compute(
        (tiles, points, points, channels),
        lambda p, i, s, c: _times(of.signal, i, lambda r: tile[p, r, s, c]),
        name=SIGNAL[1],
    )
    signal = te.compute(
        (points, points, tiles, channels),
        lambda i, j, p, c: _times(of.signal, j, lambda s: tile_rows[p, i, s, c]),
        name=SIGNAL[2],
    )
    along = te.reduce_axis((0, channels), name="c")
    product = te.compute(
        (points, points, tiles, filters),
        lambda i, j, p, k: te.sum(signal[i, j, p, along] * transformed[i, j, along, k], along),
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
    result = te.compute(
        (batch, rows - taps + 1, columns - taps + 1, filters),
        lambda n, y, x, k: back[(n * down + y // size) * across + x // size, y % size, x % size, k],
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
