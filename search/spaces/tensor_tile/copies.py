"""The copies of a step, piece by piece, by the threads of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.form import Stage
from tunefarm.search.spaces.tensor_tile import device_text as text
from tunefarm.search.spaces.tensor_tile.box import Tensor, tensor_of
from tunefarm.search.spaces.tensor_tile.product import Operand
from tunefarm.search.spaces.tensor_tile.tiling import SINGLE_BYTES, Laid
from tunefarm.search.spaces.written import Writer, all_of, call, coordinates, number, when


@dataclass(frozen=True)
class Side:
    """An operand of the product in `block`, whose batches and depth count these axes."""

    operand: Operand
    block: Stage
    batch: tuple[int, ...]
    depth: tuple[int, ...]

    @property
    def lines(self) -> int:
        return extent_of(self.block, self.operand.lines)

    @property
    def length(self) -> int:
        return extent_of(self.block, self.depth)

    @property
    def batches(self) -> int:
        return extent_of(self.block, self.batch)

    @property
    def tensor(self) -> Tensor | None:
        """As Hopper's copy engine sees it, None where it cannot."""
        return tensor_of(self.block, self.operand, self.batch, self.depth)


@dataclass(frozen=True)
class Team:
    """Threads that copy together: how many, and which of them one is."""

    threads: int
    thread: Any


def copied(
    writer: Writer,
    side: Side,
    layout: Laid,
    to: Any,
    place: tuple[Any, Any, Any],
    team: Team,
    terms: int,
) -> Any:
    """Copies of one tile to shared memory from the address `to` on.

    Args:
        place: batch, first line and first term.
        terms: multiples of which are copied in all: where they reach beyond the end, there are
            zeros.
    """
    operand = side.operand
    batch, line, term = place
    piece = operand.piece
    along = (layout.depth if layout.deep else layout.lines) // piece
    pieces = along * layout.across

    def one(turn: Any) -> Any:
        which = turn * team.threads + team.thread
        across, beside = tirx.floordiv(which, along), tirx.floormod(which, along) * piece
        inner_line, inner_term = (across, beside) if layout.deep else (beside, across)
        of_line, of_term = line + inner_line, term + inner_term
        # The other operand's lines do not count here, but for those of which there is one.
        axes = axes_at(side.block, range(len(side.block.axes)), number(0))
        axes |= axes_at(side.block, side.batch, batch)
        axes |= axes_at(side.block, operand.lines, of_line)
        axes |= axes_at(side.block, side.depth, of_term)
        indices = [writer.simple(renamed(index, axes)) for index in operand.indices]
        condition = operand.condition
        there = all_of(
            [
                inside(of_line, side.lines, layout.lines),
                inside(of_term, side.length, terms),
                None if condition is None else renamed(condition, axes),
            ]
        )
        said = number(1) if there is None else tirx.Cast("int32", writer.simple(there))
        source = tirx.address_of(tirx.BufferLoad(operand.buffer, indices))
        at = to + tirx.Cast("uint32", writer.simple(layout.offset(inner_line, inner_term)))
        size = piece * numpy_dtype(str(operand.buffer.dtype)).itemsize
        copy = text.copy_single() if size == SINGLE_BYTES else text.copy_piece(size)
        return when(inside(which, pieces, team.threads), call(copy, at, source, said))

    return writer.unrolled("piece", -(-pieces // team.threads), one)


def inside(place: Any, length: int, tile: int) -> Any:
    """None where no tile reaches beyond the end."""
    return None if length % tile == 0 else place < length


def axes_at(block: Stage, axes: Sequence[int], place: Any) -> dict[Any, Any]:
    """Values of a block's variables at a place among all of these axes."""
    variables = [v.var for v in block.node.iter_vars]
    values = coordinates(place, [block.axes[axis].extent for axis in axes])
    return {variables[axis]: value for axis, value in zip(axes, values, strict=True)}


def extent_of(block: Stage, axes: Sequence[int]) -> int:
    return prod(block.axes[axis].extent for axis in axes)
