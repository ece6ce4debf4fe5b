"""Kernels whose operands Hopper's copy engine fetches, asked by one thread of a warp beside the
groups that multiply.

That thread runs ahead as far as there are stages: it asks for a step's operands as soon as all
groups have read what was in their place. A group waits for a step, multiplies, and says of the
step before that it has read it, once its tensor cores have. The division of work is that of
NVIDIA's CUTLASS (its documents on efficient matrix products, "warp specialization").
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Var

from tunefarm.search.spaces.tensor_tile import device_text as text
from tunefarm.search.spaces.tensor_tile import engine_text as engine
from tunefarm.search.spaces.tensor_tile.engine_side import EngineSide, Ring, told
from tunefarm.search.spaces.tensor_tile.product import Product
from tunefarm.search.spaces.tensor_tile.tile import Plan
from tunefarm.search.spaces.tensor_tile.writer import TensorWriter, side_of
from tunefarm.search.spaces.written import call, number, when


class EngineWriter(TensorWriter):
    def __init__(self, product: Product, plan: Plan) -> None:
        super().__init__(product, plan)
        cluster = plan.tile.cluster
        self._ring = Ring(Var("barriers", tvm.ir.PrimType("uint32")), plan.tile.stages, cluster)
        left, right = plan.sides
        rounds = text.TYPES[product.dtype] == text.TF32
        self._sides = (
            EngineSide("left", side_of(product, product.left), left, rounds=rounds),
            EngineSide("right", side_of(product, product.right), right, cluster, rounds),
        )

    def _before(self) -> list[Any]:
        return told(self._sides)

    def _summed(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        tile, shape = self._tile, self._plan.shape
        barriers = self._start + tirx.const(self._plan.barriers_at, "uint32")
        alone = self._thread == tile.multiplying
        corners = (row, column)
        return [
            tirx.Bind(self._ring.barriers, barriers),
            call(
                engine.barriers_made(tile.stages, shape.groups, tile.cluster), self._ring.barriers
            ),
            tirx.IfThenElse(
                self._thread < tile.multiplying,
                tirx.SeqStmt(self._multiplied()),
                when(alone, self._asked(batch, part, corners)),
            ),
        ]

    def _stage(self, step: Any) -> Any:
        """Where a step's operands begin."""
        beside = self._ring.slot(step) * self._plan.stage_bytes
        return self._start + tirx.Cast("uint32", beside)

    def _asked(self, batch: Any, part: Any, corners: tuple[Any, Any]) -> Any:
        """All steps' operands, by the thread beside the groups."""
        plan, tile, ring = self._plan, self._tile, self._ring

        def step(k: Any) -> Any:
            barrier = Var("barrier", tvm.ir.PrimType("uint32"))
            to = Var("slot", tvm.ir.PrimType("uint32"))
            term = (part * plan.steps + k) * tile.depth
            asked = [
                tirx.Bind(barrier, ring.filled_by(k)),
                tirx.Bind(to, self._stage(k)),
                ring.free(k),
                call(engine.expected(plan.stage_bytes), barrier),
            ]
            (left, right), (row, column) = self._sides, corners
            beside = to + left.layout.bytes
            asked += left.fetched(to, barrier, batch, row, term)
            asked += right.fetched(beside, barrier, batch, column, term, rank)
            return tirx.SeqStmt(asked)

        rank: Any = None
        before = [call(engine.used_soon(), side.address) for side in self._sides]
        if tile.cluster > 1:
            rank = Var("rank", tvm.ir.PrimType("int32"))
            found = call(engine.rank(), returns="uint32")
            before.append(tirx.Bind(rank, tirx.Cast("int32", found)))
        return tirx.SeqStmt([*before, self.loop("step", plan.steps, tirx.ForKind.SERIAL, step)])

    def _multiplied(self) -> list[Any]:
        """All steps, by a group."""
        plan, shape = self._plan, self._plan.shape

        def step(k: Any) -> list[Any]:
            at = Var("slot", tvm.ir.PrimType("uint32"))
            operands = plan.in_turn(at, at + plan.sides[0].bytes)
            return [
                tirx.Bind(at, self._stage(k)),
                self._ring.there(k),
                call(text.multiply(shape), self._sums.data, *operands),
                call(text.multiplied(shape, 1), self._sums.data),
                self._ring.read(k, plan.steps),
            ]

        # What threads have read for tensor cores these take from registers while the next step's
        # is read: every other step has its own. An odd one comes first, for the compiler lets
        # everything wait where registers are written behind a loop that tensor cores still work at.
        each = 2 if plan.turned else 1
        whole, first = divmod(plan.steps, each)

        def steps(k: Any) -> Any:
            return tirx.SeqStmt([one for n in range(each) for one in step(first + k * each + n)])

        loop = self.loop("step", whole, tirx.ForKind.SERIAL, steps)
        return [
            *(step(number(0)) if first else ()),
            *([loop] if whole else ()),
            call(text.multiplied(shape, 0), self._sums.data),
        ]

    def _met(self) -> Any:
        return call(engine.met())

    def _all_read(self) -> Any:
        """And no block of the cluster ends while another still asks for what it gets as well."""
        return call(engine.met(self._tile.cluster))

    def _of_multiplying(self, body: Any) -> Any:
        return when(self._thread < self._tile.multiplying, body)
