"""From a tile to a kernel: its text in TensorIR, from the launch to the last store.

A block copies its operands step by step to shared memory, some steps ahead of what it multiplies,
sums up in registers, and lays the sums down where the operands were, so that the stages after the
product are done in whole rows. Where blocks share a tile's depth, their sums go to memory, and a
second launch adds them up and finishes. The structure is that of NVIDIA's CUTLASS (its documents on
efficient matrix products); images are read as matrices without being copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.expr import TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tunefarm.search.spaces.tensor_tile import device_text as text
from tunefarm.search.spaces.tensor_tile.layout import TileLayout
from tunefarm.search.spaces.tensor_tile.product import Operand, Product
from tunefarm.search.spaces.tensor_tile.tile import VECTOR, Matrices, Plan, TensorTile
from tunefarm.search.splice import renamed

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
    )


def written(function: Any, product: Product, tile: TensorTile) -> Any:
    """`function`, which computes `product`, as a kernel that computes it by `tile`."""
    body, buffers = _Writer(function, product, Plan(matrices_of(product), tile)).kernel()
    block = SBlock([], [], [], "root", body, alloc_buffers=buffers)
    return function.with_body(SBlockRealize([], tirx.const(True, "bool"), block))


def _call(function: text.Function, *arguments: Any, returns: str = "void") -> Any:
    made = cuda_func_call(function.name, *arguments, source_code=function.text, return_type=returns)
    return tirx.Evaluate(made) if returns == "void" else made


def _sequence(statements: Sequence[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _if(condition: Any, body: Any) -> Any:
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def _all(conditions: Sequence[Any]) -> Any:
    """None where there is none."""
    found = None
    for one in conditions:
        if one is not None:
            found = one if found is None else tirx.And(found, one)
    return found


def _int(value: int) -> Any:
    return tirx.const(value, "int32")


class _Writer:
    def __init__(self, function: Any, product: Product, plan: Plan) -> None:
        self._function, self._product, self._plan = function, product, plan
        self._tile = plan.tile
        shape = plan.shape
        self._memory = tirx.decl_buffer((plan.shared_bytes,), "uint8", "memory", scope="shared.dyn")
        self._sums = tirx.decl_buffer((shape.held,), product.sums, "sums", scope="local")
        self._own = tirx.decl_buffer((self._vector,), product.sums, "own", scope="local")
        self._start = Var("start", tvm.ir.PrimType("uint32"))
        self._analyzer = Analyzer()
        self._parts: Any = None
        if self._tile.split > 1:
            size = (self._tile.split, product.batches, product.rows, product.columns)
            self._parts = tirx.decl_buffer(size, product.sums, "parts")

    def kernel(self) -> tuple[Any, list[Any]]:
        """Its text, and the buffers that it allocates."""
        first = self._launch(self._block(), [self._memory, self._sums, self._own])
        if self._parts is None:
            return first, []
        return tirx.SeqStmt([first, self._finish()]), [self._parts]

    def _launch(self, body: Any, buffers: list[Any]) -> Any:
        block = SBlock([], [], [], "tile", body, alloc_buffers=buffers)
        down, across = self._plan.grid
        inside = SBlockRealize([], tirx.const(True, "bool"), block)
        inside = self._threads(self._thread, self._tile.threads, "threadIdx.x", inside)
        inside = self._threads(self._tiles, down * across, "blockIdx.x", inside)
        deep = self._product.batches * self._tile.split
        return self._threads(self._deep, deep, "blockIdx.y", inside)

    # ------------------------------------------------------------------------ variables

    _thread: Any
    _tiles: Any
    _deep: Any

    def _block(self) -> Any:
        self._thread, self._tiles, self._deep = (
            Var(name, tvm.ir.PrimType("int32")) for name in ("thread", "tile_of_grid", "deep")
        )
        self._bind(self._thread, self._tile.threads)
        down, across = self._plan.grid
        self._bind(self._tiles, down * across)
        self._bind(self._deep, self._product.batches * self._tile.split)
        row, column = self._place(down, across)
        batch = tirx.floordiv(self._deep, self._tile.split)
        part = tirx.floormod(self._deep, self._tile.split)
        row, column = row * self._tile.rows, column * self._tile.columns
        body = [
            *self._cleared(),
            *self._summed(batch, part, row, column),
            *self._laid(batch, part, row, column),
        ]
        start = _call(text.shared_address(), self._memory.data, returns="uint32")
        return tirx.SeqStmt([tirx.Bind(self._start, start), *body])

    def _bind(self, variable: Any, extent: int) -> None:
        self._analyzer.bind(variable, tvm.ir.Range(0, extent), True)

    def _simple(self, expression: Any) -> Any:
        return self._analyzer.simplify(expression)

    def _threads(self, variable: Any, extent: int, name: str, body: Any) -> Any:
        axis = tirx.IterVar(tvm.ir.Range(0, extent), variable, tirx.IterVar.ThreadIndex, name)
        return tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, body, axis)

    def _loop(self, name: str, extent: int, kind: Any, body: Any) -> Any:
        """`body` makes the text from the variable."""
        variable = Var(name, tvm.ir.PrimType("int32"))
        self._bind(variable, extent)
        return tirx.For(variable, 0, extent, kind, body(variable))

    def _place(self, down: int, across: int) -> tuple[Any, Any]:
        """Which tile a block has: some rows of tiles at a time, column by column."""
        together = min(self._tile.together, down)
        if together == 1:
            return tirx.floordiv(self._tiles, across), tirx.floormod(self._tiles, across)
        band = tirx.floordiv(self._tiles, together * across)
        within = tirx.floormod(self._tiles, together * across)
        if down % together == 0:
            row = band * together + tirx.floormod(within, together)
            return row, tirx.floordiv(within, together)
        left = tirx.min(_int(down) - band * together, _int(together))
        return band * together + tirx.floormod(within, left), tirx.floordiv(within, left)

    def _cleared(self) -> list[Any]:
        zero = tirx.const(0, self._product.sums)
        return [
            self._loop(
                "held",
                self._plan.shape.held,
                tirx.ForKind.UNROLLED,
                lambda i: tirx.BufferStore(self._sums, zero, [i]),
            )
        ]

    # -------------------------------------------------------------------------- summing

    def _summed(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        plan, shape, stages = self._plan, self._plan.shape, self._tile.stages
        grouped, steps, ahead = shape.grouped, plan.steps, plan.ahead
        begun = _call(text.copies_begun())

        def copies(step: Any, slot: Any) -> Any:
            to = self._start + tirx.Cast("uint32", self._simple(slot * plan.stage_bytes))
            term = (part * steps + step) * self._tile.depth
            product = self._product
            return tirx.SeqStmt(
                [
                    self._copied(product.left, shape.left, to, batch, row, term),
                    self._copied(
                        product.right, shape.right, to + shape.left.bytes, batch, column, term
                    ),
                ]
            )

        text_: list[Any] = []
        for number in range(ahead):
            if number < steps:
                text_.append(copies(_int(number), _int(number)))
            text_.append(begun)

        def step(k: Any) -> Any:
            slot = self._start + tirx.Cast("uint32", tirx.floormod(k, stages) * plan.stage_bytes)
            at = Var("slot", tvm.ir.PrimType("uint32"))
            following = copies(k + ahead, tirx.floormod(k + ahead, stages))
            one = [
                tirx.Bind(at, slot),
                _call(text.copies_met(ahead - 1, grouped)),
                _call(text.multiply(shape), self._sums.data, at, at + shape.left.bytes),
                _if(k + ahead < steps, following),
                begun,
            ]
            if grouped:
                one.append(_call(text.multiplied(shape, 1), self._sums.data))
            else:  # what is copied next overwrites what the others may still be reading
                one[2], one[3] = one[3], one[2]
            return tirx.SeqStmt(one)

        text_.append(self._loop("step", steps, tirx.ForKind.SERIAL, step))
        if grouped:
            text_.append(_call(text.multiplied(shape, 0), self._sums.data))
        return text_

    def _copied(
        self, operand: Operand, layout: TileLayout, to: Any, batch: Any, line: Any, term: Any
    ) -> Any:
        """One step's copies of one operand, by all threads."""
        piece = operand.piece
        along = (layout.depth if layout.deep else layout.lines) // piece
        pieces = along * layout.across
        product = self._product

        def one(number: Any) -> Any:
            which = number * self._tile.threads + self._thread
            across, beside = tirx.floordiv(which, along), tirx.floormod(which, along) * piece
            inner_line, inner_term = (across, beside) if layout.deep else (beside, across)
            of_line, of_term = line + inner_line, term + inner_term
            axes = self._axes(product.batch, batch)
            axes |= self._axes(operand.lines, of_line)
            axes |= self._axes(product.depth, of_term)
            indices = [self._simple(renamed(index, axes)) for index in operand.indices]
            condition = operand.condition
            there = _all(
                [
                    self._inside(of_line, product.extent(operand.lines), layout.lines),
                    self._inside(of_term, product.length, self._tile.depth * self._tile.split),
                    None if condition is None else renamed(condition, axes),
                ]
            )
            said = _int(1) if there is None else tirx.Cast("int32", self._simple(there))
            source = tirx.address_of(tirx.BufferLoad(operand.buffer, indices))
            place = to + tirx.Cast("uint32", self._simple(layout.offset(inner_line, inner_term)))
            return _call(text.copy_piece(piece * product.element_bytes), place, source, said)

        count = pieces // self._tile.threads
        return self._loop("piece", count, tirx.ForKind.UNROLLED, one)

    def _inside(self, place: Any, length: int, tile: int) -> Any:
        """None where no tile reaches beyond the end."""
        return None if length % tile == 0 else place < length

    def _axes(self, axes: Sequence[int], place: Any) -> dict[Any, Any]:
        """Values of the block's variables at a place among all of these axes."""
        variables = [v.var for v in self._product.block.node.iter_vars]
        found: dict[Any, Any] = {}
        outermost = True
        rest = place
        long = [axis for axis in axes if self._product.block.axes[axis].extent > 1]
        for axis in axes:
            if axis not in long:
                found[variables[axis]] = _int(0)
        for axis in reversed(long):
            extent = self._product.block.axes[axis].extent
            outermost = axis == long[0]
            found[variables[axis]] = rest if outermost else tirx.floormod(rest, extent)
            rest = rest if outermost else tirx.floordiv(rest, extent)
        return found

    # ------------------------------------------------------------------------ finishing

    def _laid(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        plan, tile = self._plan, self._tile
        vectors = tile.columns // self._vector

        def one(number: Any) -> Any:
            which = number * tile.threads + self._thread
            line = tirx.floordiv(which, vectors)
            beside = tirx.floormod(which, vectors) * self._vector
            there = _all(
                [
                    self._inside(row + line, self._product.rows, tile.rows),
                    self._inside(column + beside, self._product.columns, tile.columns),
                    None if tile.rows * vectors % tile.threads == 0 else line < tile.rows,
                ]
            )
            place = self._start + tirx.Cast("uint32", line * plan.laid_row + beside * 4)
            pick = _call(text.pick_up(self._product.sums, self._vector), self._own.data, place)

            def stored(lane: Any) -> Any:
                own = tirx.BufferLoad(self._own, [lane])
                if self._parts is not None:
                    where = [part, batch, row + line, column + beside + lane]
                    return tirx.BufferStore(self._parts, own, where)
                return self._result(own, batch, row + line, column + beside, lane)

            return _if(there, tirx.SeqStmt([pick, self._lanes(stored)]))

        count = ceil(tile.rows * vectors / tile.threads)
        met = text.copies_met(0, False)
        return [
            _call(met),  # nobody reads operands any more
            _call(text.lay_down(plan.shape, plan.laid_row), self._sums.data, self._start),
            _call(met),
            self._loop("vector", count, tirx.ForKind.SERIAL, one),
        ]

    def _finish(self) -> Any:
        """The second launch: each thread adds up some neighbouring columns' parts."""
        product, split = self._product, self._tile.split
        vectors = product.columns // self._vector
        total = product.batches * product.rows * vectors
        block, thread = (Var(name, tvm.ir.PrimType("int32")) for name in ("blocks", "thread"))
        blocks = ceil(total / _FINISHING)
        self._bind(block, blocks)
        self._bind(thread, _FINISHING)
        which = block * _FINISHING + thread
        column = tirx.floormod(which, vectors) * self._vector
        row = tirx.floormod(tirx.floordiv(which, vectors), product.rows)
        batch = tirx.floordiv(which, vectors * product.rows)
        total_ = tirx.decl_buffer((self._vector,), product.sums, "total", scope="local")

        def part(number: Any, lane: Any) -> Any:
            return tirx.BufferLoad(self._parts, [number, batch, row, column + lane])

        def added(number: Any) -> Any:
            def one(lane: Any) -> Any:
                value = tirx.BufferLoad(total_, [lane]) + part(number + 1, lane)
                return tirx.BufferStore(total_, value, [lane])

            return self._lanes(one)

        body = tirx.SeqStmt(
            [
                self._lanes(lambda lane: tirx.BufferStore(total_, part(_int(0), lane), [lane])),
                self._loop("part", split - 1, tirx.ForKind.UNROLLED, added),
                self._lanes(
                    lambda lane: self._result(
                        tirx.BufferLoad(total_, [lane]), batch, row, column, lane
                    )
                ),
            ]
        )
        inside = _if(None if total % _FINISHING == 0 else which < total, body)
        made = SBlock([], [], [], "finish", inside, alloc_buffers=[total_])
        realized = SBlockRealize([], tirx.const(True, "bool"), made)
        inner = self._threads(thread, _FINISHING, "threadIdx.x", realized)
        return self._threads(block, blocks, "blockIdx.x", inner)

    def _lanes(self, body: Any) -> Any:
        kind = tirx.ForKind.VECTORIZED if self._vector > 1 else tirx.ForKind.SERIAL
        return self._loop("lane", self._vector, kind, body)

    @property
    def _vector(self) -> int:
        """Columns that are finished together: they lie side by side in the result."""
        axes = self._product.block.axes
        long = [axis for axis in self._product.right.lines if axes[axis].extent > 1]
        last = [n for n, axis in enumerate(axes) if not axis.reduces][-1]
        if not long or any(
            axes[n].extent > 1 and not axes[n].reduces for n in range(long[-1] + 1, last + 1)
        ):
            return 1
        return next(n for n in (VECTOR, 2, 1) if axes[long[-1]].extent % n == 0)

    def _result(self, sums: Any, batch: Any, row: Any, column: Any, lane: Any) -> Any:
        """What is stored of the element at `column` + `lane`, and where."""
        product = self._product
        axes = self._axes(product.batch, batch)
        axes |= self._axes(product.left.lines, row)
        columns = self._axes(product.right.lines, column)
        axes |= columns
        block = product.block.node
        # Vectors do not reach beyond the end of the last axis.
        longest = [a for a in product.right.lines if product.block.axes[a].extent > 1][-1]
        variables = [v.var for v in block.iter_vars]
        axes[variables[longest]] = axes[variables[longest]] + lane
        places = [
            self._simple(axes[variable])
            for variable, axis in zip(variables, product.block.axes, strict=True)
            if not axis.reduces
        ]
        made = {product.block.writes: sums}
        buffer = block.body.buffer
        value = sums
        for stage in product.after:
            own = [v.var for v in stage.node.iter_vars]
            store = stage.node.body

            def read(load: Any) -> Any:
                return made.get(load.source.name, load)

            value = structural_map(store.value, (TensorLoad, read))
            value = renamed(value, dict(zip(own, places, strict=True)))
            made[stage.writes] = value
            buffer = store.buffer
        return tirx.BufferStore(buffer, value, places)
