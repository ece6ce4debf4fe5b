"""From a point to a kernel: its text in TensorIR, from the launch to the last store.

A row is read once, into the registers of its threads, which are one warp or several; there its
stages follow one another. What is folded, lanes fold among themselves by shuffles, warps through
shared memory. The row is written once.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural_equal, structural_map

from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.expressions import lie_together, loads_in_any_case, uses
from tunefarm.search.spaces.warp_rows.point import RowFigures, WarpRows
from tunefarm.search.spaces.warp_rows.rows import Fold, Makes, RowKernel, RowStage
from tunefarm.search.spaces.written import (
    Function,
    Writer,
    all_of,
    call,
    coordinates,
    device_function,
    local,
    number,
    when,
    whole,
)


def figures(kernel: RowKernel) -> RowFigures:
    held = 1 + max(1, sum(stage.makes is Makes.ROW for stage in kernel.stages[:-1]))
    return RowFigures(
        kernel.count,
        kernel.columns,
        kernel.folds,
        len(kernel.stages),
        kernel.row_bytes,
        kernel.widest,
        held,
    )


def written(function: Any, kernel: RowKernel, point: WarpRows) -> Any:
    """`function`, which computes `kernel`, as a kernel that computes it by `point`."""
    return whole(function, _RowWriter(kernel, point).kernel(), [])


def folded(fold: Fold, warps: int) -> Function:
    """What all threads of a row have, folded; from `place` on `folds` has room for each of their
    warps."""
    text = f"""\
  #pragma unroll
  for (int n = 16; n; n >>= 1) {{
    const float other = __shfl_xor_sync(0xffffffffu, own, n);
    own = {fold.text.format("own", "other")};
  }}
"""
    if warps > 1:
        text += f"""\
  float* memory = folds + place;
  if ((threadIdx.x & 31u) == 0) memory[(threadIdx.x >> 5) % {warps}] = own;
  __syncthreads();
  own = memory[0];
  #pragma unroll
  for (int n = 1; n < {warps}; ++n) own = {fold.text.format("own", "memory[n]")};
