"""From a tile to a kernel: its text in TensorIR, from the launch to the last store.

A block has some queries, in registers from the beginning to the end. Keys and values come to shared
memory step by step, some steps ahead; of each step's scores weights are made where they are, and
multiplied by the values (`device_text.soften`). The structure is that of FlashAttention-2 (Dao
2023).
"""

from __future__ import annotations

from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad, Var
from tvm_ffi import structural_equal, structural_map

from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.attention_tile import device_text as text
from tunefarm.search.spaces.attention_tile.attention import Attention
from tunefarm.search.spaces.attention_tile.tile import Figures, Plan
from tunefarm.search.spaces.expressions import lie_together, loads_in_any_case, loads_of, uses
from tunefarm.search.spaces.tensor_tile import device_text as shared
from tunefarm.search.spaces.tensor_tile.copies import Side, Team, axes_at, copied, inside
from tunefarm.search.spaces.tensor_tile.layout import TileLayout
from tunefarm.search.spaces.tensor_tile.tiling import VECTOR
from tunefarm.search.spaces.written import Writer, all_of, call, local, number, when

_PAIR = 2
"""Neighbouring scores that a thread has."""
_NOTHING = float("-inf")


def figures(of: Attention) -> Figures:
    operands = (of.queries, of.keys, of.values)
    rows, keys, depth, columns = of.sizes
    return Figures(
        of.batches,
        rows,
        keys,
        depth,
        columns,
        of.dtype,
        (of.queries.deep, of.keys.deep, of.values.deep),
        (operands[0].piece * 2, operands[1].piece * 2, operands[2].piece * 2),
        all(side.tensor is not None for side in of.sides),
    )


