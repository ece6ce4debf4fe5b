"""Row by row: softmax, normalisations, and whatever reduces the last dimension and uses it again.

A thread takes whole rows; a row's stages follow one another while it is in the first-level cache,
so that memory is read once and written once. Sums along a row are kept in vectors and folded at its
end (a chain of scalar additions would be bound by their latency).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.kernels.prefetch import prefetch_next_row
from tunefarm.search.kernels.streaming import may_stream, stream_stores
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Stage, stages_of
from tunefarm.search.spaces.hardware import Hardware, hardware

OVERWRITTEN = 2.0
"""Cycles for a vector whose line is read before it is stored, of a result that no cache holds."""


@dataclass(frozen=True)
class Rows:
    """A kernel whose stages all run over the same rows.

    Attributes:
        stages: in program order; the last one writes the result.
        depth: row axes of each, the leading ones.
        columns: length of a row.
        lapped: the last vector of a row begins earlier than it would (`search.lapping`).
    """

    stages: tuple[Stage, ...]
    depth: int
    columns: int
    lapped: bool = False

    @property
    def count(self) -> int:
        return prod(axis.extent for axis in self.stages[-1].axes[: self.depth])

    def runs_along(self, stage: Stage) -> bool:
        """Whether it makes whole rows, and not one element of each."""
        along = stage.axes[self.depth :]
        return any(axis.extent == self.columns and not axis.reduces for axis in along)

    @property
    def streams(self) -> bool:
        """Whether its result may pass the caches by."""
        return not self.lapped and may_stream(self.stages[-1])


@dataclass(frozen=True)
class Stride(Way):
    """One point.

    Attributes:
        lanes: elements of a vector.
        sums: vectors of partial sums.
        unroll: vectors in the text of an elementwise loop.
        ahead: the next row is asked for in the first of those loops.
        stream: the result passes the caches by.
    """

    lanes: int
    sums: int
    unroll: int
    ahead: bool
    stream: bool = False

    def coordinates(self) -> tuple[float, ...]:
        counts = (self.lanes, self.sums, self.unroll)
        return (*map(log2, counts), 2.0 * self.ahead, 2.0 * self.stream)


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
        across, along = stage.axes[:depth], stage.axes[depth:]
        if [axis.extent for axis in across] != rows or any(axis.reduces for axis in across):
            return None
        if [axis.extent for axis in along if axis.reduces or axis.extent > 1] not in (
            [],
            [columns],
        ):
            return None
    return Rows(stages, depth, columns)


def rowwise_space(workload: Any, target: Target) -> FewWays[Stride] | None:
    """The space of `workload`, None where its stages are no rows or no vector divides them."""
    if target.kind != "llvm":
        return None
    form, machine = rows_of(workload), hardware(target)
    if form is None:
        return None
    again = _again(form, workload)
    ways = _strides(form, machine, again is not None)
    return space_of_rows("rowwise", workload, form, machine, ways, again)


def space_of_rows(
    family: str,
    workload: Any,
    form: Rows,
    machine: Hardware,
    ways: Sequence[Stride],
    again: int | None,
) -> FewWays[Stride] | None:
    """Of the kernel with these rows, None where there is no way. `again` is the argument that may
    be asked for ahead."""
    if not ways:
        return None
    return FewWays(
        family,
        workload,
        ways,
        lambda one: _estimate(form, one, machine),
        lambda schedule, one: schedule_rows(schedule, form, one, machine.cores, again),
        (
            log2(form.columns),
            log2(form.count),
            float(len(form.stages)),
            float(sum(stage.reduces for stage in form.stages)),
            *machine.figures(),
        ),
    )


def widest_strides(form: Rows, machine: Hardware) -> list[Stride]:
    """Those of whole vectors, which divide the rows."""
    return [one for one in _strides(form, machine, again=False) if one.lanes == machine.lanes]


def _strides(form: Rows, machine: Hardware, again: bool) -> list[Stride]:
    widths = [w for w in machine.widths() if form.columns % w == 0]
    counts = itertools.product(widths, (1, 2, 4, 8), (1, 2, 4))
    aheads = (False, True) if again else (False,)
    flags = list(itertools.product(aheads, (False, True) if form.streams else (False,)))
    return [
        Stride(lanes, sums, unroll, ahead, stream)
        for (lanes, sums, unroll), (ahead, stream) in itertools.product(counts, flags)
        if form.columns % (lanes * sums) == 0
        and form.columns % (lanes * unroll) == 0
        and (not (ahead or stream) or lanes == widths[0])
    ]


def _again(form: Rows, workload: Any) -> int | None:
    """The argument whose rows are read anew, element by element, once they have been reduced, by
    the first stage that does: its place among the kernel's; None where there is none."""
    stage = _first_again(form)
    if stage is None:
        return None
    shape = tuple(axis.extent for axis in stage.axes)
    whole = {
        parameter.name: place
        for place, parameter in enumerate(workload["main"].params)
        if tuple(int(size) for size in parameter.ty.shape) == shape
    }
    return next((whole[name] for name in _reads(stage, form) if name in whole), None)


def _first_again(form: Rows) -> Stage | None:
    after = itertools.dropwhile(lambda stage: not stage.reduces, form.stages)
    kept = (stage for stage in after if not stage.reduces and form.runs_along(stage))
    return next((stage for stage in kept if not _inlined(stage, form)), None)


def _reads(stage: Stage, form: Rows) -> Iterator[str]:
    """Names of the buffers that it reads, those of the stages that are computed in it included."""
    for region in stage.node.reads:
        maker = next((one for one in form.stages if _makes(one, region)), None)
        if maker is not None and _inlined(maker, form):
            yield from _reads(maker, form)
        else:
            yield region.source.name


