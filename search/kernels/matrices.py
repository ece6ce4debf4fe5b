"""A tile's sums in the processor's matrix registers.

x86 with AMX has eight registers of up to 16 rows of 64 bytes, and an instruction that multiplies
two of them: of 16 rows of numbers by 16 columns of weights, 64 terms each, added to 16 x 16 sums of
32 bits. It does in sixteen cycles what 256 of the widest instructions for fours (VPDPBUSD) do.

TensorIR has no such registers. A schedule leaves the reduction of a tile as it is and marks it
(`multiply_matrices`), in the trace as well; `in_registers` puts in its place the instructions for
it (`matrix_registers`) once the schedule is complete. Each task of a kernel says how large the
registers are to be before its tiles, and lets go of them after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm import DataType, tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation
from tvm_ffi import structural_map, structural_walk

from tunefarm.devices.matrices import COLUMNS, REGISTERS, ROW_BYTES, ROWS, multiplies_matrices
from tunefarm.devices.target import Target
from tunefarm.search.candidate import IN_MATRICES
from tunefarm.search.kernels.matrix_registers import (
    allowed,
    called,
    configured,
    register_sizes,
)
from tunefarm.search.kernels.splice import is_true, once, renamed
from tunefarm.search.spaces.expressions import place_of

KEY = IN_MATRICES
"""Of a tile's outermost loop of its own: `Sizes.words`."""

_INSTRUCTIONS = {("uint8", "int8"): "tdpbusd", ("bfloat16", "bfloat16"): "tdpbf16ps"}
"""By the types of data and weights."""


@dataclass(frozen=True)
class Sizes:
    """How a tile's reduction is divided. Axes are positions among the reducing block's.

    Attributes:
        high, rows_axis: rows of a register, and the axis that they lie along.
        column: the axis of columns.
        together: the reduction axes, outer first, whose terms lie one after another in memory.
        terms: groups of neighbours that one instruction takes.
    """

    high: int
    rows_axis: int
    column: int
    together: tuple[int, ...]
    terms: int

    def words(self) -> str:
        together = ",".join(map(str, self.together))
        return f"{self.high} {self.rows_axis} {self.column} {together} {self.terms}"

    @classmethod
    def of(cls, words: str) -> Sizes:
        """Raises: ValueError, it says no such thing."""
        high, axis, column, together, terms = words.split(" ")
        run = tuple(map(int, together.split(",")))
        return cls(int(high), int(axis), int(column), run, int(terms))


def multiply_matrices(schedule: Any, loop: Any, sizes: Sizes) -> None:
    """Let the reduction of a tile be done in matrix registers: `loop` is the first of those around
    its block that are one tile's, a loop for each of the block's axes."""
    schedule.annotate(loop, KEY, sizes.words())


def in_registers(function: Any, target: Target) -> Any:
    """A scheduled kernel with the instructions that its loops are annotated with.

    Raises:
        ValueError: `target` has no such registers; what is marked is not inside one of the loops
            that threads share, or is no reduction of whole registers, as many as there are, whose
            operands lie as they are read.
    """
    if not multiplies_matrices(target):
        raise ValueError(f"{target.text} has no matrix registers")
    root = function.body.block
    text: list[Any] = []
    for statement in root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]:
        marks = _marks(statement)
        if len(marks) > 1 or (marks and not _is_parallel(statement)):
            raise ValueError("matrix registers outside of a loop of tasks, or twice in one")
        text += _in_registers(statement, _Reduction(marks[0])) if marks else [statement]
    block = SBlock([], [], [], root.name_hint, tirx.SeqStmt(text), alloc_buffers=root.alloc_buffers)
    return function.with_body(SBlockRealize([], tirx.const(True, "bool"), block))


