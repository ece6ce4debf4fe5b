"""Chains on single numbers of 8 bits, looked up in a table of their results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import log2
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call
from tvm.target.codegen import target_has_features
from tvm_ffi import structural_walk

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.kernels.tables import (
    AT_ONCE,
    ENTRIES,
    LOOK_UP,
    TABLE,
    look_up,
    lookup_of,
    tabled,
)
from tunefarm.search.spaces.family import FewWays, Way
from tunefarm.search.spaces.hardware import LAUNCH, Hardware, hardware

FEWEST = 4 * ENTRIES
"""Elements that a table is worth."""
ONE, MANY = 1.5, 4.0
"""Cycles of an element that is looked up in memory, and of as many as are at once in registers."""


@dataclass(frozen=True)
class Share(Way):
    """Attributes:
    shares: parallel tasks; 1 for none.
    """

    shares: int

    def coordinates(self) -> tuple[float, ...]:
        return (log2(self.shares),)


def table_space(workload: Any, target: Target) -> FewWays[Share] | None:
    """The space of `workload`, None where it is nothing that a table computes."""
    found = lookup_of(workload) if target.kind == "llvm" else None
    if found is None or found.chain.points < FEWEST:
        return None
    machine, points = hardware(target), found.chain.points
    operations = _operations(found.chain.last.node.body.value)
    counts = (1, *(machine.cores * times for times in (1, 2, 4)))
    ways = [Share(count) for count in dict.fromkeys(counts) if points % count == 0]
    at_once = target_has_features("avx512vbmi", replay.tvm_target(target))
    each = MANY / AT_ONCE if at_once else ONE
    return FewWays(
        "table",
        workload,
        ways,
        partial(_estimate, points, operations, each, machine),
        lambda schedule, way: _schedule(schedule, way, machine.lanes),
        (log2(points), log2(operations), each, *machine.figures()),
        rewritten=lambda _: tabled(workload, ENTRIES),
        algorithm=lambda _: f"table {ENTRIES}",
    )


def _operations(value: Any) -> int:
    found: list[Any] = []
    kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select, Call)
    structural_walk(value, tuple((kind, found.append) for kind in kinds))
    return len(found) + 1


def _estimate(points: int, operations: int, each: float, machine: Hardware, way: Share) -> float:
    """Seconds at 3 GHz: the table, and then the elements or the memory that they lie in."""
    table = operations * ENTRIES / machine.lanes
    cores = min(way.shares, machine.cores)
    elements = max(points * each, 2 * points / machine.bytes_per_cycle) / cores
    launch = LAUNCH + 50.0 * way.shares if way.shares > 1 else 0.0
    return (table + elements + launch) / 3e9


def _schedule(schedule: Any, way: Share, lanes: int) -> None:
    (entry,) = schedule.get_loops(schedule.get_sblock(TABLE))
    schedule.vectorize(schedule.split(entry, [None, lanes])[1])
    loops = schedule.get_loops(schedule.get_sblock(LOOK_UP))
    whole = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    share, elements = schedule.split(whole, [way.shares, None])
    look_up(schedule, elements)
    if way.shares > 1:
        schedule.parallel(share)