def _makes(stage: Stage, region: Any) -> bool:
    """Not by its name: an argument of the kernel may be called as what a stage makes."""
    made: bool = stage.node.writes[0].source.same_as(region.source)
    return made


def _estimate(form: Rows, one: Stride, machine: Hardware) -> float:
    """Seconds at 3 GHz: vectors, latency of the partial sums, folding them, and reading rows from
    beyond the caches, which a request for the next one hides."""
    vectors = form.columns / one.lanes
    far = 4.0 * form.count * form.columns > machine.cores * machine.l2
    cycles = (0.5 if one.ahead else 2.0 * far) * vectors
    cycles += (0.0 if one.stream else OVERWRITTEN * form.streams) * vectors
    for stage in form.stages:
        if _inlined(stage, form):
            continue
        if stage.reduces:
            cycles += vectors * max(1.0, machine.latency / one.sums)
            steps = [wide // narrow for wide, narrow in itertools.pairwise([*_widths(one), 1])]
            cycles += machine.latency * sum(steps)
        elif form.runs_along(stage):
            cycles += vectors * (2.0 + 1.0 / one.unroll)
    return form.count * cycles / machine.cores / 3e9


def schedule_rows(schedule: Any, form: Rows, one: Stride, cores: int, again: int | None) -> None:
    """Apply `one` to the unscheduled kernel in `schedule`; `again` is what is asked for ahead."""
    *stages, last = _kept(schedule, form)
    folded = {
        stage.name: _fold(schedule, schedule.get_sblock(stage.name), form, one)
        for stage in stages
        if stage.reduces
    }
    store = schedule.get_sblock(last.name)
    loops = schedule.get_loops(store)
    rows = schedule.fuse(*loops[: form.depth]) if form.depth > 1 else loops[0]
    share, rows = schedule.split(rows, [_shares(form.count, cores), None])
    for stage in reversed(stages):
        schedule.compute_at(schedule.get_sblock(stage.name), rows, preserve_unit_loops=True)
        for partial in reversed(folded.get(stage.name, ())):
            schedule.compute_at(partial, rows, preserve_unit_loops=True)
    schedule.parallel(share)  # before a reduction is decomposed: it is refused afterwards
    vectors: dict[str, Any] = {}
    for stage in stages:
        block = schedule.get_sblock(stage.name)
        if stage.reduces:
            first, *narrower = folded[stage.name]
            _accumulate(schedule, first, one, unrolled=False)
            for partial in narrower:
                _accumulate(schedule, partial, one, unrolled=True)
            schedule.unroll(schedule.get_loops(block)[-1])
        elif form.runs_along(stage):
            vectors[stage.name] = _vectorise(schedule, schedule.get_loops(block)[-1], one)
    vectors[last.name] = _vectorise(schedule, schedule.get_loops(store)[-1], one)
    if one.stream:
        stream_stores(schedule, schedule.get_loops(store)[-1])
    reader = _first_again(form)
    if one.ahead and reader is not None and again is not None:
        prefetch_next_row(schedule, vectors[reader.name], again)


def _shares(rows: int, cores: int) -> int:
    """Parallel tasks: the fewest that all cores share evenly. What a row is kept in is allocated
    once a task: once a row, that was a quarter of the time of rows of a thousand elements."""
    even = (shares for shares in range(cores, rows + 1, cores) if rows % shares == 0)
    return next(even, rows)


def _inlined(stage: Stage, form: Rows) -> bool:
    """Whether it is computed in the one elementwise stage that reads it."""
    readers = [one for one in form.stages if any(_makes(stage, r) for r in one.node.reads)]
    return not stage.reduces and len(readers) == 1 and not readers[0].reduces


def _kept(schedule: Any, form: Rows) -> list[Stage]:
    """The stages that stay: whatever one other stage alone reads is computed there."""
    kept = []
    for stage in form.stages:
        if _inlined(stage, form):
            schedule.compute_inline(schedule.get_sblock(stage.name))
        else:
            kept.append(stage)
    return kept


def _fold(schedule: Any, block: Any, form: Rows, one: Stride) -> list[Any]:
    """Split a row's reduction into partial results, narrower and narrower, so that few are left
    to be folded one after another."""
    partials = []
    for width in _widths(one):
        along = schedule.get_loops(block)[-1]
        _steps, lane = schedule.split(along, [None, width])
        partials.append(schedule.rfactor(lane, factor_axis=form.depth))
    return partials


def _widths(one: Stride) -> list[int]:
    """Elements that partial results go down to: vectors, one vector, a quarter of the widest."""
    return sorted({one.lanes * one.sums, one.lanes, min(one.lanes, 4)}, reverse=True)


def _accumulate(schedule: Any, partial: Any, one: Stride, unrolled: bool) -> None:
    """The partial results of one row: one step of the row after another."""
    _share, _row, wide, *_rows, steps = schedule.get_loops(partial)
    schedule.reorder(steps, wide)
    sums, lane = schedule.split(wide, [None, min(one.lanes, int(schedule.get(wide).extent))])
    schedule.vectorize(lane)
    schedule.unroll(sums)
    schedule.set_scope(partial, 0, "local")
    schedule.decompose_reduction(partial, steps)
    if unrolled:
        schedule.unroll(steps)


def _vectorise(schedule: Any, loop: Any, one: Stride) -> Any:
    """The loop over the vectors of a step."""
    _steps, vectors, lane = schedule.split(loop, [None, one.unroll, one.lanes])
    schedule.vectorize(lane)
    schedule.unroll(vectors)
    return vectors
