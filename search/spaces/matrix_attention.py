"""Attention of bfloat16 in a processor's matrix registers, as one kernel, written out whole.

A task takes some queries of one head. It brings that head's keys and values into the order in which
registers multiply them (`kernels.paired`), and then takes a block of queries at a time: products
with all keys, whose rows are stored in single precision; a softmax of each row, whose exponentials
are rounded to bfloat16; products of those with the values, divided by their sums. All of it stays
in a core's caches. (Rows are whole, so nothing has to be corrected on the way, as it has to be in
Dao et al., "FlashAttention", NeurIPS 2022.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, log2
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_map

from tunefarm.devices.matrices import REGISTERS, ROW_BYTES, ROWS, multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.search.candidate import MATRIX_ATTENTION
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
from tunefarm.search.spaces.attention_tile.attention import Attention, attention_of
from tunefarm.search.spaces.family import Way
from tunefarm.search.spaces.form import Stage
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware
from tunefarm.search.spaces.tensor_tile.box import strides_of
from tunefarm.search.spaces.tensor_tile.product import Operand
from tunefarm.search.spaces.tile import divisors
from tunefarm.search.spaces.written import Family, Fitting, Writer, coordinates, whole

DTYPE = "bfloat16"
_LOG2E = 1.4426950408889634
_LEAST = -3.4028234663852886e38
_CHAINS = 4
"""Vectors that the largest of a row is sought in at once, so that none waits for the one before."""


@dataclass(frozen=True)
class Block(Way):
    """One point.

    Attributes:
        tasks: that the queries of one head are divided between.
        down: registers of queries that are taken at a time.
        across: registers of keys.
    """

    tasks: int
    down: int
    across: int

    @property
    def rows(self) -> int:
        """Queries that are taken at a time."""
        return ROWS * self.down

    @property
    def registers(self) -> int:
        return _registers(self.down, self.across)

    def coordinates(self) -> tuple[float, ...]:
        return tuple(map(log2, (self.tasks, self.down, self.across)))


@dataclass(frozen=True)
class _Sizes:
    """Of one head, filled up to whole registers; see `Attention.sizes`."""

    rows: int
    keys: int
    depth: int
    wide: int

    @property
    def all_keys(self) -> int:
        return ceil(self.keys / TERMS) * TERMS

    @property
    def line(self) -> int:
        """Elements from a query's products to the next's, and of weights: rows of a power of two
        would all be in the same few sets of a cache."""
        return self.all_keys + TERMS

    @property
    def all_depth(self) -> int:
        return ceil(self.depth / TERMS) * TERMS

    @property
    def all_wide(self) -> int:
        return ceil(self.wide / LANES) * LANES

    def blocks(self, way: Block) -> int:
        return ceil(self.rows / way.rows)


def _registers(down: int, across: int) -> int:
    """For sums, and the operands of a step."""
    return down * across + min(down, across) + 1


def _beside(columns: int, down: int) -> int:
    """Registers that are taken beside each other of so many, at most."""
    return max(one for one in divisors(columns) if _registers(down, one) <= REGISTERS)


def _fitting(workload: Any, target: Target) -> Fitting[Block] | None:
    if not multiplies_halves(target):
        return None
    attention = attention_of(workload, (DTYPE,))
    if attention is None:
        return None
    sizes, machine = _Sizes(*attention.sizes), hardware(target)

    def expected(way: Block) -> float:
        return _expected(attention, sizes, way, machine)

    def written(way: Block) -> Any:
        writer = _Writer(attention, sizes, way)
        return whole(workload["main"], writer.kernel(), [])

    ways = list(_ways(sizes))
    return Fitting(
        lambda: sorted(ways, key=expected),
        lambda way: way in ways,
        expected,
        (*map(log2, (attention.batches, *attention.sizes)), *machine.figures()),
        written,
    )


def _ways(sizes: _Sizes) -> Iterator[Block]:
    columns = sizes.all_keys // LANES
    for down, across in product((1, 2, 3), (1, 2, 4)):
        if _registers(down, across) > REGISTERS or columns % across:
            continue
        for tasks in divisors(sizes.blocks(Block(1, down, across))):
            yield Block(tasks, down, across)


MATRIX_ATTENTIONS = Family(MATRIX_ATTENTION, Block, _fitting)


# ----------------------------------------------------------------------------- what is expected

_LINE = 11.0
"""Cycles of a vector of weights, from their products to the bits that are stored."""
_MULTIPLIED, _STORED = 16.0, 16.0
"""Of an instruction for matrices; and of a register that is stored."""
_TURNED, _WOVEN = 90.0, 5.0
"""Of sixteen rows by 32 terms; and of two rows by sixteen columns."""
_ROW, _FINISHED = 30.0, 6.0
"""Of a query's sums, and of a vector of its result."""
_TASK = 800.0