def _marks(text: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(text, (tirx.For, found.append))
    return [loop for loop in found if KEY in loop.annotations]


def _is_parallel(text: Any) -> bool:
    return isinstance(text, tirx.For) and text.kind == tirx.ForKind.PARALLEL


def _in_registers(tasks: Any, reduction: _Reduction) -> list[Any]:
    """What asks for the registers, and a loop of tasks whose one marked reduction uses them."""

    def written(loop: Any) -> Any:
        return reduction.text() if KEY in loop.annotations else loop

    inside = structural_map(tasks.body, (tirx.For, written))
    body = tirx.SeqStmt([configured(reduction.configuration()), inside, called("tilerelease")])
    return [
        allowed(),
        tirx.For(
            tasks.loop_var, tasks.min, tasks.extent, tasks.kind, body, annotations=tasks.annotations
        ),
    ]


def pitch(load: Any, variables: Sequence[Any], axis: int) -> int | None:
    """Elements between what `load` reads for neighbours along one of a block's axes; None where
    they are not evenly spaced. Across the ends of lines they may be, as a whole."""
    known = Analyzer()
    for one in variables:
        known.bind(one.var, Range.from_min_extent(one.dom.min, one.dom.extent))
    place = known.simplify(place_of(load.indices, load.source))
    linear = detect_linear_equation(place, [variables[axis].var])
    return int(linear[0]) if linear else None


def _factors(store: Any) -> tuple[Any, Any, str]:
    """Where a sum of products reads data and weights, and the instruction for them.

    Raises:
        ValueError: it is no such sum, or there is none.
    """
    try:
        data, weights = store.value.b.a.value, store.value.b.b.value
        return data, weights, _INSTRUCTIONS[str(data.source.dtype), str(weights.source.dtype)]
    except (AttributeError, KeyError) as error:
        raise ValueError("no product that matrix registers do") from error


class _Reduction:
    """One tile's reduction: from the loops of its block to instructions.

    Args:
        loop: the first of them, with the annotation.
    """

    def __init__(self, loop: Any) -> None:
        self._sizes = Sizes.of(str(loop.annotations[KEY]))
        self._loops: list[Any] = []
        body = loop
        while isinstance(body, tirx.For):
            self._loops.append(body)
            body = body.body
        block = body.block
        self._variables = list(block.iter_vars)
        self._axes = [variable.var for variable in block.iter_vars]
        self._values = list(body.iter_values)
        self._reduces = [int(v.iter_type) == tirx.IterVar.CommReduce for v in block.iter_vars]
        self._store = block.body
        self._data, self._weights, self._instruction = _factors(self._store)
        self._bytes = DataType(self._data.source.dtype).itemsize
        if not is_true(body.predicate) or not self._fits():
            raise ValueError("a tile that is not of the matrix registers there are")
        self._rows, self._columns = self._tiles()
        few = min(len(self._rows), len(self._columns))
        self._sums = len(self._rows) * len(self._columns)
        self._free = range(self._sums + few, REGISTERS)
        if not self._free:
            raise ValueError("a tile of more matrix registers than there are")
        self._pitch = self._checked_pitch()

    def _extent(self, axis: int) -> int:
        return int(self._loops[axis].extent)

    def _fits(self) -> bool:
        """Whether it is divided into whole registers."""
        sizes, axes = self._sizes, len(self._axes)
        named = (sizes.rows_axis, sizes.column, *sizes.together)
        inside = all(0 <= axis < axes - 1 for axis in named)
        if len(self._loops) != axes or not inside or len(set(named)) < len(named):
            return False
        run = prod(map(self._extent, sizes.together))
        return (
            0 < sizes.high <= ROWS
            and 0 < sizes.terms <= ROWS
            and run % sizes.terms == 0
            and self._extent(sizes.rows_axis) % sizes.high == 0
            and self._extent(sizes.column) % COLUMNS == 0
            and not self._reduces[sizes.rows_axis]
            and not self._reduces[sizes.column]
            and all(self._reduces[axis] for axis in sizes.together)
        )

    def _checked_pitch(self) -> int:
        """Bytes from a row of data to the next.

        Raises:
            ValueError: these are not evenly spaced; terms do not lie together, in data or weights;
                or weights are others for other rows.
        """
        length = 1
        for axis in reversed(self._sizes.together):
            of_data, of_weights = (
                pitch(one, self._variables, axis) for one in (self._data, self._weights)
            )
            together = (
                of_data == 4 // self._bytes * length
                and of_weights == ROW_BYTES // self._bytes * length
            )
            if self._extent(axis) > 1 and not together:
                raise ValueError("terms that do not lie together for matrix registers")
            length *= self._extent(axis)
        for axis, sums in enumerate(self._reduces):
            row = not sums and axis != self._sizes.column and self._extent(axis) > 1
            if row and pitch(self._weights, self._variables, axis) != 0:
                raise ValueError("weights that are others for other rows")
        found = pitch(self._data, self._variables, self._sizes.rows_axis)
        if found is None:
            raise ValueError("rows that are not evenly spaced")
        return int(found * self._bytes)

    def _tiles(self) -> tuple[list[dict[int, int]], list[dict[int, int]]]:
        """Where registers' rows begin, and where their columns do: offsets along axes."""
        sizes, spatial = self._sizes, [a for a, sums in enumerate(self._reduces) if not sums]
        steps = {axis: sizes.high if axis == sizes.rows_axis else 1 for axis in spatial}
        steps.pop(sizes.column)
        starts = [range(0, self._extent(axis), step) for axis, step in steps.items()]
        rows = [dict(zip(steps, at, strict=True)) for at in product(*starts)]
        width = self._extent(sizes.column)
        return rows, [{sizes.column: at} for at in range(0, width, COLUMNS)]

    def configuration(self) -> list[int]:
        """What LDTILECFG reads, as sixteen numbers of 32 bits."""
        sizes = self._sizes
        rows, widths = [0] * REGISTERS, [0] * REGISTERS
        by_rows, by_terms = self._operands()
        for register in range(self._sums):
            rows[register], widths[register] = sizes.high, ROW_BYTES
        for register in by_rows:
            rows[register], widths[register] = sizes.high, 4 * sizes.terms
        for register in by_terms:
            rows[register], widths[register] = sizes.terms, ROW_BYTES
        return register_sizes(rows, widths)

    def _operands(self) -> tuple[list[int], list[int]]:
        """The registers of data, and those of weights: of the one of which a tile has fewer all are
        held for a step, the other's follow one another in what is free."""
        few = list(range(self._sums, self._free[0]))
        many = list(self._free[: max(len(self._rows), len(self._columns))])
        return (few, many) if len(self._rows) <= len(self._columns) else (many, few)

    def text(self) -> Any:
        """What takes the loops' place."""
        sizes, across = self._sizes, len(self._columns)
        sums = {
            (row, column): row * across + column
            for row in range(len(self._rows))
            for column in range(across)
        }
        text = [called("tilezero", register) for register in sums.values()]
        text.append(self._steps(sums))
        pitch = 4 * self._extent(sizes.column)
        for (row, column), register in sums.items():
            there = self._address(self._store, {**self._rows[row], **self._columns[column]})
            text.append(called("tilestored64", register, there, pitch))
        return once(tirx.SeqStmt(text), "in_matrices")

    def _steps(self, sums: Mapping[tuple[int, int], int]) -> Any:
        """The loops of the reduction, a register's terms at a time."""
        sizes = self._sizes
        step = tirx.Var("step", "int64")
        at, rest = dict[int, Any](), step * sizes.terms
        for axis in reversed(sizes.together):
            extent = self._extent(axis)
            at[axis] = rest if axis == sizes.together[0] else tirx.floormod(rest, extent)
            rest = tirx.floordiv(rest, extent)
        count = prod(map(self._extent, sizes.together)) // sizes.terms
        outer = [
            axis
            for axis, sums_up in enumerate(self._reduces)
            if sums_up and axis not in sizes.together and axis < len(self._loops) - 1
        ]
        at |= {axis: self._loops[axis].loop_var for axis in outer}
        body = tirx.For(step, 0, count, tirx.ForKind.SERIAL, self._step(at, sums))
        for axis in reversed(outer):
            loop = self._loops[axis]
            body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body)
        return body

    def _step(self, at: Mapping[int, Any], sums: Mapping[tuple[int, int], int]) -> Any:
        data, weights = self._operands()
        pitches = (self._pitch, ROW_BYTES)

        def load(rows: bool, index: int) -> tuple[int, Any]:
            registers, load, starts = (
                (data, self._data, self._rows) if rows else (weights, self._weights, self._columns)
            )
            register = registers[index % len(registers)]
            there = self._address(load, {**at, **starts[index]})
            return register, called("tileloadd64", register, there, pitches[not rows])

        held_rows = len(self._rows) <= len(self._columns)
        few, many = sorted((len(self._rows), len(self._columns)))
        held = [load(held_rows, index) for index in range(few)]
        text = [instruction for _, instruction in held]
        for other in range(many):
            register, instruction = load(not held_rows, other)
            text.append(instruction)
            for one, (kept, _) in enumerate(held):
                row, column = (one, other) if held_rows else (other, one)
                left, right = (kept, register) if held_rows else (register, kept)
                text.append(called(self._instruction, sums[row, column], left, right))
        return tirx.SeqStmt(text)

    def _address(self, access: Any, at: Mapping[int, Any]) -> Any:
        """Of what is read or written at these offsets in the tile."""
        offsets = {
            loop.loop_var: tirx.const(0, "int64") + at.get(axis, 0)
            for axis, loop in enumerate(self._loops)
        }
        place = {
            axis: renamed(value, offsets)
            for axis, value in zip(self._axes, self._values, strict=True)
        }
        buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
        indices = [renamed(index, place) for index in access.indices]
        return tirx.address_of(tirx.BufferLoad(buffer, indices))