"""
    text += "  return own;"
    arguments = "float own" + (", float* folds, int place" if warps > 1 else "")
    return device_function(f"tunefarm_folded_{fold.name}_{warps}", "float", arguments, text)


class _RowWriter(Writer):
    def __init__(self, kernel: RowKernel, point: WarpRows) -> None:
        super().__init__()
        self._kernel, self._point = kernel, point
        self._turns = point.turns(kernel.columns)
        self._size = self._turns * point.lanes
        self._values = {stage.buffer: self._place_of(stage) for stage in kernel.stages[:-1]}
        self._held: list[tuple[Any, Any]] = []
        """Loads of arguments, and what their elements were put in."""
        slots = kernel.folds * point.rows * point.warps
        self._memory: Any = None
        if point.warps > 1:
            self._memory = tirx.decl_buffer((slots,), "float32", "folded", scope="shared")
        self._folds = 0

    def _place_of(self, stage: RowStage) -> Any:
        size = self._size if stage.makes is Makes.ROW else 1
        return local(size, str(stage.buffer.dtype), f"{stage.buffer.name}_own")

    _row: Any
    _row_of_block: Any
    _within: Any

    def kernel(self) -> Any:
        point, kernel = self._point, self._kernel
        blocks = -(-kernel.count // point.rows)
        threads = {
            "threadIdx.x": (self.variable("thread", point.threads), point.threads),
            "blockIdx.x": (self.variable("block", blocks), blocks),
        }
        (thread, _), (block, _) = threads.values()
        self._row_of_block = tirx.floordiv(thread, point.threads_of_row)
        self._within = tirx.floormod(thread, point.threads_of_row)
        self._row = block * point.rows + self._row_of_block
        result = local(point.lanes, str(kernel.result.dtype), "result")
        body: list[Any] = []
        for stage in kernel.stages[:-1]:
            body += [*self._read(stage), *self._made(stage)]
        body += [*self._read(kernel.stages[-1]), self._stored(kernel.stages[-1], result)]
        buffers = [result, *self._values.values(), *(held for _, held in self._held)]
        if self._memory is not None:
            buffers.append(self._memory)
        return self.launch(tirx.SeqStmt(body), buffers, threads)

    # ---------------------------------------------------------------------------- elements

    @property
    def _row_there(self) -> Any:
        """Whether a thread's row is one of the kernel's; None for always."""
        return self._row < self._kernel.count if self._kernel.count % self._point.rows else None

    def _there(self, turn: int) -> Any:
        """Under which condition a thread has elements in a turn, None for always."""
        kernel, point = self._kernel, self._point
        beyond = (turn + 1) * point.threads_of_row * point.lanes > kernel.columns
        return all_of([self._column(turn) < kernel.columns if beyond else None, self._row_there])

    def _column(self, turn: int) -> Any:
        return self.simple((turn * self._point.threads_of_row + self._within) * self._point.lanes)

    def _at(self, node: Any, column: Any) -> Any:
        """`node` in the variables of this kernel."""
        places = coordinates(self._row, self._kernel.extents)
        rows = dict(zip(self._kernel.rows, places, strict=True))
        return renamed(node, {**rows, self._kernel.column: column})

    def _value(self, stage: RowStage, turn: int, lane: Any) -> Any:
        """Of the element that a thread has there."""
        place = number(turn * self._point.lanes) + lane

        def read(load: Any) -> Any:
            if load.source in self._values:
                own = self._values[load.source]
                return tirx.BufferLoad(own, [place if int(own.shape[0]) > 1 else number(0)])
            for other, held in self._held:
                if structural_equal(load, other):
                    return tirx.BufferLoad(held, [place])
            return load

        value = structural_map(stage.value, (TensorLoad, read))
        return self._at(value, self._column(turn) + lane)

    def _read(self, stage: RowStage) -> list[Any]:
        """What of the arguments a stage has along its row, and none before it had."""
        text = []
        for load in loads_in_any_case(stage.value):
            known = any(structural_equal(load, other) for other, _ in self._held)
            if load.source in self._values or known or not self._lies_together(load):
                continue
            held = local(self._size, str(load.source.dtype), f"{load.source.name}_held")
            self._held.append((load, held))
            text += [self._read_turn(load, held, turn) for turn in range(self._turns)]
        return text

    def _read_turn(self, load: Any, held: Any, turn: int) -> Any:
        def one(lane: Any) -> Any:
            column = self._column(turn) + lane
            indices = [self.simple(self._at(index, column)) for index in load.indices]
            value = tirx.BufferLoad(load.source, indices)
            return tirx.BufferStore(held, value, [number(turn * self._point.lanes) + lane])

        return when(self._there(turn), self.vector(self._point.lanes, one))

    def _lies_together(self, load: Any) -> bool:
        """Whether the elements that a thread has in a turn are neighbours in an argument."""
        kernel = self._kernel
        if not uses(load, kernel.column):
            return False
        extents = {
            **dict(zip(kernel.rows, kernel.extents, strict=True)),
            kernel.column: kernel.columns,
        }
        shape = load.source.shape
        return lie_together(load.indices, shape, kernel.column, extents, self._point.lanes)

    # ------------------------------------------------------------------------------ stages

    def _made(self, stage: RowStage) -> list[Any]:
        """Nothing is computed of rows and columns that are not there: it may read arguments."""
        own = self._values[stage.buffer]
        if stage.makes is Makes.ONE:
            one = tirx.BufferStore(own, self._value(stage, 0, number(0)), [number(0)])
            return [when(self._row_there, one)]
        if stage.makes is Makes.FOLD:
            return self._fold(stage, own)
        lanes = self._point.lanes

        def made(turn: int) -> Any:
            def one(lane: Any) -> Any:
                value = self._value(stage, turn, lane)
                return tirx.BufferStore(own, value, [number(turn * lanes) + lane])

            return when(self._there(turn), self.unrolled("lane", lanes, one))

        return [made(turn) for turn in range(self._turns)]

    def _fold(self, stage: RowStage, own: Any) -> list[Any]:
        point, fold = self._point, stage.fold
        assert fold is not None, "what is no fold is not folded"
        so_far = tirx.BufferLoad(own, [number(0)])

        def turn_of(turn: int) -> Any:
            def one(lane: Any) -> Any:
                value = fold.both(so_far, self._value(stage, turn, lane))
                return tirx.BufferStore(own, value, [number(0)])

            return when(self._there(turn), self.unrolled("lane", point.lanes, one))

        place = (self._folds * point.rows + self._row_of_block) * point.warps
        self._folds += 1
        given = [so_far]
        if self._memory is not None:
            given += [self._memory.data, self.simple(place)]
        return [
            tirx.BufferStore(own, stage.begins, [number(0)]),
            *(turn_of(turn) for turn in range(self._turns)),
            # All threads of a block, those of rows that are not there among them.
            tirx.BufferStore(
                own, call(folded(fold, point.warps), *given, returns="float32"), [number(0)]
            ),
        ]

    def _stored(self, stage: RowStage, result: Any) -> Any:
        lanes, kernel = self._point.lanes, self._kernel

        def stored(turn: int) -> Any:
            def made(lane: Any) -> Any:
                return tirx.BufferStore(result, self._value(stage, turn, lane), [lane])

            def put(lane: Any) -> Any:
                places = [*kernel.rows, kernel.column]
                column = self._column(turn) + lane
                indices = [self.simple(self._at(one, column)) for one in places]
                return tirx.BufferStore(kernel.result, tirx.BufferLoad(result, [lane]), indices)

            text = tirx.SeqStmt([self.unrolled("lane", lanes, made), self.vector(lanes, put)])
            return when(self._there(turn), text)

        return (
            tirx.SeqStmt([stored(turn) for turn in range(self._turns)])
            if (self._turns > 1)
            else stored(0)
        )
