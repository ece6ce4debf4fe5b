"""A kernel as stages over the same rows: softmax, normalisations, and whatever folds the last
dimension and uses it again."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_equal

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.expressions import inlined, is_its_stages, loads_of, uses
from tunefarm.search.spaces.form import Stage, stages_of


class Makes(enum.Enum):
    """What a stage makes of a row: an element for each of its columns, or one, of itself or by
    folding the columns."""

    ROW = "row"
    ONE = "one"
    FOLD = "fold"


@dataclass(frozen=True)
class Fold:
    """How elements are folded.

    Attributes:
        name: for people.
        both: of TensorIR, of two; text: the same in CUDA C++.
        begins: what an element must be that changes nothing, None where any that the fold begins
            with may be taken as often as one likes.
    """

    name: str
    both: Any
    text: str
    begins: float | None = None


_FOLDS = (
    Fold("sum", tirx.Add, "{} + {}", 0.0),
    Fold("max", tirx.Max, "fmaxf({}, {})"),
    Fold("min", tirx.Min, "fminf({}, {})"),
)


@dataclass(frozen=True)
class RowStage:
    """One stage.

    Attributes:
        buffer: that it makes; names are not unique.
        value: of an element; of a fold what is folded. In the variables of `RowKernel`; what
            other stages make is read at the same row, and column.
        fold: how, and from what on; None for other stages.
    """

    buffer: Any
    makes: Makes
    value: Any
    fold: Fold | None = None
    begins: Any = None


@dataclass(frozen=True)
class RowKernel:
    """Attributes:
    rows, column: the variables that elements are in.
    extents: of the rows' variables.
    columns: length of a row.
    stages: in order; the last makes the result.
    result: argument that it is stored in.
    """

    rows: tuple[Any, ...]
    column: Any
    extents: tuple[int, ...]
    columns: int
    stages: tuple[RowStage, ...]
    result: Any

    @property
    def count(self) -> int:
        return prod(self.extents)

    @property
    def folds(self) -> int:
        return sum(stage.makes is Makes.FOLD for stage in self.stages)

    @property
    def reads(self) -> tuple[Any, ...]:
        """Loads of arguments that go along a row, each once."""
        found: list[Any] = []
        made = {stage.buffer for stage in self.stages}
        for stage in self.stages:
            for load in loads_of(stage.value):
                if load.source in made or not uses(load, self.column):
                    continue
                if not any(structural_equal(load, other) for other in found):
                    found.append(load)
        return tuple(found)

    @property
    def widest(self) -> int:
        """Bytes of the longest element that goes along a row, from memory or to it."""
        tensors = [self.result, *(load.source for load in self.reads)]
        return max(numpy_dtype(str(tensor.dtype)).itemsize for tensor in tensors)

    @property
    def row_bytes(self) -> int:
        """Of memory, that a row is read from and written to."""
        of_rows = [one.source for one in self.reads if any(uses(one, row) for row in self.rows)]
        sizes = [numpy_dtype(str(one.dtype)).itemsize for one in (self.result, *of_rows)]
        return self.columns * sum(sizes)


def row_kernel_of(workload: Any) -> RowKernel | None:
    """The kernel as rows, None where it is something else."""
    try:
        stages = stages_of(workload)
    except ValueError:
        return None
    if not stages or not all(stage.direct for stage in stages) or not is_its_stages(workload):
        return None
    last = stages[-1]
    if last.reduces or len(last.axes) < 2 or not any(stage.reduces for stage in stages):
        return None
    variables = [one.var for one in last.node.iter_vars]
    reader = _Reader(variables[:-1], variables[-1], tuple(a.extent for a in last.axes))
    try:
        for stage in stages:
            reader.read(stage)
    except _Other:
        return None
    made = tuple(reader.stages)
    if not made or made[-1].makes is not Makes.ROW:
        return None
    extents, columns = reader.extents[:-1], reader.extents[-1]
    result = last.node.body.buffer
    return RowKernel(tuple(variables[:-1]), variables[-1], extents, columns, made, result)


class _Other(Exception):
    """It is something else than rows."""


class _Reader:
    def __init__(self, rows: Sequence[Any], column: Any, extents: tuple[int, ...]) -> None:
        self._rows, self._column, self.extents = rows, column, extents
        self.stages: list[RowStage] = []
        self._inlined: dict[Any, Stage] = {}
        """Those that are not of rows: for every row the same, say. They are put in where they are
        read."""
        self._made: dict[Any, Makes] = {}

    def read(self, stage: Stage) -> None:
        makes = self._makes(stage)
        if makes is None:
            if stage.reduces:
                raise _Other
            self._inlined[stage.node.body.buffer] = stage
            return
        store = stage.node.body
        value = store.value
        fold, begins = None, None
        if makes is Makes.FOLD:
            fold, value, begins = _fold(stage)
        value = inlined(renamed(value, self._variables(stage, makes)), self._inlined)
        if not all(self._is_own(load) for load in loads_of(value)):
            raise _Other
        self.stages.append(RowStage(store.buffer, makes, value, fold, begins))
        self._made[store.buffer] = makes

    def _makes(self, stage: Stage) -> Makes | None:
        spatial = [axis.extent for axis in stage.axes if not axis.reduces]
        folded = [axis.extent for axis in stage.axes if axis.reduces and axis.extent > 1]
        rows, columns = list(self.extents[:-1]), self.extents[-1]
        one_each = spatial in (rows, [*rows, 1])
        if stage.reduces:
            return Makes.FOLD if one_each and folded == [columns] else None
        if spatial == [*rows, columns]:
            return Makes.ROW
        return Makes.ONE if one_each else None

    def _variables(self, stage: Stage, makes: Makes) -> Mapping[Any, Any]:
        here = {}
        along = [*self._rows, *([self._column] if makes is Makes.ROW else [])]
        for one, axis in zip(stage.node.iter_vars, stage.axes, strict=True):
            if axis.reduces and axis.extent > 1:
                here[one.var] = self._column
            elif axis.reduces or not along:  # the one place that there is
                here[one.var] = tirx.const(0, str(one.var.ty.dtype))
            else:
                here[one.var] = along.pop(0)
        return here

    def _is_own(self, load: Any) -> bool:
        """Whether it is of an argument, or of what a stage makes of the same row and column."""
        if load.source not in self._made:
            return True
        of_row = self._made[load.source] is Makes.ROW
        wanted = [*self._rows, *([self._column] if of_row else [])]
        return all(
            index.same_as(variable) or (extent == 1 and isinstance(index, tirx.IntImm))
            for index, variable, extent in zip(load.indices, wanted, self.extents, strict=False)
        )


def _fold(stage: Stage) -> tuple[Fold, Any, Any]:
    """How a stage folds, what, and from what on.

    Raises:
        _Other: it is no fold of float32, or an unknown one, or begins with what would count for
            each of a row's threads.
    """
    store, first = stage.node.body, stage.node.init
    value = store.value
    fold = next((one for one in _FOLDS if isinstance(value, one.both)), None)
    if fold is None or str(store.buffer.dtype) != "float32":
        raise _Other
    if not (isinstance(value.a, TensorLoad) and value.a.source.same_as(store.buffer)):
        raise _Other
    if not isinstance(first, tirx.BufferStore) or not isinstance(first.value, tirx.FloatImm):
        raise _Other
    if fold.begins not in (None, float(first.value.value)):
        raise _Other
    return fold, value.b, first.value
