"""How soon kernels read the same weights again (needs TVM)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tunefarm.frontend.program import TuningTask


def rereads(module: tvm.IRModule, tasks: Sequence[TuningTask]) -> dict[str, int]:
    """`TuningTask.again` of those tasks of which most calls read weights that another one has read
    in the same inference: the median of what is read from one to the next, as whole times the
    kernel's own weights."""
    by_name = {name: task for task in tasks for name in task.functions}
    read = 0
    calls: dict[str, int] = defaultdict(int)
    last: dict[tuple[str, Any], int] = {}
    apart: defaultdict[str, list[int]] = defaultdict(list)
    for task, weights in _calls(module, by_name):
        calls[task.id] += 1
        if weights:
            before = last.get((task.id, weights))
            if before is not None:
                apart[task.id].append(read - before)
            last[task.id, weights] = read
        read += task.bytes
    found = {}
    for task in tasks:
        if 2 * len(apart[task.id]) >= max(calls[task.id], 1):
            own = task.constant_bytes
            found[task.id] = max(1, int(statistics.median(apart[task.id])) // own) * own
    return found


def _calls(
    module: tvm.IRModule, by_name: dict[str, TuningTask]
) -> list[tuple[TuningTask, tuple[int, ...]]]:
    """In order, with which constants they read where the kernel's layout is free."""
    found = []
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or len(call.args) < 2:
                continue
            task = by_name.get(getattr(call.args[0], "name_hint", ""))
            fields = getattr(call.args[1], "fields", ())
            if task is None:
                continue
            read = [fields[place] for place in task.constants if place < len(fields)]
            handles = (one.__chandle__() for one in read if isinstance(one, tvm.ir.GenericConst))
            found.append((task, tuple(handles)))
    return found
