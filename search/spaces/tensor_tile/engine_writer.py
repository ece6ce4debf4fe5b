"""Kernels whose operands Hopper's copy engine fetches, asked by one thread of a warp beside the
groups that multiply.

That thread runs ahead as far as there are stages: it asks for a step's operands as soon as all
groups have read what was in their place. A group waits for a step, multiplies, and says of the
step before that it has read it, once its tensor cores have. The division of work is that of
NVIDIA's CUTLASS (its documents on efficient matrix products, "warp specialization").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Var

from tunefarm.search.spaces.tensor_tile import device_text as text
from tunefarm.search.spaces.tensor_tile import engine_text as engine
from tunefarm.search.spaces.tensor_tile.box import Along, Tensor
from tunefarm.search.spaces.tensor_tile.layout import TileLayout
from tunefarm.search.spaces.tensor_tile.product import Operand, Product
from tunefarm.search.spaces.tensor_tile.tile import Plan
from tunefarm.search.spaces.tensor_tile.writer import TileWriter
from tunefarm.search.spaces.written import call, number, once, when

_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""What the driver calls an exchange of pieces within as many bytes (``CUtensorMapSwizzle``)."""
_BY_256 = 3
"""Bytes that are brought to the second-level cache together (``CUtensorMapL2promotion``)."""


class EngineWriter(TileWriter):
    def __init__(self, product: Product, plan: Plan) -> None:
        super().__init__(product, plan)
        self._barriers = Var("barriers", tvm.ir.PrimType("uint32"))
        shape = plan.shape
        self._sides = (
            _Side("left", product, product.left, shape.left),
            _Side("right", product, product.right, shape.right),
        )

    def _before(self) -> list[Any]:
        told = tirx.SeqStmt([side.told() for side in self._sides])
        # What follows uses the maps, so they are bound outside of the block that fills them.
        return [*(side.map() for side in self._sides), once(told, "told")]

    def _summed(self, batch: Any, part: Any, row: Any, column: Any) -> list[Any]:
        tile, shape = self._tile, self._plan.shape
        barriers = self._start + tirx.const(self._plan.barriers_at, "uint32")
        alone = self._thread == tile.multiplying
        corners = (row, column)
        return [
            tirx.Bind(self._barriers, barriers),
            call(engine.barriers_made(tile.stages, shape.groups), self._barriers),
            tirx.IfThenElse(
                self._thread < tile.multiplying,
                tirx.SeqStmt(self._multiplied()),
                when(alone, self._asked(batch, part, corners)),
            ),
        ]

    def _asked(self, batch: Any, part: Any, corners: tuple[Any, Any]) -> Any:
        """All steps' operands, by the thread beside the groups."""
        plan, tile = self._plan, self._tile

        def step(k: Any) -> Any:
            slot, turn = tirx.floormod(k, tile.stages), tirx.floordiv(k, tile.stages)
            pair = self._pair(slot)
            barrier = Var("barrier", tvm.ir.PrimType("uint32"))
            to = Var("slot", tvm.ir.PrimType("uint32"))
            before = tirx.Cast("uint32", tirx.floormod(turn + 1, 2))
            term = (part * plan.steps + k) * tile.depth
            asked = [
                tirx.Bind(barrier, pair + engine.THERE),
                tirx.Bind(to, self._start + tirx.Cast("uint32", slot * plan.stage_bytes)),
                when(k >= tile.stages, call(engine.waited(), pair + engine.READ, before)),
                call(engine.expected(plan.stage_bytes), barrier),
            ]
            beside = 0
            for side, corner in zip(self._sides, corners, strict=True):
                asked += side.fetched(to + beside, barrier, batch, corner, term)
                beside += side.layout.bytes
            return tirx.SeqStmt(asked)

        soon = [call(engine.used_soon(), side.address) for side in self._sides]
        return tirx.SeqStmt([*soon, self.loop("step", plan.steps, tirx.ForKind.SERIAL, step)])

    def _multiplied(self) -> list[Any]:
        """All steps, by a group."""
        plan, tile, shape = self._plan, self._tile, self._plan.shape

        def step(k: Any) -> Any:
            slot, turn = tirx.floormod(k, tile.stages), tirx.floordiv(k, tile.stages)
            at = Var("slot", tvm.ir.PrimType("uint32"))
            parity = tirx.Cast("uint32", tirx.floormod(turn, 2))
            last = tirx.floormod(k + (tile.stages - 1), tile.stages)
            return tirx.SeqStmt(
                [
                    tirx.Bind(at, self._start + tirx.Cast("uint32", slot * plan.stage_bytes)),
                    call(engine.waited(), self._pair(slot) + engine.THERE, parity),
                    call(text.multiply(shape), self._sums.data, at, at + shape.left.bytes),
                    call(text.multiplied(shape, 1), self._sums.data),
                    when(k >= 1, call(engine.read(), self._pair(last) + engine.READ)),
                ]
            )

        return [
            self.loop("step", plan.steps, tirx.ForKind.SERIAL, step),
            call(text.multiplied(shape, 0), self._sums.data),
        ]

    def _pair(self, slot: Any) -> Any:
        return self._barriers + tirx.Cast("uint32", slot * engine.PAIR)

    def _met(self) -> Any:
        return call(engine.met())

    def _of_multiplying(self, body: Any) -> Any:
        return when(self._thread < self._tile.multiplying, body)


