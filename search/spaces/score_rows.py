"""Attention a block of queries at a time (`search/kernels/score_rows.py`), for processors.

A task takes some queries of one head. Their scores are made in register tiles, keys outermost, so
that a tile of keys stays in the first-level cache for all of them; then each row's softmax; then
the means of the values, again in register tiles. Rows of scores and of weights are to stay in the
second-level cache, beside which keys and values stream past once a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.frontend.relax.one_attention import ROWS_OF_A_TILE
from tunefarm.search.kernels.score_rows import (
    KEYS,
    MEAN,
    MIXED,
    PRODUCTS,
    SCORES,
    TOP,
    TOPS,
    TOTAL,
    TOTALS,
    VALUES,
    WEIGHTS,
    fits,
    in_rows,
)
from tunefarm.search.spaces.attention_tile.attention import Attention, attention_of
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.hardware import Hardware, hardware
from tunefarm.search.spaces.tile import divisors

FAMILY, ALGORITHM = "score-rows", "rows"
MOST_ROWS = 64
FEWEST = min(ROWS_OF_A_TILE)
"""Accumulators of a tile: with fewer, additions wait for each other."""
_EXPONENTIAL = 14.0
"""Instructions for a vector of weights: the polynomial and what is around it."""


@dataclass(frozen=True)
class Block(Way):
    """One point.

    Attributes:
        rows: queries that a task takes.
        lanes: elements of a vector.
        score_rows, score_vectors: of a register tile of scores.
        mixed_rows, mixed_vectors: of one of means.
        unroll: steps of either sum in the innermost loop's text.
    """

    rows: int
    lanes: int
    score_rows: int
    score_vectors: int
    mixed_rows: int
    mixed_vectors: int
    unroll: int

    @property
    def columns(self) -> int:
        """Keys of a tile."""
        return self.score_vectors * self.lanes

    def coordinates(self) -> tuple[float, ...]:
        sizes = (self.rows, self.lanes, self.score_rows, self.score_vectors)
        return tuple(map(log2, (*sizes, self.mixed_rows, self.mixed_vectors, self.unroll)))


def score_rows_space(workload: Any, target: Target) -> FewWays[Block] | None:
    """The space of `workload`, None where it is no attention in single precision, or its queries
    are in no blocks of a fitting size."""
    if target.kind != "llvm":
        return None
    kernel, machine = attention_of(workload, ("float32",)), hardware(target)
    if kernel is None:
        return None
    wide = kernel.sizes[-1]
    by_width = (_ways(kernel, machine, w) for w in machine.widths() if wide % w == 0)
    ways = next((found for one in by_width if (found := list(one))), [])
    if not ways:
        return None
    return FewWays(
        FAMILY,
        workload,
        ways,
        lambda one: _estimate(kernel, one, machine),
        lambda schedule, one: schedule_block(schedule, kernel, one),
        (*map(log2, (kernel.batches, *kernel.sizes)), *machine.figures()),
        lambda one: in_rows(workload, one.columns),
        lambda one: f"{ALGORITHM} {one.columns}",
    )


def _ways(kernel: Attention, machine: Hardware, lanes: int) -> Iterator[Block]:
    rows, keys, depth, wide = kernel.sizes
    tiles = [
        (down, across)
        for down, across in itertools.product(range(1, 17), range(1, 5))
        # Beside the sums: a row of vectors, and what is broadcast where a register has to hold it.
        if down * across + across + machine.broadcast_registers <= machine.registers
        and down * across >= FEWEST
    ]
    for block in divisors(rows):
        if block > MOST_ROWS:
            continue
        fitting = [(down, across) for down, across in tiles if block % down == 0]
        for scored, mixed in itertools.product(fitting, fitting):
            if not fits(kernel, scored[1] * lanes) or (wide // lanes) % mixed[1]:
                continue
            for unroll in (1, 2, 4):
                if keys % unroll == 0 and depth % unroll == 0:
                    yield Block(block, lanes, *scored, *mixed, unroll)


def _estimate(kernel: Attention, one: Block, machine: Hardware) -> float:
    """Seconds of one call at 3 GHz: to order points by."""
    rows, keys, depth, wide = kernel.sizes
    columns = ceil(keys / one.columns) * one.columns

    def product(down: int, across: int, steps: float) -> float:
        """Cycles of so many tiles' steps: multiply-adds, broadcasts, and vectors, of which the
        first-level cache gives twice as much as the second."""
        added = max(down * across, machine.latency * machine.fma) / machine.fma
        loaded = (down / machine.loads) if machine.loads else 0.0
        return steps * max(added, loaded, across * 4 * one.lanes / machine.stream)

    tasks = kernel.batches * (rows // one.rows)
    scores = product(one.score_rows, one.score_vectors, one.rows / one.score_rows * columns
                     / one.columns * depth)  # fmt: skip
    means = product(one.mixed_rows, one.mixed_vectors, one.rows / one.mixed_rows * keys
                    * wide / (one.mixed_vectors * one.lanes))  # fmt: skip
    weights = one.rows * columns / one.lanes * (_EXPONENTIAL / machine.fma + 2.0)
    kept = 2 * 4 * one.rows * columns
    passed = 4 * (columns * depth + keys * wide)
    stream = passed / machine.bytes_per_cycle
    far = 1.0 + max(0.0, kept / machine.l2 - 0.5)
    task = (scores + means + weights) * far + stream
    packed = 2.0 * kernel.batches * columns * depth / machine.cores
    return (ceil(tasks / machine.cores) * task + packed) / 3e9


def schedule_block(schedule: Any, kernel: Attention, one: Block) -> None:
    """Apply `one` to the rewritten, unscheduled kernel in `schedule`."""
    get = schedule.get_sblock
    heads = len(kernel.batch)
    mean, mixed, products = get(MEAN), get(MIXED), get(PRODUCTS)
    for sums in (mixed, products):
        schedule.set_scope(sums, 0, "local")
    *head, row, place = schedule.get_loops(mean)
    outer, inner = schedule.split(row, [None, one.rows])
    downward, down = schedule.split(inner, [None, one.mixed_rows])
    across, vector, lane = schedule.split(place, [None, one.mixed_vectors, one.lanes])
    schedule.reorder(*head, outer, across, downward, down, vector, lane)
    task = schedule.fuse(*head, outer)
    schedule.compute_at(mixed, downward, preserve_unit_loops=True)
    for name in (TOTAL, TOTALS, WEIGHTS, TOP, TOPS, SCORES):
        schedule.compute_at(get(name), task, preserve_unit_loops=True)
    schedule.parallel(task)
    _vectors(schedule, lane, vector, down)
    scores = get(SCORES)
    row, tile, lane = schedule.get_loops(scores)[-3:]
    downward, down = schedule.split(row, [None, one.score_rows])
    vector, lane = schedule.split(lane, [None, one.lanes])
    schedule.reorder(tile, downward, down, vector, lane)
    schedule.compute_at(products, downward, preserve_unit_loops=True)
    _vectors(schedule, lane, vector, down)
    row, tile, lane, deep = schedule.get_loops(products)[-4:]
    _accumulate(schedule, products, deep, [row, tile], lane, one)
    row, place, key = schedule.get_loops(mixed)[-3:]
    _accumulate(schedule, mixed, key, [row], place, one)
    weights = get(WEIGHTS)
    row, tile, lane = schedule.get_loops(weights)[-3:]
    for whole, parts, loop in ((TOP, TOPS, row), (TOTAL, TOTALS, None)):
        if loop is not None:
            schedule.compute_at(get(whole), loop, preserve_unit_loops=True)
        _fold(schedule, get(whole), get(parts), one)
    _vectors(schedule, *reversed(schedule.split(lane, [None, one.lanes])))
    for name in (KEYS, VALUES):
        schedule.parallel(schedule.fuse(*schedule.get_loops(get(name))[: heads + 1]))


def _fold(schedule: Any, whole: Any, parts: Any, one: Block) -> None:
    """Of a row at a time: in vectors for each lane, then over the lanes."""
    row = schedule.get_loops(whole)[-2]
    schedule.set_scope(parts, 0, "local")
    schedule.compute_at(parts, row, preserve_unit_loops=True)
    lane, tile = schedule.get_loops(parts)[-2:]
    vector, lane = schedule.split(lane, [None, one.lanes])
    schedule.reorder(tile, vector, lane)
    _vectors(schedule, lane, vector)
    schedule.decompose_reduction(parts, tile)


def _accumulate(
    schedule: Any, block: Any, sum_over: Any, rows: list[Any], column: Any, one: Block
) -> None:
    """Inside a tile: the sum outermost, then its unrolled steps, rows and vectors."""
    vector, lane = schedule.split(column, [None, one.lanes])
    steps, unrolled = schedule.split(sum_over, [None, one.unroll])
    schedule.reorder(steps, unrolled, *rows, vector, lane)
    _vectors(schedule, lane, vector, *rows, unrolled)
    schedule.decompose_reduction(block, steps)


def _vectors(schedule: Any, lane: Any, *unrolled: Any) -> None:
    schedule.vectorize(lane)
    for loop in unrolled:
        schedule.unroll(loop)
