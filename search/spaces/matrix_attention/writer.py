"""The text of a kernel at a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tvm import tirx

from tunefarm.devices.matrices import REGISTERS, ROW_BYTES, ROWS
from tunefarm.search.kernels import paired
from tunefarm.search.kernels.matrix_registers import (
    allowed,
    called,
    configured,
    register_sizes,
    with_text,
)
from tunefarm.search.kernels.paired import LANES, TERMS
from tunefarm.search.kernels.splice import once, renamed
from tunefarm.search.spaces.attention_tile.attention import Attention, instead
from tunefarm.search.spaces.matrix_attention.block import Block, HeadSizes, beside
from tunefarm.search.spaces.matrix_attention.operand import HeadMatrix, left, present
from tunefarm.search.spaces.written import Writer, coordinates, number, when

_LOG2E = 1.4426950408889634
_LEAST = -3.4028234663852886e38
"""Of numbers: where the largest is sought from."""
_CHAINS = 4
"""Vectors that the largest of a row is sought in at once, so that none waits for the one before."""


class BlockWriter(Writer):
    """The kernel at a point."""

    def __init__(self, of: Attention, sizes: HeadSizes, way: Block) -> None:
        super().__init__()
        self._of, self._sizes, self._way = of, sizes, way
        rows, keys, line = way.rows, sizes.all_keys, sizes.line
        self._keys = _buffer(keys * sizes.all_depth, "int16", "keys")
        self._values = _buffer(keys * sizes.all_wide, "int16", "values")
        self._queries = _buffer(rows * sizes.all_depth, "int16", "queries")
        self._products = _buffer(rows * line, "float32", "products")
        self._weights = _buffer(rows * line, "int16", "weights")
        self._shares = _buffer(rows, "float32", "shares")
        self._mixed = _buffer(rows * sizes.all_wide, "float32", "mixed")
        self._largest = _buffer(_CHAINS * LANES, "float32", "largest")
        self._vector = _buffer(LANES, "float32", "vector")
        self._total = _buffer(LANES, "float32", "total")

    def kernel(self) -> Any:
        of, sizes, way = self._of, self._sizes, self._way
        heads = [of.first.axes[axis].extent for axis in of.batch]
        task = self.variable("task", of.batches * way.tasks)
        head = coordinates(tirx.floordiv(task, way.tasks), heads)
        part = tirx.floormod(task, way.tasks)
        mine = sizes.blocks(way) // way.tasks
        every = [ROW_BYTES] * REGISTERS
        text = [
            *self._kept(),
            configured(register_sizes([ROWS] * REGISTERS, every)),
            *self._packed(head),
            self._serial("block", mine, lambda n: self._block(head, part * mine + n)),
            called("tilerelease"),
        ]
        buffers = (
            *(self._keys, self._values, self._queries, self._products, self._weights),
            *(self._shares, self._mixed, self._largest, self._vector, self._total),
        )
        body = once(with_text(paired.text(), tirx.SeqStmt(text)), "task", buffers)
        loop = tirx.For(task, 0, of.batches * way.tasks, tirx.ForKind.PARALLEL, body)
        return tirx.SeqStmt([allowed(), loop])

    def _kept(self) -> list[Any]:
        """The compiler cuts a buffer down to the elements that it sees accessed, and does not see
        what instructions and functions do from an address on: so it is shown the last ones."""
        hidden = (self._keys, self._values, self._queries, self._products, self._weights)
        return [_stored(one, 0, int(one.shape[0]) - 1) for one in (*hidden, self._mixed)]

    def _serial(self, name: str, extent: int, body: Callable[[Any], Any]) -> Any:
        return self.loop(name, extent, tirx.ForKind.SERIAL, body)

    def _grid(
        self, outer: tuple[str, int], inner: tuple[str, int], body: Callable[[Any, Any], Any]
    ) -> Any:
        return self._serial(*outer, lambda one: self._serial(*inner, lambda two: body(one, two)))

    # ------------------------------------------------------------------------- operands

    def _packed(self, head: Sequence[Any]) -> list[Any]:
        """A head's keys and values, brought into order."""
        of, sizes = self._of, self._sizes
        keys, values = HeadMatrix(of.keys, of.first, head), HeadMatrix(of.values, of.second, head)
        deep, pairs = sizes.all_depth // TERMS, sizes.all_keys // 2

        def turned(tile: Any, step: Any) -> Any:
            to = (tile * deep + step) * (LANES * TERMS)
            key, term = tile * LANES, step * TERMS

            def one(row: Any, place: Any) -> tuple[Any, Any]:
                at = tirx.floordiv(place, 2) * TERMS + row * 2 + tirx.floormod(place, 2)
                return to + at, keys.bits(self, [key + row, term + place])

            pitch = keys.pitch(near=1, far=0)
            if pitch is None:
                return self._each(self._keys, (LANES, TERMS), one)
            start = keys.address(self, [present(key, sizes.keys), term])
            rows = left(sizes.keys, sizes.all_keys, key, LANES)
            terms = left(sizes.depth, sizes.all_depth, term, TERMS)
            return paired.turned(start, pitch, rows, terms, _address(self._keys, to))

        def woven(panel: Any, pair: Any) -> Any:
            to = (panel * pairs + pair) * TERMS
            key, column = pair * 2, panel * LANES

            def one(row: Any, place: Any) -> tuple[Any, Any]:
                value = values.bits(self, [column + place, key + row])
                return to + place * 2 + row, value

            pitch = values.pitch(near=0, far=1)
            if pitch is None:
                return self._each(self._values, (2, LANES), one)
            start = values.address(self, [column, present(key, sizes.keys)])
            rows = left(sizes.keys, sizes.all_keys, key, 2)
            wide = left(sizes.wide, sizes.all_wide, column, LANES)
            return paired.woven(start, pitch, rows, wide, _address(self._values, to))

        tiles, panels = sizes.all_keys // LANES, sizes.all_wide // LANES
        return [
            self._grid(("tile", tiles), ("step", deep), turned),
            self._grid(("panel", panels), ("pair", pairs), woven),
        ]

    def _laid(self, head: Sequence[Any], first: Any) -> Any:
        """A block of queries, from the `first` on."""
        of, sizes = self._of, self._sizes
        queries = HeadMatrix(of.queries, of.first, head)

        def laid(row: Any, step: Any) -> Any:
            to = row * sizes.all_depth + step * TERMS
            query, term = first + row, step * TERMS

            def one(_: Any, place: Any) -> tuple[Any, Any]:
                return to + place, queries.bits(self, [query, term + place])

            if queries.pitch(near=1, far=0) is None:
                return self._each(self._queries, (1, TERMS), one)
            start = queries.address(self, [present(query, sizes.rows), term])
            terms = left(sizes.depth, sizes.all_depth, term, TERMS)
            if sizes.rows % self._way.rows:
                terms = tirx.Select(query < sizes.rows, terms, tirx.const(0, "int32"))
            return paired.laid(start, terms, _address(self._queries, to))

        steps = sizes.all_depth // TERMS
        return self._grid(("row", self._way.rows), ("step", steps), laid)

    def _each(
        self, buffer: Any, extents: tuple[int, int], one: Callable[[Any, Any], tuple[Any, Any]]
    ) -> Any:
        """Numbers one by one, wherever they lie: `one` says where each goes, and its bits."""

        def stored(row: Any, place: Any) -> Any:
            to, bits = one(row, place)
            return _stored(buffer, bits, to)

        rows, places = extents
        return self._grid(("line", rows), ("place", places), stored)

    # ------------------------------------------------------------------------- a block of queries

    def _block(self, head: Sequence[Any], which: Any) -> Any:
        sizes, way = self._sizes, self._way
        keys, panels = sizes.all_keys, sizes.all_wide // LANES
        steps, deep = keys // TERMS, sizes.all_depth // TERMS
        first, at_once = which * way.rows, beside(panels, way.down)
        queries = _Rows(self._queries, sizes.all_depth, TERMS)
        weights = _Rows(self._weights, sizes.line, TERMS)

        def scored(tile: Any) -> Any:
            columns = _Columns(self._keys, tile * way.across, deep)
            to = _Rows(self._products, sizes.line, LANES, tile * way.across)
            return self._multiplied(queries, columns, to, way.across)

        def mixed(panel: Any) -> Any:
            columns = _Columns(self._values, panel * at_once, steps)
            to = _Rows(self._mixed, sizes.all_wide, LANES, panel * at_once)
            return self._multiplied(weights, columns, to, at_once)

        return tirx.SeqStmt(
            [
                self._laid(head, first),
                self._serial("tile", keys // LANES // way.across, scored),
                self._serial("row", way.rows, lambda row: self._weighed(head, first, row)),
                self._serial("panel", panels // at_once, mixed),
                self._serial("row", way.rows, lambda row: self._finished(head, first, row)),
            ]
        )

    def _multiplied(self, rows: _Rows, columns: _Columns, to: _Rows, across: int) -> Any:
        """The block's rows by some registers of columns. Of rows and columns those of which there
        are fewer registers are all held for a step, the others follow one another in what is
        free."""
        down = self._way.down
        sums = {at: place for place, at in enumerate(product(range(down), range(across)))}
        rows_held = down <= across
        few, many = sorted((down, across))
        held = range(len(sums), len(sums) + few)
        free = range(held.stop, REGISTERS)

        def step(which: Any) -> Any:
            def loaded(row: bool, index: int, register: int) -> Any:
                one = rows.register(index, which) if row else columns.register(index, which)
                return called("tileloadd64", register, *one)

            text = [loaded(rows_held, index, register) for index, register in enumerate(held)]
            for other in range(many):
                register = free[other % len(free)]
                text.append(loaded(not rows_held, other, register))
                for index, kept in enumerate(held):
                    at = (index, other) if rows_held else (other, index)
                    pair = (kept, register) if rows_held else (register, kept)
                    text.append(called("tdpbf16ps", sums[at], *pair))
            return tirx.SeqStmt(text)

        text = [called("tilezero", register) for register in sums.values()]
        text.append(self._serial("step", columns.steps, step))
        for (row, column), register in sums.items():
            text.append(called("tilestored64", register, *to.register(row, column)))
        return tirx.SeqStmt(text)

    def _weighed(self, head: Sequence[Any], first: Any, row: Any) -> Any:
        """A row of products as weights, not yet divided by their sum, and what divides them; or
        divided, where they are changed then. Beyond the last key there is no score, and no weight,
        whatever the others are."""
        of, sizes = self._of, self._sizes
        changed = of.weight is not None
        score = self._score(head, first, row)
        begin, zeros = row * sizes.line, tirx.Broadcast(tirx.const(0, "int16"), LANES)
        weights = _loaded(self._vector, 0)
        # What rounds them to whole numbers tells more of them than bfloat16 does.
        power = paired.fine_power if changed else paired.power

        def product(line: Any, lane: Any) -> Any:
            return tirx.BufferLoad(self._products, [begin + line * LANES + lane])

        def nothing(lanes: int) -> list[Any]:
            none = tirx.Broadcast(_float(-math.inf), LANES)
            return [_stored(self._vector, none, _lanes(0))] if lanes < LANES else []

        def weighed(line: Any, lanes: int) -> Any:
            def less(lane: Any) -> Any:
                own = (product if changed else score)(line, lane)
                difference = own - tirx.BufferLoad(self._largest, [number(0)])
                return _stored(self._vector, difference * _float(self._base()), lane)

            there = _lanes(begin + line * LANES)
            kept = _stored(self._products, weights, there)
            if not changed:
                kept = _stored(self._weights, paired.rounded(weights), there)
            return tirx.SeqStmt(
                [
                    *nothing(lanes),
                    self.vector(lanes, less),
                    _stored(self._vector, power(weights), _lanes(0)),
                    _stored(self._total, _loaded(self._total, 0) + weights, _lanes(0)),
                    kept,
                ]
            )

        share = tirx.BufferLoad(self._shares, [row])
        text = [
            *self._sought(score, begin if changed and of.factor is None else None),
            _stored(self._total, tirx.Broadcast(_float(0.0), LANES), _lanes(0)),
            *self._lines(weighed),
            _stored(self._shares, _float(1.0) / paired.total(_loaded(self._total, 0)), row),
        ]
        if changed and of.guarded:
            text.append(_stored(self._shares, _guarded(share, share), row))
        if changed:
            text += self._lines(self._changed(share, product, begin))
        for line in range(-(-sizes.keys // LANES), sizes.all_keys // LANES):
            text.append(_stored(self._weights, zeros, _lanes(begin + line * LANES)))
        return tirx.SeqStmt(text)

    def _lines(self, line_of: Callable[[Any, int], Any]) -> list[Any]:
        """Of all keys' vectors, of which the last may have fewer."""
        whole, rest = divmod(self._sizes.keys, LANES)
        text = [self._serial("line", whole, lambda line: line_of(line, LANES))] if whole else []
        return [*text, line_of(number(whole), rest)] if rest else text

    def _changed(
        self, share: Any, raised: Callable[[Any, Any], Any], begin: Any
    ) -> Callable[[Any, int], Any]:
        """What is `raised`, by its row's `share`, as what values are multiplied by."""
        of = self._of

        def line_of(line: Any, lanes: int) -> Any:
            def changed(lane: Any) -> Any:
                own = raised(line, lane) * share
                if of.guarded:  # (a score that is no number makes the share none, which is nought)
                    own = tirx.Select(share > _float(0.0), own, _float(0.0))
                return _stored(self._vector, renamed(of.weight, {of.share: own}), lane)

            # (Lanes that are not there have what is left of the vector before: for no values.)
            kept = paired.rounded(_loaded(self._vector, 0))
            there = _lanes(begin + line * LANES)
            return tirx.SeqStmt([self.vector(lanes, changed), _stored(self._weights, kept, there)])

        return line_of

    def _sought(self, score: Callable[[Any, Any], Any], keeps: Any = None) -> list[Any]:
        """The largest of a row, as the first of `largest`; `keeps`: scores instead of its products,
        which are from there on."""
        whole, rest = divmod(self._sizes.keys, LANES)
        chains = _CHAINS if whole >= _CHAINS else 1
        turns = whole // chains

        def found(line: Any, chain: Any, lanes: int) -> Any:
            def one(lane: Any) -> Any:
                place, value = chain * LANES + lane, score(line, lane)
                kept = []
                if keeps is not None:
                    at = keeps + line * LANES + lane
                    kept = [_stored(self._products, value, at)]
                    value = tirx.BufferLoad(self._products, [at])
                now = tirx.BufferLoad(self._largest, [place])
                larger = _stored(self._largest, tirx.max(now, value), place)
                return tirx.SeqStmt([*kept, larger]) if kept else larger

            return self.vector(lanes, one)

        def chained(turn: Any) -> Any:
            return self.unrolled(
                "chain", chains, lambda chain: found(turn * chains + chain, chain, LANES)
            )

        least = tirx.Broadcast(_float(_LEAST), LANES)
        text = [_stored(self._largest, least, _lanes(chain * LANES)) for chain in range(chains)]
        text.append(self._serial("line", turns, chained))
        text += [found(number(line), number(0), LANES) for line in range(turns * chains, whole)]
        if rest:
            text.append(found(number(whole), number(0), rest))
        largest = _loaded(self._largest, 0)
        for chain in range(1, chains):
            largest = tirx.max(largest, _loaded(self._largest, chain * LANES))
        return [*text, _stored(self._largest, paired.largest(largest), 0)]

    def _base(self) -> float:
        """By what differences of scores are multiplied to be powers of two."""
        return _LOG2E * (self._of.factor or 1.0)

    def _score(self, head: Sequence[Any], first: Any, row: Any) -> Callable[[Any, Any], Any]:
        """What the softmax is taken of, at a key; a product alone where that is by a factor."""
        of, sizes = self._of, self._sizes
        variables = [v.var for v in of.first.node.iter_vars][:-1]
        sums = of.first.node.body.buffer

        def score(line: Any, lane: Any) -> Any:
            key = line * LANES + lane
            own = tirx.BufferLoad(self._products, [row * sizes.line + key])
            if of.factor is not None:
                return own
            query = present(first + row, sizes.rows)
            here = dict(zip(variables, [*head, query, key], strict=True))
            return instead(renamed(of.score, here), sums, own)

        return score

    def _finished(self, head: Sequence[Any], first: Any, row: Any) -> Any:
        """A row of the result."""
        of, sizes = self._of, self._sizes
        variables = [v.var for v in of.second.node.iter_vars][:-1]
        sums = of.second.node.body.buffer
        query = first + row

        def stored(place: Any) -> Any:
            mixed = tirx.BufferLoad(self._mixed, [row * sizes.all_wide + place])
            share = tirx.BufferLoad(self._shares, [row])
            value = mixed
            if of.weight is None:
                value = mixed * share
                value = _guarded(share, value) if of.guarded else value
            here = dict(zip(variables, [*head, query, place], strict=True))
            there = [self.simple(renamed(one, here)) for one in of.places]
            result = instead(renamed(of.finished, here), sums, value)
            return tirx.BufferStore(of.result, result, there)

        whole, rest = divmod(sizes.wide, LANES)
        text = []
        if whole:
            text.append(self._serial("line", whole, lambda line: self._stored_line(line, stored)))
        if rest:
            text.append(self.vector(rest, lambda lane: stored(whole * LANES + lane)))
        body = tirx.SeqStmt(text) if len(text) > 1 else text[0]
        there = None if sizes.rows % self._way.rows == 0 else query < sizes.rows
        return when(there, body)

    def _stored_line(self, line: Any, stored: Callable[[Any], Any]) -> Any:
        return self.vector(LANES, lambda lane: stored(line * LANES + lane))


@dataclass(frozen=True)
class _Rows:
    """A matrix that lies row by row.

    Attributes:
        line: elements from a row to the next; wide: of a register's row.
        first: register along a row that is the first.
    """

    buffer: Any
    line: int
    wide: int
    first: Any = 0

    def register(self, row: int, column: Any) -> tuple[Any, int]:
        """Where a register of it begins, and bytes from a row to the next."""
        place = ROWS * row * self.line + (self.first + column) * self.wide
        return _address(self.buffer, place), self.line * ROW_BYTES // self.wide


@dataclass(frozen=True)
class _Columns:
    """A matrix that lies register by register: those of some columns follow one another.

    Attributes:
        first: register of columns that is the first; steps: registers of each.
    """

    buffer: Any
    first: Any
    steps: int

    def register(self, column: int, step: Any) -> tuple[Any, int]:
        """As for `_Rows`."""
        place = ((self.first + column) * self.steps + step) * (LANES * TERMS)
        return _address(self.buffer, place), ROW_BYTES


def _buffer(size: int, dtype: str, name: str) -> Any:
    return tirx.decl_buffer((size,), dtype, name)


def _address(buffer: Any, place: Any) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, [place]))


def _lanes(place: Any) -> Any:
    """A vector's elements from there on."""
    return tirx.Ramp(number(place) if isinstance(place, int) else place, number(1), LANES)


def _loaded(buffer: Any, place: int) -> Any:
    return tirx.BufferLoad(buffer, [_lanes(place)])


def _stored(buffer: Any, value: Any, place: Any) -> Any:
    value = tirx.const(value, str(buffer.dtype)) if isinstance(value, int) else value
    return tirx.BufferStore(buffer, value, [number(place) if isinstance(place, int) else place])


def _guarded(share: Any, value: Any) -> Any:
    """Nought where a row has no weights: of the largest score it is one, sums are no smaller."""
    return tirx.Select(share < _float(2.0), value, _float(0.0))


def _float(value: float) -> Any:
    return tirx.const(value, "float32")
