"""Attention whose operands Hopper's copy engine fetches, asked by one thread of a warp beside the
groups that multiply; as products of matrices have it (`tensor_tile.engine_writer`)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Var

from tunefarm.search.spaces.attention_tile.attention import Attention
from tunefarm.search.spaces.attention_tile.tile import Plan
from tunefarm.search.spaces.attention_tile.writer import GroupWriter, sequence
from tunefarm.search.spaces.tensor_tile import engine_text as engine
from tunefarm.search.spaces.tensor_tile.engine_side import EngineSide, Ring, told
from tunefarm.search.spaces.written import call, number, when


class EngineWriter(GroupWriter):
    def __init__(self, of: Attention, plan: Plan) -> None:
        super().__init__(of, plan)
        self._ring = Ring(Var("barriers", tvm.ir.PrimType("uint32")), plan.tile.stages)
        layouts = (plan.first.left, plan.first.right, plan.second.right)
        names = ("queries", "keys", "values")
        self._sides = [
            EngineSide(name, side, layout)
            for name, side, layout in zip(names, of.sides, layouts, strict=True)
        ]

    def _before(self) -> list[Any]:
        return told(self._sides)

    def _body(self) -> list[Any]:
        """Groups multiply and finish; the last one, of which one thread asks, is done before, and
        nobody waits for it."""
        tile, barriers = self._tile, self._ring.barriers
        at = self._start + tirx.const(self._plan.barriers_at, "uint32")
        made = engine.barriers_made(tile.stages + 1, self._plan.first.groups)
        multiplying, asking = (
            super()._body(),
            [when(self._thread == tile.multiplying, self._asked())],
        )
        if (shared := self._plan.shared_registers) is not None:
            more, fewer = shared
            multiplying.insert(0, call(engine.registers(more, more=True)))
            asking.insert(0, call(engine.registers(fewer, more=False)))
        return [
            tirx.Bind(barriers, at),
            call(made, barriers),
            tirx.IfThenElse(
                self._thread < tile.multiplying, tirx.SeqStmt(multiplying), sequence(asking)
            ),
        ]

    @property
    def _queries_there(self) -> Any:
        """The barrier that counts their bytes, behind those of the stages."""
        return self._ring.barriers + (self._tile.stages * engine.PAIR + engine.THERE)

    def _asked(self) -> Any:
        """Queries, and all steps' keys and values, by the thread beside the groups."""
        plan, ring, nought = self._plan, self._ring, number(0)
        queries, keys, values = self._sides
        bytes_ = keys.layout.bytes + values.layout.bytes
        there = self._queries_there
        begun = [
            *(call(engine.used_soon(), side.address) for side in self._sides),
            call(engine.expected(queries.layout.bytes), there),
            *queries.fetched(self._start, there, self._batch, self._row, nought),
        ]

        def step(k: Any) -> Any:
            barrier = Var("barrier", tvm.ir.PrimType("uint32"))
            to = Var("slot", tvm.ir.PrimType("uint32"))
            key = k * self._tile.keys
            return tirx.SeqStmt(
                [
                    tirx.Bind(barrier, ring.filled_by(k)),
                    tirx.Bind(to, self._stage(ring.slot(k))),
                    ring.free(k),
                    call(engine.expected(bytes_), barrier),
                    *keys.fetched(to, barrier, self._batch, key, nought),
                    *values.fetched(to + plan.values_at, barrier, self._batch, nought, key),
                ]
            )

        return tirx.SeqStmt([*begun, self.loop("step", plan.steps, tirx.ForKind.SERIAL, step)])

    def _steps(self) -> list[Any]:
        def step(k: Any) -> Any:
            at = Var("slot", tvm.ir.PrimType("uint32"))
            bound = tirx.Bind(at, self._stage(self._ring.slot(k)))
            return tirx.SeqStmt([bound, self._ring.there(k), *self._one(k, at, [])])

        queries = call(engine.waited(), self._queries_there, tirx.const(0, "uint32"))
        steps = self.loop("step", self._plan.steps, tirx.ForKind.SERIAL, step)
        return [queries, steps, *self._ended()]

    def _released(self, step: Any) -> list[Any]:
        return [self._ring.read(step, self._plan.steps)]
