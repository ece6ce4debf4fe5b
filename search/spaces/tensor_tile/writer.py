"""From a tile to a kernel: its text in TensorIR, from the launch to the last store.

A block copies its operands step by step to shared memory, some steps ahead of what it multiplies,
sums up in registers, and lays the sums down where the operands were, so that the stages after the
product are done in whole rows. Where blocks share a tile's depth, their sums go to memory, and a
second launch adds them up and finishes. The structure is that of NVIDIA's CUTLASS (its documents on
efficient matrix products); images are read as matrices without being copied first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import ceil
from typing import Any, Generic, TypeVar

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var
from tvm_ffi import structural_map

from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.tensor_tile import device_text as text
from tunefarm.search.spaces.tensor_tile.copies import Side, Team, axes_at, copied, inside
from tunefarm.search.spaces.tensor_tile.product import Operand, Product
from tunefarm.search.spaces.tensor_tile.tile import Plan
from tunefarm.search.spaces.tensor_tile.tiling import VECTOR, Laid, Matrices, Tile, Tiling
from tunefarm.search.spaces.written import (
    Writer,
    all_of,
    call,
    local,
    number,
    when,
)

P = TypeVar("P", bound=Tiling[Any])

_FINISHING = 256
"""Threads of a block that adds up what others have summed."""


def matrices_of(product: Product) -> Matrices:
    size = product.element_bytes
    return Matrices(
        product.batches,
        product.rows,
        product.columns,
        product.length,
        product.dtype,
        product.sums,
        size,
        product.left.deep,
        product.right.deep,
        (product.left.piece * size, product.right.piece * size),
        all(side_of(product, one).tensor is not None for one in (product.left, product.right)),
    )


def side_of(product: Product, operand: Operand) -> Side:
    return Side(operand, product.block, product.batch, product.depth)


class TileWriter(Writer, ABC, Generic[P]):
    """Of kernels whose threads copy what they multiply."""

    def __init__(self, product: Product, plan: P) -> None:
        super().__init__()
        self._product, self._plan = product, plan
        self._tile: Tile = plan.tile
        self._memory = tirx.decl_buffer((plan.shared_bytes,), "uint8", "memory", scope="shared.dyn")
        self._sums = local(plan.held, product.sums, "sums")
        self._own = local(self._vector, product.sums, "own")
        self._start = Var("start", tvm.ir.PrimType("uint32"))
        self._parts: Any = None
        if self._tile.split > 1:
            size = (self._tile.split, product.batches, product.rows, product.columns)
            self._parts = tirx.decl_buffer(size, product.sums, "parts")

    @abstractmethod
    def _products(self, left: Any, right: Any) -> Any:
        """A step's, of operands at these addresses, added to the sums."""

    @abstractmethod
    def _lay_down(self) -> Any:
        """A thread's sums, in rows that are `Tiling.laid_row` bytes apart."""

    def _products_met(self, but: int) -> Any | None:
        """Until all but the last `but` steps' are there; None where they are when they are begun,
        for whoever multiplies waits for them."""
        return None

    def kernel(self) -> tuple[Any, list[Any]]:
        """Its text, and the buffers that it allocates."""
        text_ = [*self._before(), self._summing()]
        if self._parts is not None:
            text_.append(self._finish())
        whole = text_[0] if len(text_) == 1 else tirx.SeqStmt(text_)
        return whole, [] if self._parts is None else [self._parts]

    def _before(self) -> list[Any]:
        """What the host does."""
        return []

    def _summing(self) -> Any:
        """The first launch."""
        down, across = self._plan.grid
        deep = self._product.batches * self._tile.split
        threads = {
            "threadIdx.x": (self.variable("thread", self._tile.threads), self._tile.threads),
            "blockIdx.x": (self.variable("tile_of_grid", down * across), down * across),
            "blockIdx.y": (self.variable("deep", deep), deep),
        }
        (self._thread, _), (self._tiles, _), (which, _) = threads.values()
        row, column = self._place(down, across)
        batch = tirx.floordiv(which, self._tile.split)
        part = tirx.floormod(which, self._tile.split)
        row, column = row * self._tile.rows, column * self._tile.columns
        start = call(text.shared_address(), self._memory.data, returns="uint32")
        body = [
            tirx.Bind(self._start, start),
            *self._cleared(),
            *self._summed(batch, part, row, column),
            *self._laid(batch, part, row, column),
        ]
        return self.launch(tirx.SeqStmt(body), [self._memory, self._sums, self._own], threads)

    _thread: Any
    _tiles: Any

    def _place(self, down: int, across: int) -> tuple[Any, Any]:
        """Which tile a block has; those of a cluster are neighbours down."""
        cluster = self._tile.cluster
        if cluster == 1:
            return self._in_bands(self._tiles, self._tile.band, down, across)
        which, rank = tirx.floordiv(self._tiles, cluster), tirx.floormod(self._tiles, cluster)
        band = max(1, self._tile.band // cluster)
        row, column = self._in_bands(which, band, down // cluster, across)
        return row * cluster + rank, column

    def _in_bands(self, which: Any, band: int, down: int, across: int) -> tuple[Any, Any]:
        """Some rows at a time, column by column."""
        band = min(band, down)
        if band == 1:
            return tirx.floordiv(which, across), tirx.floormod(which, across)
        first = tirx.floordiv(which, band * across) * band
        within = tirx.floormod(which, band * across)
        if down % band == 0:
            row = first + tirx.floormod(within, band)
            return row, tirx.floordiv(within, band)
        left = tirx.min(number(down) - first, number(band))
        return first + tirx.floormod(within, left), tirx.floordiv(within, left)

    def _cleared(self) -> list[Any]:
        zero = tirx.const(0, self._product.sums)
        held = self._plan.held
        return [self.unrolled("held", held, lambda i: tirx.BufferStore(self._sums, zero, [i]))]

    # -------------------------------------------------------------------------- summing

    def _summed(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        plan, stages, product = self._plan, self._tile.stages, self._product
        steps, ahead, (of_left, of_right) = plan.steps, plan.ahead, plan.sides
        beside_them = self._products_met(0) is not None
        begun = call(text.copies_begun())

        def copies(step: Any, slot: Any) -> Any:
            to = self._start + tirx.Cast("uint32", self.simple(slot * plan.stage_bytes))
            term = (part * steps + step) * self._tile.depth
            beside = to + of_left.bytes
            return tirx.SeqStmt(
                [
                    self._copied(product.left, of_left, to, (batch, row, term)),
                    self._copied(product.right, of_right, beside, (batch, column, term)),
                ]
            )

        text_: list[Any] = []
        for first in range(ahead):
            if first < steps:
                text_.append(copies(number(first), number(first)))
            text_.append(begun)

        def step(k: Any) -> Any:
            slot = self._start + tirx.Cast("uint32", tirx.floormod(k, stages) * plan.stage_bytes)
            at = Var("slot", tvm.ir.PrimType("uint32"))
            following = copies(k + ahead, tirx.floormod(k + ahead, stages))
            one = [
                tirx.Bind(at, slot),
                call(text.copies_met(ahead - 1, beside_them)),
                self._products(at, at + of_left.bytes),
                when(k + ahead < steps, following),
                begun,
            ]
            if beside_them:
                one.append(self._products_met(1))
            else:  # what is copied next overwrites what the others may still be reading
                one[2], one[3] = one[3], one[2]
            return tirx.SeqStmt(one)

        text_.append(self.loop("step", steps, tirx.ForKind.SERIAL, step))
        if beside_them:
            text_.append(self._products_met(0))
        return text_

    def _copied(self, operand: Operand, layout: Laid, to: Any, place: tuple[Any, Any, Any]) -> Any:
        """One step's copies of one operand, by all threads."""
        tile, side = self._tile, side_of(self._product, operand)
        team = Team(tile.threads, self._thread)
        return copied(self, side, layout, to, place, team, tile.depth * tile.split)

    # ------------------------------------------------------------------------ finishing

    def _laid(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        plan, tile = self._plan, self._tile
        vectors = tile.columns // self._vector

        def one(turn: Any) -> Any:
            which = turn * tile.multiplying + self._thread
            line = tirx.floordiv(which, vectors)
            beside = tirx.floormod(which, vectors) * self._vector
            there = all_of(
                [
                    inside(row + line, self._product.rows, tile.rows),
                    inside(column + beside, self._product.columns, tile.columns),
                    None if tile.rows * vectors % tile.multiplying == 0 else line < tile.rows,
                ]
            )
            place = self._start + tirx.Cast("uint32", line * plan.laid_row + beside * 4)
            pick = call(text.pick_up(self._product.sums, self._vector), self._own.data, place)

            def stored(lane: Any) -> Any:
                own = tirx.BufferLoad(self._own, [lane])
                if self._parts is not None:
                    where = [part, batch, row + line, column + beside + lane]
                    return tirx.BufferStore(self._parts, own, where)
                return self._result(own, batch, row + line, column + beside, lane)

            return when(there, tirx.SeqStmt([pick, self.vector(self._vector, stored)]))

        count = ceil(tile.rows * vectors / tile.multiplying)
        laid = self._lay_down()
        vectors_ = self.loop("vector", count, tirx.ForKind.SERIAL, one)
        return [
            self._all_read(),
            self._of_multiplying(laid),
            self._met(),
            self._of_multiplying(vectors_),
        ]

    def _all_read(self) -> Any:
        """Nobody reads operands any more."""
        return self._met()

    def _met(self) -> Any:
        """All threads of a block."""
        return call(text.copies_met(0, False))

    def _of_multiplying(self, body: Any) -> Any:
        """Of the threads that have sums."""
        return body

    def _finish(self) -> Any:
        """The second launch: each thread adds up some neighbouring columns' parts."""
        product, split = self._product, self._tile.split
        vectors = product.columns // self._vector
        results = product.batches * product.rows * vectors
        blocks = ceil(results / _FINISHING)
        threads = {
            "threadIdx.x": (self.variable("thread", _FINISHING), _FINISHING),
            "blockIdx.x": (self.variable("block", blocks), blocks),
        }
        (thread, _), (block, _) = threads.values()
        which = block * _FINISHING + thread
        column = tirx.floormod(which, vectors) * self._vector
        row = tirx.floormod(tirx.floordiv(which, vectors), product.rows)
        batch = tirx.floordiv(which, vectors * product.rows)
        total = local(self._vector, product.sums, "total")

        def part(which: Any, lane: Any) -> Any:
            return tirx.BufferLoad(self._parts, [which, batch, row, column + lane])

        def first(lane: Any) -> Any:
            return tirx.BufferStore(total, part(number(0), lane), [lane])

        def added(one: Any) -> Any:
            def add(lane: Any) -> Any:
                value = tirx.BufferLoad(total, [lane]) + part(one + 1, lane)
                return tirx.BufferStore(total, value, [lane])

            return self.vector(self._vector, add)

        def stored(lane: Any) -> Any:
            return self._result(tirx.BufferLoad(total, [lane]), batch, row, column, lane)

        body = [
            self.vector(self._vector, first),
            self.unrolled("part", split - 1, added),
            self.vector(self._vector, stored),
        ]
        there = None if results % _FINISHING == 0 else which < results
        return self.launch(when(there, tirx.SeqStmt(body)), [total], threads)

    @property
    def _last_column(self) -> int:
        """The axis that neighbouring columns count."""
        axes = self._product.block.axes
        return [axis for axis in self._product.right.lines if axes[axis].extent > 1][-1]

    @property
    def _vector(self) -> int:
        """Columns that are finished together: they lie side by side in the result."""
        axes, column = self._product.block.axes, self._last_column
        if any(axis.extent > 1 and not axis.reduces for axis in axes[column + 1 :]):
            return 1
        return next(n for n in (VECTOR, 2, 1) if axes[column].extent % n == 0)

    def _result(self, sums: Any, batch: Any, row: Any, column: Any, lane: Any) -> Any:
        """What is stored of the element at `column` + `lane`, and where."""
        product = self._product
        axes = axes_at(product.block, product.batch, batch)
        axes |= axes_at(product.block, product.left.lines, row)
        axes |= axes_at(product.block, product.right.lines, column)
        block = product.block.node
        # Vectors do not reach beyond the end of the last axis.
        variables = [v.var for v in block.iter_vars]
        axes[variables[self._last_column]] = axes[variables[self._last_column]] + lane
        places = [
            self.simple(axes[variable])
            for variable, axis in zip(variables, product.block.axes, strict=True)
            if not axis.reduces
        ]
        made = {product.block.node.body.buffer: sums}
        buffer = block.body.buffer
        value = sums
        for stage in product.after:

            def read(load: Any) -> Any:
                return made.get(load.source, load)

            value = structural_map(stage.value, (TensorLoad, read))
            value = renamed(value, dict(zip(stage.variables, places, strict=True)))
            made[stage.buffer] = value
            buffer = stage.buffer
        return tirx.BufferStore(buffer, value, places)


class TensorWriter(TileWriter[Plan]):
    """Of those that multiply on tensor cores."""

    def _products(self, left: Any, right: Any) -> Any:
        return call(text.multiply(self._plan.shape), self._sums.data, left, right)

    def _products_met(self, but: int) -> Any | None:
        if not self._plan.shape.grouped:
            return None
        return call(text.multiplied(self._plan.shape, but), self._sums.data)

    def _lay_down(self) -> Any:
        laid = text.lay_down(self._plan.shape, self._plan.laid_row)
        return call(laid, self._sums.data, self._start)
