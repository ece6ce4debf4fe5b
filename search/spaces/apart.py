"""Stages that are computed on their own, before or after what a kernel is about."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from typing import Any

from tvm import tirx

from tunefarm.search.spaces.form import Stage, conditions

_ROWS = 16
"""So many rows are enough to share out."""


def schedule_before(schedule: Any, stage: Stage, lanes: int) -> None:
    """A stage that makes an operand, such as padding. Where a pixel is less than a vector, and a
    condition asks how far along a row it lies, rows are computed in parallel, each in up to three
    loops: its ends, and what is between. There the answer is known, and LLVM moves pixels together:
    an image of three channels is padded in a tenth of the time. Wider pixels gain little, or lose:
    what they take is the memory's time."""
    block = schedule.get_sblock(stage.name)
    width = 1 if stage.branches else lanes  # a condition on the last axis takes a vector apart
    extents = [axis.extent for axis in stage.axes]
    along = len(extents) - 2
    narrow = along > 0 and extents[-1] < lanes and prod(extents[:along]) >= _ROWS
    ends = _ends(stage, along) if narrow else []
    loops = schedule.get_loops(block)
    if not ends or len(loops) != len(extents):
        schedule_elementwise(schedule, block, width)
        return
    *rows, pixels, _ = loops
    vectorise_columns(schedule, block, width)
    schedule.parallel(schedule.fuse(*rows) if len(rows) > 1 else rows[0])
    sizes = [end - start for start, end in itertools.pairwise([0, *ends])]
    schedule.loop_partition(pixels, [*sizes, None])


def _ends(stage: Stage, axis: int) -> list[int]:
    """Where along an axis the answer to its conditions changes."""
    return [end for end in inside(stage, axis) if 0 < end < stage.axes[axis].extent]


def inside(stage: Stage, axis: int) -> tuple[int, int]:
    """From which index along an axis on, up to which one, all holds that a stage's choices ask of
    that axis alone; the whole axis where that is nowhere."""
    variable, extent = stage.node.iter_vars[axis].var, stage.axes[axis].extent
    first, beyond = 0, extent
    for one in (part for whole in conditions(stage.node.body) for part in _all_of(whole)):
        low, high = _bounds(one, variable)
        first, beyond = max(first, low), min(beyond, extent if high is None else high)
    return (first, beyond) if first < beyond else (0, extent)


def _all_of(condition: Any) -> Iterator[Any]:
    if isinstance(condition, tirx.And):
        yield from _all_of(condition.a)
        yield from _all_of(condition.b)
    else:
        yield condition


def _bounds(comparison: Any, variable: Any) -> tuple[int, int | None]:
    """What a comparison of `variable` with a number leaves of its indices: from, and up to which
    one, if any."""
    strict = isinstance(comparison, tirx.LT | tirx.GT)
    if not strict and not isinstance(comparison, tirx.LE | tirx.GE):
        return 0, None
    small, large = comparison.a, comparison.b
    if isinstance(comparison, tirx.GE | tirx.GT):
        small, large = large, small
    if large.same_as(variable) and isinstance(small, tirx.IntImm):
        return int(small.value) + strict, None
    if small.same_as(variable) and isinstance(large, tirx.IntImm):
        return 0, int(large.value) + (not strict)
    return 0, None


def schedule_elementwise(schedule: Any, block: Any, lanes: int) -> None:
    """A stage of its own: all but the last axis in parallel, the last one in vectors."""
    loops = schedule.get_loops(block)
    if len(loops) > 1:
        schedule.parallel(schedule.fuse(*loops[:-1]) if len(loops) > 2 else loops[0])
    vectorise_columns(schedule, block, lanes)


def vectorise_columns(schedule: Any, block: Any, lanes: int) -> None:
    """The innermost loop, with the widest vectors that divide it."""
    last = schedule.get_loops(block)[-1]
    columns = int(schedule.get(last).extent)
    for width in (lanes, lanes // 2, lanes // 4):
        if width > 1 and columns % width == 0:
            schedule.vectorize(schedule.split(last, [None, width])[1])
            return
