"""What every tile of a product has in common, whoever multiplies: the matrices in figures, the
grid, the steps, the memory, and what a launch should take; pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Generic, Protocol, TypeVar

from tunefarm.devices.gpu import Arch
from tunefarm.search.spaces import gpu_costs as costs
from tunefarm.search.spaces.tensor_tile.layout import ALIGNED

PAD = 8
"""Sums between the rows that are laid down, so that neighbouring rows begin in other banks."""
VECTOR = 4
"""Columns of the result that a thread finishes at once."""
MOST_BLOCKS = 65535
"""Blocks along any but a launch's first dimension."""
SINGLE_BYTES = 2
"""Of elements that threads read one by one, where no asynchronous copy is so short."""
_SEEN = 0.3
"""How much of what is shorter does not hide behind the longest."""
_BARRIER = 40.0
"""Cycles until a block's threads have met."""


@dataclass(frozen=True)
class Matrices:
    """A product in figures; see `product.Product`. `pieces`: bytes that threads copy at once, or
    `SINGLE_BYTES` of an element alone;
    `boxes`: whether both operands lie as the copy engine wants it."""

    batches: int
    rows: int
    columns: int
    length: int
    dtype: str
    sums: str
    element_bytes: int
    left_deep: bool
    right_deep: bool
    pieces: tuple[int, int]
    boxes: bool = False

    @property
    def readable(self) -> bool:
        """Whether tensor cores' operands can be made of elements that lie so: nothing turns what
        is not in 16 bits on its way to the registers, though of words each thread can read its own
        of the right operand."""
        if self.element_bytes == 2:
            return True
        return self.left_deep and (self.right_deep or self.element_bytes == 4)


class Tile(Protocol):
    """Of a block; see `tile.TensorTile`."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def stages(self) -> int: ...
    @property
    def split(self) -> int: ...
    @property
    def band(self) -> int: ...
    @property
    def cluster(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def multiplying(self) -> int: ...


class Laid(Protocol):
    """How an operand's tile lies in shared memory; see `layout.TileLayout`."""

    @property
    def lines(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def deep(self) -> bool: ...
    @property
    def across(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def offset(self, line: Any, term: Any) -> Any: ...


T = TypeVar("T", bound=Tile)


@dataclass(frozen=True)
class Tiling(ABC, Generic[T]):
    """A tile of these matrices: what follows from it."""

    matrices: Matrices
    tile: T

    @property
    @abstractmethod
    def sides(self) -> tuple[Laid, Laid]:
        """Of both operands, one step's."""

    @property
    @abstractmethod
    def held(self) -> int:
        """Sums of a thread."""

    @property
    @abstractmethod
    def registers(self) -> int:
        """Of a thread, as far as they can be counted."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Steps whose copies are on their way."""

    @property
    def stage_bytes(self) -> int:
        return sum(one.bytes for one in self.sides)

    @property
    def laid_row(self) -> int:
        """Bytes from one row of the sums to the next, where they are laid down."""
        return (self.tile.columns + PAD) * costs.SUM_BYTES

    @property
    def tile_bytes(self) -> int:
        """The operands of all stages, and in the end the sums in their place."""
        operands = self.tile.stages * self.stage_bytes
        return max(operands, self.tile.rows * self.laid_row)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return self.tile_bytes + ALIGNED

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles by rows and by columns."""
        one, tile = self.matrices, self.tile
        return ceil(one.rows / tile.rows), ceil(one.columns / tile.columns)

    @property
    def steps(self) -> int:
        """Of each block."""
        return ceil(self.matrices.length / self.tile.depth / self.tile.split)

    @property
    def blocks(self) -> int:
        down, across = self.grid
        return self.matrices.batches * down * across * self.tile.split

    @property
    def copies(self) -> tuple[int, int]:
        """That a thread does in a step, of each operand."""
        left, right = self.pieces
        return ceil(left / self.tile.threads), ceil(right / self.tile.threads)

    @property
    def pieces(self) -> tuple[int, int]:
        """That are copied in a step, of each operand."""
        tile, one = self.tile, self.matrices
        left, right = (
            lines * tile.depth * one.element_bytes for lines in (tile.rows, tile.columns)
        )
        return left // one.pieces[0], right // one.pieces[1]


def too_much(length: int, tile: int, least: int) -> bool:
    """Whether half of the tile would lie beyond the end."""
    return tile > least and tile >= 2 * length


def sensible(plan: Tiling[T], arch: Arch) -> bool:
    """Whether nothing of it is for nothing."""
    tile, (down, across) = plan.tile, plan.grid
    if tile.split > 1:
        # Sharing is for products with too few tiles, and has to leave each block some steps.
        fewer = plan.matrices.batches * down * across * (tile.split // 2)
        if fewer >= arch.multiprocessors or plan.steps < 2:
            return False
        if plan.steps * (tile.split - 1) * tile.depth >= plan.matrices.length:
            return False  # the last one would have nothing to do
    if tile.band > 1 and (down < tile.band or across == 1):
        return False
    if tile.band > 1 and plan.matrices.batches * down * across <= arch.multiprocessors:
        return False  # all of them run at a time
    return not (tile.stages > 3 and plan.ahead > plan.steps)


def launched_s(
    plan: Tiling[T], arch: Arch, resident: int, parts: Sequence[float], ahead: int
) -> float:
    """Seconds of a launch, to order tiles by; see `gpu_costs` for where its numbers are from.

    Args:
        resident: blocks of a multiprocessor at a time.
        parts: cycles of what goes on at a time in a block's step.
        ahead: steps that what is fetched has been asked for before.
    """
    tile, (down, across) = plan.tile, plan.grid
    busy = costs.overlapped(parts, _SEEN)
    step = max(resident * busy, busy + costs.LATENCY / ahead) + _BARRIER
    laid = costs.stored(tile.rows, tile.columns) * (1.0 if tile.split == 1 else 3.0)
    waves = ceil(plan.blocks / (resident * arch.multiprocessors))
    cycles = waves * (plan.steps * step + costs.BEGIN + resident * laid)
    if tile.split > 1:  # another kernel, that waits for all of them
        cycles += 2 * costs.BEGIN
    if tile.band == 1 and down * across > 2 * arch.multiprocessors and down > 1 < across:
        cycles *= 1.05  # operands come from memory again
    return cycles / costs.HERTZ


def figures_of(one: Matrices) -> tuple[float, ...]:
    """As a cost model has them."""
    sizes = (one.batches, one.rows, one.columns, one.length)
    said = (one.element_bytes, one.left_deep, one.right_deep)
    return (*(log2(n) for n in sizes), *(float(n) for n in said))