def _expected(kernel: Attention, sizes: _Sizes, way: Block, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by."""
    tasks = kernel.batches * way.tasks
    down, keys = way.down, sizes.all_keys
    columns, panels = keys // LANES, sizes.all_wide // LANES
    deep, steps = sizes.all_depth // TERMS, keys // TERMS
    beside = _beside(panels, down)

    def multiplied(wide: int, many: int, count: int) -> float:
        loads = 8.0 * (down + wide) if wide * down > 1 else 24.0
        step = max(_MULTIPLIED * down * wide, loads) + 0.3 * loads
        return many / wide * (count * step + _STORED * down * wide)

    block = multiplied(way.across, columns, deep) + multiplied(beside, panels, steps)
    block += way.rows * (ceil(sizes.keys / LANES) * _LINE + _ROW + _FINISHED * panels)
    kept = way.rows * keys * 6
    far = 1.0 + 0.15 * (kept > 32 << 10) + max(0.0, kept / machine.l2 - 0.5)
    packed = columns * deep * _TURNED + steps * LANES * panels * _WOVEN
    blocks = ceil(sizes.blocks(way) / way.tasks)
    cycles = ceil(tasks / machine.cores) * (packed + blocks * block * far + _TASK)
    return (cycles + LAUNCH) / 3e9


# ----------------------------------------------------------------------------- the text


class _Writer(Writer):
    """The kernel at a point."""

    def __init__(self, of: Attention, sizes: _Sizes, way: Block) -> None:
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
        self._line = _buffer(LANES, "float32", "line")
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
            *(self._shares, self._mixed, self._largest, self._line, self._total),
        )
        body = once(with_text(paired.text(), tirx.SeqStmt(text)), "task", buffers)
        loop = tirx.For(task, 0, of.batches * way.tasks, tirx.ForKind.PARALLEL, body)
        return tirx.SeqStmt([allowed(), loop])

    def _kept(self) -> list[Any]:
        """The compiler cuts a buffer down to the elements that it sees accessed, and does not see
        what instructions and functions do from an address on: so it is shown the last ones."""
        hidden = (self._keys, self._values, self._queries, self._products, self._weights)
        return [
            _stored(one, 0, int(one.shape[0]) - 1) for one in (*hidden, self._mixed)
        ]  # fmt: skip

    def _serial(self, name: str, extent: int, body: Callable[[Any], Any]) -> Any:
        return self.loop(name, extent, tirx.ForKind.SERIAL, body)

    # ------------------------------------------------------------------------- operands

    def _packed(self, head: Sequence[Any]) -> list[Any]:
        """A head's keys and values, brought into order."""
        of, sizes = self._of, self._sizes
        keys, values = _Side(of.keys, of.first, head), _Side(of.values, of.second, head)
        deep, pairs = sizes.all_depth // TERMS, sizes.all_keys // 2

        def turned(tile: Any, step: Any) -> Any:
            to = (tile * deep + step) * (LANES * TERMS)
            key, term = tile * LANES, step * TERMS

            def number(row: Any, place: Any) -> tuple[Any, Any]:
                at = tirx.floordiv(place, 2) * TERMS + row * 2 + tirx.floormod(place, 2)
                return to + at, keys.bits(self, [key + row, term + place])

            pitch = keys.pitch(near=1, far=0)
            if pitch is None:
                return self._each(self._keys, (LANES, TERMS), number)
            start = keys.address(self, [_there(key, sizes.keys), term])
            rows = _left(sizes.keys, sizes.all_keys, key, LANES)
            terms = _left(sizes.depth, sizes.all_depth, term, TERMS)
            return paired.turned(start, pitch, rows, terms, _address(self._keys, to))

        def woven(panel: Any, pair: Any) -> Any:
            to = (panel * pairs + pair) * TERMS
            key, column = pair * 2, panel * LANES

            def number(row: Any, place: Any) -> tuple[Any, Any]:
                value = values.bits(self, [column + place, key + row])
                return to + place * 2 + row, value

            pitch = values.pitch(near=0, far=1)
            if pitch is None:
                return self._each(self._values, (2, LANES), number)
            start = values.address(self, [column, _there(key, sizes.keys)])
            rows = _left(sizes.keys, sizes.all_keys, key, 2)
            wide = _left(sizes.wide, sizes.all_wide, column, LANES)
            return paired.woven(start, pitch, rows, wide, _address(self._values, to))

        return [
            self._serial(
                "tile",
                sizes.all_keys // LANES,
                lambda tile: self._serial("step", deep, lambda step: turned(tile, step)),
            ),
            self._serial(
                "panel",
                sizes.all_wide // LANES,
                lambda panel: self._serial("pair", pairs, lambda pair: woven(panel, pair)),
            ),
        ]

    def _laid(self, head: Sequence[Any], first: Any) -> Any:
        """A block of queries, from the `first` on."""
        of, sizes = self._of, self._sizes
        queries = _Side(of.queries, of.first, head)

        def laid(row: Any, step: Any) -> Any:
            to = row * sizes.all_depth + step * TERMS
            query, term = first + row, step * TERMS

            def number(_: Any, place: Any) -> tuple[Any, Any]:
                return to + place, queries.bits(self, [query, term + place])

            if queries.pitch(near=1, far=0) is None:
                return self._each(self._queries, (1, TERMS), number)
            start = queries.address(self, [_there(query, sizes.rows), term])
            terms = _left(sizes.depth, sizes.all_depth, term, TERMS)
            if sizes.rows % self._way.rows:
                terms = tirx.Select(query < sizes.rows, terms, tirx.const(0, "int32"))
            return paired.laid(start, terms, _address(self._queries, to))

        steps = sizes.all_depth // TERMS
        return self._serial(
            "row",
            self._way.rows,
            lambda row: self._serial("step", steps, lambda step: laid(row, step)),
        )

    def _each(
        self, buffer: Any, extents: tuple[int, int], number: Callable[[Any, Any], tuple[Any, Any]]
    ) -> Any:
        """Numbers one by one, wherever they lie: `number` says where each goes, and its bits."""

        def one(row: Any, place: Any) -> Any:
            to, bits = number(row, place)
            return _stored(buffer, bits, to)

        rows, places = extents
        return self._serial(
            "line", rows, lambda row: self._serial("place", places, lambda place: one(row, place))
        )

    # ------------------------------------------------------------------------- a block of queries

    def _block(self, head: Sequence[Any], number: Any) -> Any:
        sizes, way = self._sizes, self._way
        keys, panels = sizes.all_keys, sizes.all_wide // LANES
        steps, deep = keys // TERMS, sizes.all_depth // TERMS
        first = number * way.rows
        beside = _beside(panels, way.down)

        def scored(tile: Any) -> Any:
            return self._multiplied(
                way.across,
                deep,
                lambda row, step: (self._queries, row * sizes.all_depth, step * TERMS),
                2 * sizes.all_depth,
                lambda column, step: (
                    self._keys,
                    ((tile * way.across + column) * deep + step) * (LANES * TERMS),
                ),
                lambda row, column: (
                    self._products,
                    row * sizes.line + (tile * way.across + column) * LANES,
                ),
                4 * sizes.line,
            )

        def mixed(panel: Any) -> Any:
            return self._multiplied(
                beside,
                steps,
                lambda row, step: (self._weights, row * sizes.line, step * TERMS),
                2 * sizes.line,
                lambda column, step: (
                    self._values,
                    ((panel * beside + column) * steps + step) * (LANES * TERMS),
                ),
                lambda row, column: (
                    self._mixed,
                    row * sizes.all_wide + (panel * beside + column) * LANES,
                ),
                4 * sizes.all_wide,
            )

        return tirx.SeqStmt(
            [
                self._laid(head, first),
                self._serial("tile", keys // LANES // way.across, scored),
                self._serial("row", way.rows, lambda row: self._weighed(head, first, row)),
                self._serial("panel", panels // beside, mixed),
                self._serial("row", way.rows, lambda row: self._finished(head, first, row)),
            ]
        )

    def _multiplied(
        self,
        across: int,
        steps: int,
        left: Callable[[int, Any], tuple[Any, Any, Any]],
        left_pitch: int,
        right: Callable[[int, Any], tuple[Any, Any]],
        result: Callable[[int, int], tuple[Any, Any]],
        result_pitch: int,
    ) -> Any:
        """A tile of some registers by some: rows are those of the block, and what is said of an
        operand, or of the result, is where it begins."""
        down = self._way.down
        sums = {at: place for place, at in enumerate(product(range(down), range(across)))}
        held = len(sums)

        def step(number: Any) -> Any:
            rows_held = down <= across
            few, many = (down, across) if rows_held else (across, down)
            free = range(held + few, REGISTERS)

            def load(row: bool, index: int, register: int) -> Any:
                if row:
                    buffer, start, more = left(ROWS * index, number)
                    return _loaded(register, buffer, start + more, left_pitch)
                buffer, start = right(index, number)
                return _loaded(register, buffer, start, ROW_BYTES)

            text = [load(rows_held, index, held + index) for index in range(few)]
            for other in range(many):
                register = free[other % len(free)]
                text.append(load(not rows_held, other, register))
                for one in range(few):
                    at = (one, other) if rows_held else (other, one)
                    pair = (held + one, register) if rows_held else (register, held + one)
                    text.append(called("tdpbf16ps", sums[at], *pair))
            return tirx.SeqStmt(text)

        text = [called("tilezero", register) for register in sums.values()]
        text.append(self._serial("step", steps, step))
        for (row, column), register in sums.items():
            buffer, start = result(ROWS * row, column)
            address = _address(buffer, start)
            text.append(called("tilestored64", register, address, result_pitch))
        return tirx.SeqStmt(text)

    def _weighed(self, head: Sequence[Any], first: Any, row: Any) -> Any:
        """A row of products as weights, not yet divided by their sum, and what divides them."""
        sizes = self._sizes
        lines, ends = ceil(sizes.keys / LANES), sizes.keys % LANES
        whole, columns = sizes.keys // LANES, sizes.all_keys // LANES
        base = row * sizes.line
        score = self._score(head, first, row)

        def found(line: Any, chain: Any) -> Any:
            def one(lane: Any) -> Any:
                place = chain * LANES + lane
                now = tirx.BufferLoad(self._largest, [place])
                return _stored(self._largest, tirx.max(now, score(line, lane)), place)

            return self.vector(LANES, one)

        def weighed(line: Any) -> Any:
            def one(lane: Any) -> Any:
                less = score(line, lane) - tirx.BufferLoad(self._largest, [0])
                return _stored(self._line, less * _float(self._base()), lane)

            value, here = _vector(self._line, 0), base + line * LANES
            return tirx.SeqStmt(
                [
                    self.vector(LANES, one),
                    _vector_stored(self._line, paired.power(value), 0),
                    _vector_stored(self._total, _vector(self._total, 0) + value, 0),
                    _vector_stored(self._weights, paired.rounded(value), here),
                ]
            )

        chains = _CHAINS if whole >= _CHAINS else 1
        text = [
            self.vector(chains * LANES, lambda lane: _stored(self._largest, _float(_LEAST), lane)),
            self._serial(
                "line",
                whole // chains,
                lambda line: self.unrolled(
                    "chain", chains, lambda chain: found(line * chains + chain, chain)
                ),
            ),
            *(found(_number(line), _number(0)) for line in range(whole // chains * chains, lines)),
        ]
        together = _vector(self._largest, 0)
        for chain in range(1, chains):
            together = tirx.max(together, _vector(self._largest, chain * LANES))
        nothing = tirx.Broadcast(_float(0.0), LANES)
        text += [
            _stored(self._largest, paired.largest(together), 0),
            _vector_stored(self._total, nothing, 0),
            self._serial("line", whole, weighed),
            *([weighed(_number(whole))] if ends else []),
            *(
                _vector_stored(
                    self._weights,
                    tirx.Broadcast(tirx.const(0, "int16"), LANES),
                    base + line * LANES,
                )
                for line in range(lines, columns)
            ),
            _stored(self._shares, _float(1.0) / paired.total(_vector(self._total, 0)), row),
        ]
        return tirx.SeqStmt(text)

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
            value = own
            if of.factor is None:
                query = _there(first + row, sizes.rows)
                here = dict(zip(variables, [*head, query, key], strict=True))
                value = _instead(renamed(of.score, here), sums, own)
            if not sizes.keys % LANES or not isinstance(line, tirx.IntImm):
                return value
            there, least = key < sizes.keys, _float(_LEAST)
            if of.factor is None:  # what is not there must not be read
                return tirx.if_then_else(there, value, least)
            return tirx.Select(there, value, least)

        return score

    def _finished(self, head: Sequence[Any], first: Any, row: Any) -> Any:
        """A row of the result."""
        of, sizes = self._of, self._sizes
        variables = [v.var for v in of.second.node.iter_vars][:-1]
        sums = of.second.node.body.buffer
        query = first + row

        def stored(place: Any) -> Any:
            mixed = tirx.BufferLoad(self._mixed, [row * sizes.all_wide + place])
            value = mixed * tirx.BufferLoad(self._shares, [row])
            here = dict(zip(variables, [*head, query, place], strict=True))
            there = [self.simple(renamed(one, here)) for one in of.places]
            result = _instead(renamed(of.finished, here), sums, value)
            return tirx.BufferStore(of.result, result, there)

        whole, rest = divmod(sizes.wide, LANES)
        text = [
            self._serial(
                "line",
                whole,
                lambda line: self.vector(LANES, lambda lane: stored(line * LANES + lane)),
            )
        ] * bool(whole)
        if rest:
            text.append(self.vector(rest, lambda lane: stored(whole * LANES + lane)))
        body = tirx.SeqStmt(text) if len(text) > 1 else text[0]
        if sizes.rows % self._way.rows == 0:
            return body
        return tirx.IfThenElse(query < sizes.rows, body, None)


@dataclass(frozen=True)
class _Side:
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
        here |= {one: _number(0) for one in variables[batch:]}
        here |= {variables[axis]: value for axis, value in zip(axes, place, strict=True)}
        indices = [writer.simple(renamed(index, here)) for index in self.operand.indices]
        return tirx.BufferLoad(self.operand.buffer, indices), here

    def address(self, writer: Writer, place: Sequence[Any]) -> Any:
        return tirx.address_of(self._load(writer, place)[0])

    def bits(self, writer: Writer, place: Sequence[Any]) -> Any:
        """Of one number; nought where there is none."""
        load, here = self._load(writer, place)
        axes = self._axes()
        there = tirx.all(
            *(one < self.block.axes[axis].extent for axis, one in zip(axes, place, strict=True))
        )
        if self.operand.condition is not None:
            there = tirx.And(there, renamed(self.operand.condition, here))
        bits = tirx.reinterpret("int16", load)
        return tirx.if_then_else(there, bits, tirx.const(0, "int16"))


def _left(count: int, filled: int, first: Any, most: int) -> Any:
    """How many of the next `most` there are from the `first` on, of so many, filled up."""
    if count == filled:
        return _number(most)
    return tirx.min(_number(most), tirx.max(_number(0), count - first))


def _there(place: Any, count: int) -> Any:
    """A place that is there: of nothing that is read the address is taken as well."""
    return tirx.min(place, _number(count - 1))


def _buffer(size: int, dtype: str, name: str) -> Any:
    return tirx.decl_buffer((size,), dtype, name)


def _loaded(register: int, buffer: Any, start: Any, pitch: int) -> Any:
    return called("tileloadd64", register, _address(buffer, start), pitch)


def _address(buffer: Any, place: Any) -> Any:
    return tirx.address_of(tirx.BufferLoad(buffer, [place]))


def _stored(buffer: Any, value: Any, place: Any) -> Any:
    kind = str(buffer.dtype)
    value = tirx.const(value, kind) if isinstance(value, int) else value
    place = _number(place) if isinstance(place, int) else place
    return tirx.BufferStore(buffer, value, [place])


def _vector(buffer: Any, place: Any) -> Any:
    return tirx.BufferLoad(buffer, [tirx.Ramp(_int(place), _number(1), LANES)])


def _vector_stored(buffer: Any, value: Any, place: Any) -> Any:
    return tirx.BufferStore(buffer, value, [tirx.Ramp(_int(place), _number(1), LANES)])


def _instead(value: Any, buffer: Any, own: Any) -> Any:
    def read(load: Any) -> Any:
        return own if load.source.same_as(buffer) else load

    return structural_map(value, (TensorLoad, read))


def _int(place: Any) -> Any:
    return _number(place) if isinstance(place, int) else place


def _number(value: int) -> Any:
    return tirx.const(value, "int32")


def _float(value: float) -> Any:
    return tirx.const(value, "float32")