class AttentionWriter(Writer):
    def __init__(self, of: Attention, plan: Plan) -> None:
        super().__init__()
        self._of, self._plan, self._tile = of, plan, plan.tile
        first, second = plan.first, plan.second
        rows = plan.tile.down * 2
        self._memory = tirx.decl_buffer((plan.shared_bytes,), "uint8", "memory", scope="shared.dyn")
        queries, weights = plan.operands_held
        self._held = local(max(1, queries), "uint32", "held")
        self._weights = local(weights, "uint32", "weights")
        self._scores = local(first.held, "float32", "scores")
        self._sums = local(second.held, "float32", "sums")
        self._most, self._total = (local(rows, "float32", name) for name in ("most", "total"))
        self._own = local(self._vector, "float32", "own")
        self._start = Var("start", tvm.ir.PrimType("uint32"))
        self._pairs = [
            (load, local(_PAIR, str(load.source.dtype), f"{load.source.name}_pair"))
            for load in self._read_in_pairs()
        ]

    _thread: Any
    _block: Any
    _batch: Any

    def kernel(self) -> Any:
        blocks = self._plan.blocks * self._of.batches
        threads = {
            "threadIdx.x": (self.variable("thread", self._tile.threads), self._tile.threads),
            "blockIdx.x": (self.variable("block", blocks), blocks),
        }
        (self._thread, _), (which, _) = threads.values()
        self._block = tirx.floormod(which, self._plan.blocks)
        self._batch = tirx.floordiv(which, self._plan.blocks)
        start = call(shared.shared_address(), self._memory.data, returns="uint32")
        body = [tirx.Bind(self._start, start), *self._body()]
        buffers = [self._memory, self._held, self._weights, self._scores, self._sums, self._most]
        buffers += [self._total, self._own, *(pair for _, pair in self._pairs)]
        launched = self.launch(tirx.SeqStmt(body), buffers, threads)
        return sequence([*self._before(), launched])

    def _before(self) -> list[Any]:
        """What the host does."""
        return []

    def _body(self) -> list[Any]:
        """What a thread does."""
        return [*self._mixed(), *self._stored()]

    def _mixed(self) -> list[Any]:
        """A thread's sums of values, by the weights of its queries."""
        return [
            self._filled(self._sums, 0.0),
            self._filled(self._most, _NOTHING),
            self._filled(self._total, 0.0),
            *self._steps(),
            call(
                text.divided(self._plan.second, self._of.guarded),
                self._sums.data,
                self._total.data,
            ),
        ]

    @property
    def _row(self) -> Any:
        """The first of a block."""
        return self._block * self._tile.rows

    def _filled(self, buffer: Any, value: float) -> Any:
        filling = tirx.const(value, "float32")
        size = int(buffer.shape[0])
        return self.unrolled("n", size, lambda i: tirx.BufferStore(buffer, filling, [i]))

    # ---------------------------------------------------------------------------- steps

    def _steps(self) -> list[Any]:
        plan, tile = self._plan, self._tile
        steps, ahead = plan.steps, plan.ahead
        begun = call(shared.copies_begun())
        queries, keys, values = self._of.sides

        def copies(step: Any, slot: Any) -> Any:
            to, key, nought = self._stage(slot), step * tile.keys, number(0)
            of_keys = self._copied(keys, plan.first.right, to, key, nought)
            to = to + plan.values_at
            return tirx.SeqStmt([of_keys, self._copied(values, plan.second.right, to, nought, key)])

        text_ = [self._copied(queries, plan.first.left, self._start, self._row, number(0))]
        for first in range(ahead):
            text_ += [copies(number(first), number(first)), begun]
        met = call(shared.copies_met(ahead - 1, plan.first.grouped))
        text_ += self._begun(met)

        def step(k: Any) -> Any:
            at = Var("slot", tvm.ir.PrimType("uint32"))
            slot = self._stage(tirx.floormod(k, tile.stages))
            following = copies(k + ahead, tirx.floormod(k + ahead, tile.stages))
            meanwhile = [when(k + ahead < steps, following), begun]
            return tirx.SeqStmt([tirx.Bind(at, slot), met, *self._one(k, at, meanwhile)])

        return [*text_, self.loop("step", steps, tirx.ForKind.SERIAL, step), *self._ended()]

    def _stage(self, slot: Any) -> Any:
        """Where one begins."""
        queries = self._plan.first.left.aligned_bytes
        beside = tirx.Cast("uint32", self.simple(slot * self._plan.stage_bytes))
        return self._start + queries + beside

    def _one(self, step: Any, at: Any, meanwhile: list[Any]) -> list[Any]:
        """A step, whose keys and values begin at `at`."""
        plan = self._plan
        made = (self._scores, self._most, self._total, self._sums, self._weights)
        alone = self._of.factor is not None
        factor = self._of.factor if self._of.factor is not None else 1.0
        weighed = text.soften(plan.first, plan.second, alone)
        mixed = text.multiply_held(plan.second)
        return [
            *self._multiplied(at, meanwhile),
            *self._released(step),
            *self._scored(step),
            call(weighed, *(one.data for one in made), tirx.const(factor, "float32")),
            call(mixed, self._sums.data, self._weights.data, at + plan.values_at),
        ]

    def _begun(self, met: Any) -> list[Any]:
        """What is done with queries as soon as they are there."""
        return [met, call(text.hold(self._plan.first), self._held.data, self._start)]

    def _multiplied(self, at: Any, meanwhile: list[Any]) -> list[Any]:
        """Queries by keys; `meanwhile` is what can be done beside it."""
        first = text.multiply_held(self._plan.first)
        anew = self._filled(self._scores, 0.0)
        return [*meanwhile, anew, call(first, self._scores.data, self._held.data, at)]

    def _released(self, step: Any) -> list[Any]:
        """Said of the step before: that its keys and values have been read."""
        return []

    def _ended(self) -> list[Any]:
        """What is waited for after the last step."""
        return []

    def _copied(self, side: Side, layout: TileLayout, to: Any, line: Any, term: Any) -> Any:
        place = (self._batch, line, term)
        team = Team(self._tile.threads, self._thread)
        return copied(self, side, layout, to, place, team, layout.depth)

    # --------------------------------------------------------------------------- scores

    def _scored(self, step: Any) -> list[Any]:
        """What the softmax is taken of, but for a factor of all; of keys that are not there
        nothing."""
        rows, keys, _, _ = self._of.sizes
        beyond = keys % self._tile.keys != 0
        if self._of.factor is not None and not beyond:
            return []
        down, across = self._plan.first.fragments
        lane = tirx.floormod(self._thread, 32)
        warp = tirx.floordiv(self._thread, 32)

        def pair(which: Any) -> Any:
            """Two neighbours."""
            half = tirx.floormod(which, 2)
            j = tirx.floormod(tirx.floordiv(which, 2), across)
            i = tirx.floordiv(which, 2 * across)
            row = self._row + warp * (down * 16) + i * 16 + half * 8 + tirx.floordiv(lane, 4)
            key = step * self._tile.keys + j * 8 + tirx.floormod(lane, 4) * 2
            there = all_of(
                [
                    inside(row, rows, self._tile.rows) if self._reads else None,
                    inside(key, keys, self._tile.keys) if keys % _PAIR == 0 else None,
                ]
            )

            def one(c: Any) -> Any:
                place = which * _PAIR + c
                value = self._score(tirx.BufferLoad(self._scores, [place]), row, key + c, c)
                last = inside(key + c, keys, self._tile.keys) if keys % _PAIR else None
                value = self._or_nothing(all_of([there, last]), value)
                return tirx.BufferStore(self._scores, value, [place])

            made = [self._in_pair(load, held, row, key) for load, held in self._pairs]
            read = [when(there, one) for one in made]
            return sequence([*read, self.unrolled("c", _PAIR, one)])

        return [self.unrolled("pair", down * across * 2, pair)]

    def _or_nothing(self, there: Any, value: Any) -> Any:
        if there is None:
            return value
        return tirx.if_then_else(self.simple(there), value, tirx.const(_NOTHING, "float32"))

    @property
    def _reads(self) -> bool:
        """Whether anything else is read to make a score."""
        own = self._of.first.node.body.buffer
        return any(not load.source.same_as(own) for load in loads_of(self._of.score))

    def _axes(self, row: Any, key: Any) -> dict[Any, Any]:
        """Values of the first product's variables."""
        of = self._of
        axes = axes_at(of.first, of.batch, self._batch)
        beside = len(of.batch)
        axes |= axes_at(of.first, (beside,), row)
        return axes | axes_at(of.first, (beside + 1,), key)

    def _score(self, own: Any, row: Any, key: Any, c: Any) -> Any:
        scores = self._of.first.node.body.buffer
        if self._of.factor is not None:
            return own

        def read(load: Any) -> Any:
            if load.source.same_as(scores):
                return own
            for other, held in self._pairs:
                if structural_equal(load, other):
                    return tirx.BufferLoad(held, [c])
            return load

        value = structural_map(self._of.score, (TensorLoad, read))
        return renamed(value, self._axes(row, key))

    def _read_in_pairs(self) -> list[Any]:
        """What of the arguments lies side by side for neighbouring keys, each once."""
        first = self._of.first
        variables = [one.var for one in first.node.iter_vars]
        extents = {v: axis.extent for v, axis in zip(variables, first.axes, strict=True)}
        key = variables[-2]
        found: list[Any] = []
        for load in loads_in_any_case(self._of.score):
            if load.source.same_as(first.node.body.buffer) or not uses(load, key):
                continue
            if any(structural_equal(load, other) for other in found):
                continue
            if lie_together(load.indices, load.source.shape, key, extents, _PAIR):
                found.append(load)
        return found

    def _in_pair(self, load: Any, held: Any, row: Any, key: Any) -> Any:
        def one(c: Any) -> Any:
            axes = self._axes(row, key + c)
            indices = [self.simple(renamed(index, axes)) for index in load.indices]
            return tirx.BufferStore(held, tirx.BufferLoad(load.source, indices), [c])

        return self.vector(_PAIR, one)

    # ------------------------------------------------------------------------ finishing

    def _stored(self) -> list[Any]:
        """Sums are laid down, so that results are written in whole rows."""
        plan, tile, of = self._plan, self._tile, self._of
        rows, _, _, columns = of.sizes
        vectors = columns // self._vector

        def one(turn: Any) -> Any:
            which = turn * tile.multiplying + self._thread
            line = tirx.floordiv(which, vectors)
            column = tirx.floormod(which, vectors) * self._vector
            row = self._row + line
            there = all_of(
                [
                    inside(row, rows, tile.rows),
                    None if tile.rows * vectors % tile.multiplying == 0 else line < tile.rows,
                ]
            )
            place = self._start + tirx.Cast("uint32", line * plan.laid_row + column * 4)
            pick = call(shared.pick_up("float32", self._vector), self._own.data, place)
            result = self.vector(self._vector, lambda lane: self._result(row, column + lane, lane))
            return when(there, tirx.SeqStmt([pick, result]))

        count = ceil(tile.rows * vectors / tile.multiplying)
        laid = call(shared.lay_down(plan.second, plan.laid_row), self._sums.data, self._start)
        met = call(shared.copies_met(0, False))
        vectors_ = self.loop("vector", count, tirx.ForKind.SERIAL, one)
        return [met, laid, met, vectors_]  # first, nobody reads values any more

    @property
    def _vector(self) -> int:
        """Columns that are finished together: they lie side by side in the result."""
        second = self._of.second
        variables = [one.var for one in second.node.iter_vars]
        extents = {v: axis.extent for v, axis in zip(variables, second.axes, strict=True)}
        shape = self._of.result.shape
        return next(
            n
            for n in (VECTOR, 2, 1)
            if lie_together(self._of.places, shape, variables[-2], extents, n)
        )

    def _result(self, row: Any, column: Any, lane: Any) -> Any:
        of = self._of
        axes = axes_at(of.second, of.batch, self._batch)
        beside = len(of.batch)
        axes |= axes_at(of.second, (beside,), row)
        axes |= axes_at(of.second, (beside + 1,), column)
        mixed = of.second.node.body.buffer

        def read(load: Any) -> Any:
            mine = load.source.same_as(mixed)
            return tirx.BufferLoad(self._own, [lane]) if mine else load

        value = renamed(structural_map(of.finished, (TensorLoad, read)), axes)
        places = [self.simple(renamed(place, axes)) for place in of.places]
        return tirx.BufferStore(of.result, value, places)


class GroupWriter(AttentionWriter):
    """Of kernels whose groups of four warps multiply together: they read queries where they lie,
    and mix the values of a step while the next one's products are begun."""

    def _begun(self, met: Any) -> list[Any]:
        return []

    def _multiplied(self, at: Any, meanwhile: list[Any]) -> list[Any]:
        first = call(
            shared.multiply(self._plan.first, anew=True), self._scores.data, self._start, at
        )
        done = call(shared.multiplied(self._plan.first, 0), self._scores.data)
        return [first, *meanwhile, done, *self._ended()]

    def _ended(self) -> list[Any]:
        return [call(shared.multiplied(self._plan.second, 0), self._sums.data)]


def sequence(text_: list[Any]) -> Any:
    return text_[0] if len(text_) == 1 else tirx.SeqStmt(text_)
