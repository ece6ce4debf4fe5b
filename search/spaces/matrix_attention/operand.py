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
class HeadMatrix:
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
        one lie side by side; None where they do not."""
        strides, _ = strides_of(self.block, self.operand.indices, self.operand.buffer.shape)
        axes = self._axes()
        pitch = strides[axes[far]]
        return 2 * pitch if pitch is not None and strides[axes[near]] == 1 else None

    def _load(self, writer: Writer, place: Sequence[Any]) -> Any:
        variables = [v.var for v in self.block.node.iter_vars]
        here = {one: number(0) for one in variables}
        here |= dict(zip(variables, self.head, strict=False))
        here |= {variables[axis]: at for axis, at in zip(self._axes(), place, strict=True)}
        indices = [writer.simple(renamed(index, here)) for index in self.operand.indices]
        return tirx.BufferLoad(self.operand.buffer, indices)

    def address(self, writer: Writer, place: Sequence[Any]) -> Any:
        return tirx.address_of(self._load(writer, place))

    def bits(self, writer: Writer, place: Sequence[Any]) -> Any:
        """Of one number; nought where there is none."""
        extents = (self.block.axes[axis].extent for axis in self._axes())
        there = tirx.all(*(one < extent for one, extent in zip(place, extents, strict=True)))
        bits = tirx.reinterpret("int16", self._load(writer, place))
        return tirx.if_then_else(there, bits, tirx.const(0, "int16"))


def left(count: int, filled: int, first: Any, most: int) -> Any:
    """How many of the next `most` there are from the `first` on, of so many, filled up."""
    if count == filled:
        return number(most)
    return tirx.min(number(most), tirx.max(number(0), count - first))


def present(place: Any, count: int) -> Any:
    """A place that is there: of nothing that is read the address is taken as well."""
    return tirx.min(place, number(count - 1))
