"""Row by row: softmax, normalisations, and whatever reduces the last dimension and uses it again.

A thread takes whole rows; a row's stages follow one another while it is in the first-level cache,
so that memory is read once and written once. Sums along a row are kept in vectors and folded at its
end (a chain of scalar additions would be bound by their latency).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from functools import cached_property
from math import log2, prod
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.space import Description, Knob, KnobKind, Modelled, Point, Proposal
from tunefarm.search.spaces.family import realised
from tunefarm.search.spaces.form import Stage, stages_of
from tunefarm.search.spaces.hardware import Hardware, hardware


@dataclass(frozen=True)
class Rows:
    """A kernel whose stages all run over the same rows.

    Attributes:
        stages: in program order; the last one writes the result.
        depth: row axes of each, the leading ones.
        columns: length of a row.
    """

    stages: tuple[Stage, ...]
    depth: int
    columns: int

    @property
    def count(self) -> int:
        return prod(axis.extent for axis in self.stages[-1].axes[: self.depth])


@dataclass(frozen=True)
class Stride:
    """One point.

    Attributes:
        lanes: elements of a vector.
        sums: vectors of partial sums.
        unroll: vectors in the text of an elementwise loop.
    """

    lanes: int
    sums: int
    unroll: int


def rows_of(workload: Any) -> Rows | None:
    """The kernel as rows, None where it is something else."""
    try:
        stages = stages_of(workload)
    except ValueError:
        return None
    if len(stages) < 2 or stages[-1].reduces or not any(stage.reduces for stage in stages):
        return None
    last = stages[-1]
    depth = len(last.axes) - 1
    if depth < 1 or not all(stage.direct for stage in stages):
        return None
    rows = [axis.extent for axis in last.axes[:depth]]
    columns = last.axes[-1].extent
    for stage in stages:
        if [axis.extent for axis in stage.axes[:depth]] != rows:
            return None
        if any(axis.reduces for axis in stage.axes[:depth]) or len(stage.axes) > depth + 1:
            return None
        if len(stage.axes) > depth and stage.axes[depth].extent != columns:
            return None
    return Rows(stages, depth, columns)


class RowwiseSpace:
    def __init__(self, workload: Any, form: Rows, machine: Hardware) -> None:
        self._workload = workload
        self._form = form
        self._machine = machine
        widths = [w for w in machine.widths() if form.columns % w == 0]
        self._strides = [
            Stride(lanes, sums, unroll)
            for lanes, sums, unroll in itertools.product(widths, (1, 2, 4, 8), (1, 2, 4))
            if form.columns % (lanes * sums) == 0 and form.columns % (lanes * unroll) == 0
        ]

    @cached_property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return ((Knob(KnobKind.CHOICE, len(self._strides)),),)

    def modelled(self) -> list[Modelled]:
        return [
            Modelled(Point(0, (i,)), self._estimate(one), _coordinates(one))
            for i, one in enumerate(self._strides)
        ]

    def _estimate(self, one: Stride) -> float:
        """Seconds at 3 GHz: vectors, latency of the partial sums, and folding them."""
        form, machine = self._form, self._machine
        vectors = form.columns / one.lanes
        cycles = 0.0
        for stage in form.stages:
            if stage.reduces:
                cycles += vectors * max(1.0, machine.latency / one.sums)
                cycles += machine.latency * (one.lanes + log2(one.sums) + 1)
            else:
                cycles += vectors * (2.0 + 1.0 / one.unroll)
        return form.count * cycles / machine.cores / 3e9

    def realise(self, point: Point, seed: int) -> Proposal | None:
        (value,) = point.values
        chosen = value if isinstance(value, int) else seed % len(self._strides)
        one = self._strides[chosen]
        return realised(
            self._workload,
            lambda schedule: schedule_rows(schedule, self._form, one),
            Point(0, (chosen,)),
            _note(one),
            self._described(one),
        )

    def describe(self, point: Point) -> Description:
        (value,) = point.values
        assert isinstance(value, int)
        return self._described(self._strides[value])

    def _described(self, one: Stride) -> Description:
        form = self._form
        figures = (
            log2(self._estimate(one)),
            log2(form.columns),
            log2(form.count),
            float(len(form.stages)),
            float(sum(stage.reduces for stage in form.stages)),
            *self._machine.figures(),
        )
        return Description("rowwise", (*figures, *_coordinates(one)))

    def locate(self, trace: str) -> Point | None:
        notes = [_note(one) for one in self._strides]
        note = replay.completed_by(trace)
        return Point(0, (notes.index(note),)) if note in notes else None


def _note(one: Stride) -> str:
    return " ".join(["rowwise", *(f"{f.name}={getattr(one, f.name)}" for f in fields(one))])


def _coordinates(one: Stride) -> tuple[float, ...]:
    return (log2(one.lanes), log2(one.sums), log2(one.unroll))


def rowwise_space(workload: Any, target: Target) -> RowwiseSpace | None:
    """The space of `workload`, None where its stages are no rows or no vector divides them."""
    if target.kind != "llvm":
        return None
    form = rows_of(workload)
    if form is None:
        return None
    space = RowwiseSpace(workload, form, hardware(target))
    return space if space.modelled() else None


def schedule_rows(schedule: Any, form: Rows, one: Stride) -> None:
    """Apply `one` to the unscheduled kernel in `schedule`."""
    *stages, last = form.stages
    folded = {
        stage.name: _fold(schedule, schedule.get_sblock(stage.name), form, one)
        for stage in stages
        if stage.reduces
    }
    store = schedule.get_sblock(last.name)
    loops = schedule.get_loops(store)
    rows = schedule.fuse(*loops[: form.depth]) if form.depth > 1 else loops[0]
    for stage in reversed(stages):
        schedule.compute_at(schedule.get_sblock(stage.name), rows, preserve_unit_loops=True)
        if stage.reduces:
            schedule.compute_at(folded[stage.name], rows, preserve_unit_loops=True)
    schedule.parallel(rows)  # before a reduction is decomposed: it is refused afterwards
    for stage in stages:
        block = schedule.get_sblock(stage.name)
        if stage.reduces:
            _accumulate(schedule, folded[stage.name], one)
            schedule.unroll(schedule.get_loops(block)[1])
        elif len(stage.axes) > form.depth:
            _vectorise(schedule, schedule.get_loops(block)[-1], one)
    _vectorise(schedule, schedule.get_loops(store)[-1], one)


def _fold(schedule: Any, block: Any, form: Rows, one: Stride) -> Any:
    """Split a row's reduction into partial results, a vector or several wide."""
    along = schedule.get_loops(block)[-1]
    _steps, lane = schedule.split(along, [None, one.lanes * one.sums])
    return schedule.rfactor(lane, factor_axis=form.depth)


def _accumulate(schedule: Any, partial: Any, one: Stride) -> None:
    """The partial results of one row: one step of the row after another."""
    _row, lanes, *_rows, steps = schedule.get_loops(partial)
    schedule.reorder(steps, lanes)
    sums, lane = schedule.split(lanes, [None, one.lanes])
    schedule.vectorize(lane)
    schedule.unroll(sums)
    schedule.set_scope(partial, 0, "local")
    schedule.decompose_reduction(partial, steps)


def _vectorise(schedule: Any, loop: Any, one: Stride) -> None:
    _steps, vectors, lane = schedule.split(loop, [None, one.unroll, one.lanes])
    schedule.vectorize(lane)
    schedule.unroll(vectors)
