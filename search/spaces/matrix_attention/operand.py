"""Where a head's queries, keys and values lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.form import Stage
from tunefarm.search.spaces.tensor_tile.box import strides_of
from tunefarm.search.spaces.tensor_tile.product import Operand
from tunefarm.search.spaces.written import Writer, number


@dataclass(frozen=True)
class Side:
    """An operand at a head. A place in it is a query and a term, a key and a term, or a column of
    values and a key."""

    operand: Operand
    block: Stage
    head: Sequence[Any]

    def _axes(self) -> tuple[int, int]:
        (line,) = self.operand.lines
        return line, len(self.head) + 2

    def pitch(self, near: int, far: int) -> int | None:
        """Bytes between neighbours along the `far` of its two axes, where those along the `near`
        one lie side by side; None where they do not, or not all are there."""
        strides, _ = strides_of(self.block, self.operand.indices, self.operand.buffer.shape)
        axes = self._axes()
        if self.operand.condition is not None or strides[axes[near]] != 1:
            return None
        pitch = strides[axes[far]]
        return None if pitch is None else 2 * pitch

    def _load(self, writer: Writer, place: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
        variables = [v.var for v in self.block.node.iter_vars]
        axes = self._axes()
        batch = len(self.head)
        here = {variables[axis]: value for axis, value in enumerate(self.head)}
        here |= {one: number(0) for one in variables[batch:]}
        here |= {variables[axis]: value for axis, value in zip(axes, place, strict=True)}
        indices = [writer.simple(renamed(index, here)) for index in self.operand.indices]
        return tirx.BufferLoad(self.operand.buffer, indices), here

    def address(self, writer: Writer, place: Sequence[Any]) -> Any:
        return tirx.address_of(self._load(writer, place)[0])

    def bits(self, writer: Writer, place: Sequence[Any]) -> Any:
        """Of one number; nought where there is none."""
        load, here = self._load(writer, place)
        axes = self._axes()
        extents = (self.block.axes[axis].extent for axis in axes)
        there = tirx.all(*(one < extent for one, extent in zip(place, extents, strict=True)))
        if self.operand.condition is not None:
            there = tirx.And(there, renamed(self.operand.condition, here))
        bits = tirx.reinterpret("int16", load)
        return tirx.if_then_else(there, bits, tirx.const(0, "int16"))


def left(count: int, filled: int, first: Any, most: int) -> Any:
    """How many of the next `most` there are from the `first` on, of so many, filled up."""
    if count == filled:
        return number(most)
    return tirx.min(number(most), tirx.max(number(0), count - first))


def present(place: Any, count: int) -> Any:
    """A place that is there: of nothing that is read the address is taken as well."""
    return tirx.min(place, number(count - 1))
