"""Grouped convolutions of few filters a group (`kernels.spreading`), a strip of rows at a time.

A task takes one vector of filters and some rows of the result: it spreads what they read into its
second-level cache, and runs register tiles over that. A strip of many rows spreads little twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.kernels.spreading import PRODUCT, SPREAD, spread, spreadable
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.form import Reduction, reduction_at, reduction_of, stages_of
from tunefarm.search.spaces.hardware import Hardware, hardware
from tunefarm.search.spaces.register_tile import UNROLLED_LIMIT
from tunefarm.search.spaces.tile import divisors, longest
from tunefarm.search.spaces.tile_schedule import accumulate

FEWEST = 4
"""Accumulators of a tile: with fewer, additions wait for each other."""
FAR = 1.5
"""How much longer a step takes whose spread vectors are beyond the second-level cache, about."""


@dataclass(frozen=True)
class Strip(Way):
    """One point.

    Attributes:
        strip: rows of the result that a task computes.
        planes, rows: of a register tile, down and across.
        unroll: steps of the longest reduction axis in the innermost loop's text.
    """

    strip: int
    planes: int
    rows: int
    unroll: int

    @property
    def accumulators(self) -> int:
        return self.planes * self.rows

    def coordinates(self) -> tuple[float, ...]:
        return tuple(map(log2, (self.strip, self.planes, self.rows, self.unroll)))


@dataclass(frozen=True)
class Spread:
    """The kernel rewritten.

    Attributes:
        lanes: filters of a vector.
        group: filters of a group.
        after: names of the stages that follow the product.
    """

    workload: Any
    product: Reduction
    lanes: int
    group: int
    after: tuple[str, ...]


def spread_space(workload: Any, target: Target) -> FewWays[Strip] | None:
    """The space of `workload`, None where it is no two-dimensional convolution in groups that are
    shorter than a vector."""
    if target.kind != "llvm":
        return None
    form, machine = reduction_of(workload), hardware(target)
    if form is None or len(form.spatial) != 4 or not spreadable(form, machine.lanes):
        return None
    kernel = _rewritten(workload, form, machine.lanes)
    ways = list(_ways(kernel, machine))
    if not ways:
        return None
    return FewWays(
        "spread",
        workload,
        ways,
        lambda one: _estimate(kernel, one, machine),
        lambda schedule, one: schedule_strip(schedule, kernel, one),
        (
            *(log2(form.extent(axis)) for axis in form.spatial),
            *(log2(form.depth), log2(kernel.group), float(len(form.after))),
            *machine.figures(),
        ),
        lambda _: kernel.workload,
        lambda _: f"spread {kernel.lanes}",
    )


def _rewritten(workload: Any, form: Reduction, lanes: int) -> Spread:
    rewritten = spread(workload, lanes)
    (block,) = (stage for stage in stages_of(rewritten) if stage.name == PRODUCT)
    product = reduction_at(block, frozenset({form.vector.buffer}))
    assert product is not None, "a sum of products, as before"
    group = form.other.groups[form.column] if form.other is not None else None
    assert group, "else nothing was spread"
    return Spread(rewritten, product, lanes, group, tuple(stage.name for stage in form.after))


def _ways(kernel: Spread, machine: Hardware) -> Iterator[Strip]:
    form = kernel.product
    _, down, across, _ = (form.extent(axis) for axis in form.spatial)
    unrolls = [u for u in (1, 2) if form.extent(longest(form)) % u == 0]
    for strip, rows, unroll in itertools.product(divisors(down), divisors(across), unrolls):
        for planes in divisors(strip):
            one = Strip(strip, planes, rows, unroll)
            text = one.accumulators * unroll
            # Beside the accumulators: the weights, a spread vector, and one that is free.
            fits = one.accumulators + 3 <= machine.registers and text <= UNROLLED_LIMIT
            if fits and one.accumulators >= min(FEWEST, strip * across):
                yield one


def _estimate(kernel: Spread, one: Strip, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by. Every multiply-add loads its spread vector,
    a tile its weights; spreading is a store for each group in a vector."""
    form, other = kernel.product, kernel.product.other
    assert other is not None
    batch, down, _, filters = (form.extent(axis) for axis in form.spatial)
    strips = batch * (down // one.strip) * (filters // kernel.lanes)
    loads = 2.0 * kernel.lanes / machine.stream  # from the first-level cache: twice the second's
    step = max(1 / machine.fma, loads) * (1 + 1 / one.accumulators)
    multiplied = form.points_written / kernel.lanes * form.depth * step
    # Of the image, a strip reads its own rows and those that the filter has beyond them.
    _, image, *row = other.shape[:-1]
    stride = (other.strides[form.spatial[1]] or prod(row) * filters) // (prod(row) * filters)
    read = (one.strip - 1) * stride + image - (down - 1) * stride
    stored = strips * read * prod(row) * kernel.lanes / kernel.group
    far = FAR if 4 * read * prod(row) * kernel.lanes > machine.l2 else 1.0
    share = ceil(strips / machine.cores) / strips
    return share * (multiplied * far + stored) / 3e9


def schedule_strip(schedule: Any, kernel: Spread, one: Strip) -> None:
    """Apply `one` to the rewritten, unscheduled kernel in `schedule`."""
    for name in kernel.after[:-1]:
        schedule.compute_inline(schedule.get_sblock(name))
    product, rows = schedule.get_sblock(PRODUCT), schedule.get_sblock(SPREAD)
    if kernel.after:
        schedule.set_scope(product, 0, "local")
        store = schedule.get_sblock(kernel.after[-1])
    else:
        store = schedule.cache_write(product, 0, "local")
    batch, y, x, k = schedule.get_loops(store)
    vector, lane = schedule.split(k, [None, kernel.lanes])
    strip, down, plane = schedule.split(y, [None, one.strip // one.planes, one.planes])
    across, row = schedule.split(x, [None, one.rows])
    schedule.reorder(batch, strip, vector, down, across, plane, row, lane)
    task = schedule.fuse(batch, strip, vector)
    schedule.compute_at(product, across, preserve_unit_loops=True)
    schedule.compute_at(rows, task, preserve_unit_loops=True)
    schedule.parallel(task)
    schedule.vectorize(lane)
    for loop in (plane, row):
        schedule.unroll(loop)
    accumulate(schedule, product, kernel.product, kernel.lanes, one.unroll)
    *_, channel, column = schedule.get_loops(rows)
    # A channel for each group of the vector: from one place each, and stored beside each other.
    groups, same = schedule.split(column, [None, kernel.group])
    schedule.vectorize(same)
    for loop in (channel, groups):
        schedule.unroll(loop)