class _Side:
    """An operand, and how the engine is told of it and asked for it."""

    def __init__(self, name: str, product: Product, operand: Operand, layout: TileLayout) -> None:
        tensor = product.tensor(operand)
        assert tensor is not None, operand.buffer
        self.layout = layout
        self._product, self._operand = product, operand
        self._tensor: Tensor = tensor
        self._made = tirx.tvm_stack_alloca("tensormap", 1)
        self._map = Var(f"{name}_map", self._made.ty)

    @property
    def _panel(self) -> int:
        """Elements of a panel's line."""
        return self.layout.width // self.layout.element_bytes

    def map(self) -> Any:
        return tirx.Bind(self._map, self._made)

    @property
    def address(self) -> Any:
        return tirx.address_of(self._map)

    def told(self) -> Any:
        """By the host, of the tensor and the box: a panel of the tile."""
        layout, dimensions = self.layout, self._tensor.dimensions
        size = layout.element_bytes
        box = [1] * len(dimensions)
        for n, one in enumerate(dimensions):
            if one.along is not Along.BATCHES:
                box[n] = self._panel if n == 0 else layout.across
        encoded = tirx.tensormap_encode_tiled(
            self._map,
            self._operand.buffer.data,
            *(one.extent for one in dimensions),
            *(one.stride * size for one in dimensions[1:]),
            *box,
            *(1 for _ in dimensions),
            descriptor_dtype=str(self._operand.buffer.dtype),
            rank=self._tensor.rank,
            swizzle=_SWIZZLES[layout.width],
            l2_promotion=_BY_256,
        )
        return tirx.Evaluate(encoded)

    def fetched(self, to: Any, barrier: Any, batch: Any, line: Any, term: Any) -> Sequence[Any]:
        """A tile, panel by panel, from `line` and `term` on."""
        asked = []
        along = self.layout.depth if self.layout.deep else self.layout.lines
        for panel in range(along // self._panel):
            aside = number(panel * self._panel)
            corner = (line, term + aside) if self.layout.deep else (line + aside, term)
            place = to + tirx.const(panel * self.layout.panel_bytes, "uint32")
            places = self._coordinates(batch, *corner)
            fetched = engine.fetched(self._tensor.rank)
            asked.append(call(fetched, place, self.address, barrier, *places))
        return asked

    def _coordinates(self, batch: Any, line: Any, term: Any) -> list[Any]:
        found = []
        for one in self._tensor.dimensions:
            if one.along is Along.BATCHES:
                place = tirx.floordiv(batch, one.within)
                if one.within * one.extent < self._product.batches:
                    place = tirx.floormod(place, one.extent)
                found.append(place)
            else:
                found.append(line if one.along is Along.LINES else term)
        return found
