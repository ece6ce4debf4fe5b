"""What Hopper's copy engine has to know of an operand, and how it is asked for a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir.expr import Var
from tvm.sym import Analyzer

from tunefarm.search.kernels.splice import once
from tunefarm.search.spaces.tensor_tile import engine_text as engine
from tunefarm.search.spaces.tensor_tile.box import Along, Tensor
from tunefarm.search.spaces.tensor_tile.copies import Side
from tunefarm.search.spaces.tensor_tile.layout import TileLayout
from tunefarm.search.spaces.written import all_of, call, coordinates, number, when

_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""What the driver calls an exchange of pieces within as many bytes (``CUtensorMapSwizzle``)."""
_ROUNDED, _AS_IT_IS = 11, -1
"""Types of what is copied: words get fractions of ten bits (``CU_TENSOR_MAP_DATA_TYPE_TFLOAT32``),
for what tensor cores do not read of them is to be rounded, not cut off."""
_BY_256 = 3
"""Bytes that are brought to the second-level cache together (``CUtensorMapL2promotion``)."""


@dataclass(frozen=True)
class Ring:
    """Stages that are filled by the engine and read by groups, in turns; each has a pair of
    barriers, from `barriers` on."""

    barriers: Any
    stages: int
    cluster: int = 1

    def slot(self, step: Any) -> Any:
        return tirx.floormod(step, self.stages)

    def _pair(self, step: Any) -> Any:
        return self.barriers + tirx.Cast("uint32", self.slot(step) * engine.PAIR)

    def _turn(self, step: Any) -> Any:
        return tirx.floordiv(step, self.stages)

    def free(self, step: Any) -> Any:
        """Until all groups have read what was in the step's place."""
        before = tirx.Cast("uint32", tirx.floormod(self._turn(step) + 1, 2))
        waited = call(engine.waited(), self._pair(step) + engine.READ, before)
        return when(step >= self.stages, waited)

    def filled_by(self, step: Any) -> Any:
        """The barrier that counts the bytes of a step."""
        return self._pair(step) + engine.THERE

    def there(self, step: Any) -> Any:
        """Until a step's operands are."""
        parity = tirx.Cast("uint32", tirx.floormod(self._turn(step), 2))
        return call(engine.waited(), self.filled_by(step), parity)

    def read(self, step: Any, steps: int) -> Any:
        """Said by a group, of the step before this one, where another one is to come in its place:
        an arrival that nobody waits for could reach a block that has ended."""
        last = self._pair(step + (self.stages - 1)) + engine.READ
        awaited = all_of([step >= 1, step <= steps - self.stages])
        return when(awaited, call(engine.read(self.cluster), last))


def told(sides: Sequence[EngineSide]) -> list[Any]:
    """What the host does."""
    all_of_them = tirx.SeqStmt([side.told() for side in sides])
    # What follows uses the maps, so they are bound outside of the block that fills them.
    return [*(side.map() for side in sides), once(all_of_them, "told")]


class EngineSide:
    """An operand, and how the engine is told of it and asked for it; where the blocks of a
    `cluster` have it in common, each asks for its share of every panel's lines, for all of them.
    `rounds`: to tf32."""

    def __init__(
        self, name: str, side: Side, layout: TileLayout, cluster: int = 1, rounds: bool = False
    ) -> None:
        tensor = side.tensor
        assert tensor is not None, side.operand.buffer
        self.layout = layout
        self._cluster, self._lines = cluster, layout.across // cluster
        self._kind = _ROUNDED if rounds else _AS_IT_IS
        self._side = side
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

    @property
    def _begins(self) -> Any:
        """Where the tensor does."""
        buffer, first = self._side.operand.buffer, self._tensor.first
        if not first:
            return buffer.data
        shape = [int(size) for size in buffer.shape]
        places = coordinates(tirx.const(first, str(buffer.shape[0].ty.dtype)), shape)
        analyzer = Analyzer()
        return tirx.address_of(tirx.BufferLoad(buffer, [analyzer.simplify(p) for p in places]))

    def told(self) -> Any:
        """By the host, of the tensor and the box: a panel of the tile."""
        layout, dimensions = self.layout, self._tensor.dimensions
        size = layout.element_bytes
        box = [1] * len(dimensions)
        for n, one in enumerate(dimensions):
            if one.along is not Along.BATCHES:
                box[n] = self._panel if n == 0 else self._lines
        encoded = tirx.tensormap_encode_tiled(
            self._map,
            self._begins,
            *(one.extent for one in dimensions),
            *(one.stride * size for one in dimensions[1:]),
            *box,
            *(1 for _ in dimensions),
            descriptor_dtype=str(self._side.operand.buffer.dtype),
            rank=self._tensor.rank,
            swizzle=_SWIZZLES[layout.width],
            l2_promotion=_BY_256,
            force_cu_dtype=self._kind,
        )
        return tirx.Evaluate(encoded)

    def fetched(
        self, to: Any, barrier: Any, batch: Any, line: Any, term: Any, rank: Any = None
    ) -> Sequence[Any]:
        """A tile, panel by panel, from `line` and `term` on; of it the share of the block of that
        `rank` in its cluster."""
        asked = []
        if rank is not None:
            first = rank * self._lines
            to = to + tirx.Cast("uint32", first * self.layout.width)
            line, term = (line + first, term) if self.layout.deep else (line, term + first)
        along = self.layout.depth if self.layout.deep else self.layout.lines
        for panel in range(along // self._panel):
            aside = number(panel * self._panel)
            corner = (line, term + aside) if self.layout.deep else (line + aside, term)
            place = to + tirx.const(panel * self.layout.panel_bytes, "uint32")
            places = self._coordinates(batch, *corner)
            fetched = engine.fetched(self._tensor.rank, self._cluster)
            asked.append(call(fetched, place, self.address, barrier, *places))
        return asked

    def _coordinates(self, batch: Any, line: Any, term: Any) -> list[Any]:
        found = []
        for one in self._tensor.dimensions:
            if one.along is Along.BATCHES:
                place = tirx.floordiv(batch, one.within)
                if one.within * one.extent < self._side.batches:
                    place = tirx.floormod(place, one.extent)
                found.append(place)
            else:
                found.append(line if one.along is Along.LINES else term)
        return found
