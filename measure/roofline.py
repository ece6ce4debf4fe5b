"""Measuring what this machine can do at best, in a child (it compiles, and runs what it compiled).

Both roofs are kernels of the same compiler on the same threads as any candidate: sums of products
that never leave the registers, and the sum of two arrays into a third.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.devices.roof import Roof, roof_from_dict
from tunefarm.devices.target import Target
from tunefarm.errors import JobError
from tunefarm.home import Home, write_atomically
from tunefarm.measure.runner import thread_env
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

LIMIT_S = 120.0
PROCESSES = 2
"""A roof is what can be reached: one disturbed process is none."""
_STEPS = 100_000
_CHAINS = (8, 12, 16, 24)
_REPEATS = 20


def roof_path(home: Home, device: Device) -> Path:
    tvm = dict(device.toolchain).get("tvm", "")
    return home.roofs / f"{device.fingerprint}-{tvm}.json"


def known_roof(home: Home, device: Device) -> Roof | None:
    """The roof on record, None where there is none that can be read."""
    try:
        return roof_from_dict(json.loads(roof_path(home, device).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure_roof(home: Home, device: Device) -> Roof:
    """Measure and record it. Nothing else may run on the machine meanwhile.

    Raises:
        JobError: it could not be measured.
    """
    l2, l3 = device.caches[1] or 1 << 20, device.caches[2] or 1 << 25
    roof = measured(device.target, (device.cores * l2 // 2, l3 // 2, 4 * l3))
    text = json.dumps({"device": device.id, **roof.to_dict()}, indent=2) + "\n"
    write_atomically(roof_path(home, device), text.encode())
    return roof


def measured(target: Target, footprints: Sequence[int]) -> Roof:
    """The best that any of `PROCESSES` fresh processes reaches.

    Raises:
        JobError: one of them failed.
    """
    cores = int(dict(target.attrs).get("num-cores", 1))
    found: list[dict[str, Any]] = []
    for _ in range(PROCESSES):
        with Child("tunefarm.measure.roofline:measure_here", env=thread_env(cores)) as child:
            try:
                found.append(child.call((target, tuple(footprints)), LIMIT_S))
            except (ChildTimeout, ChildDied, ChildError) as error:
                raise JobError(f"the roofline could not be measured: {error}") from error
    speeds = zip(*(one["bandwidth"] for one in found), strict=True)
    return Roof(max(one["flops"] for one in found), tuple(max(same) for same in speeds))


def measure_here(request: tuple[Target, tuple[int, ...]]) -> dict[str, Any]:
    """Runs in the child."""
    target, footprints = request
    return {
        "flops": max(_chains(target, chains) for chains in _CHAINS),
        "bandwidth": [(size, _bandwidth(target, size)) for size in sorted(footprints)],
    }


def _best(module: Any, target: Target, arguments: list[Any], number: int) -> float:
    """Least seconds of a call."""
    import tvm

    from tunefarm.measure.pinning import pin_caller
    from tunefarm.search.replay import tvm_target

    built = tvm.tirx.build(module, target=tvm_target(target))
    tensors = [tvm.runtime.tensor(one) for one in arguments]
    built["main"](*tensors)
    pin_caller()
    timer = built.time_evaluator("main", tvm.cpu(), number=number, repeat=_REPEATS)
    return min(float(result) for result in timer(*tensors).results)


def _chains(target: Target, chains: int) -> float:
    """Operations a second of so many independent sums of products on each core."""
    import numpy as np
    from tvm import te
    from tvm.s_tir import Schedule

    from tunefarm.search.spaces.hardware import hardware

    machine = hardware(target)
    x = te.placeholder((machine.cores, machine.lanes), "float32", name="x")
    y = te.placeholder((machine.cores, chains), "float32", name="y")
    k = te.reduce_axis((0, _STEPS), "k")
    shape = (machine.cores, chains, machine.lanes)
    total = te.compute(shape, lambda p, r, n: te.sum(x[p, n] * y[p, r], axis=k), name="total")
    schedule = Schedule(te.create_prim_func([x, y, total]))
    block = schedule.get_sblock("total")
    store = schedule.cache_write(block, 0, "local")
    core, rows, lane = schedule.get_loops(store)
    schedule.parallel(core)
    schedule.compute_at(block, core, preserve_unit_loops=True)
    schedule.vectorize(lane)
    schedule.unroll(rows)
    rows, lane, step = schedule.get_loops(block)[-3:]
    schedule.reorder(step, rows, lane)
    schedule.vectorize(lane)
    schedule.unroll(rows)
    schedule.decompose_reduction(block, step)
    shapes = [(machine.cores, machine.lanes), (machine.cores, chains), shape]
    seconds = _best(schedule.mod, target, [np.ones(s, "float32") for s in shapes], 2)
    return 2.0 * _STEPS * machine.cores * chains * machine.lanes / seconds


def _bandwidth(target: Target, footprint: int) -> float:
    """Bytes a second of reading two arrays and writing a third, `footprint` bytes in all."""
    import numpy as np
    from tvm import te
    from tvm.s_tir import Schedule

    from tunefarm.search.spaces.hardware import hardware

    machine = hardware(target)
    block = 16 * machine.lanes
    count = max(machine.cores, footprint // 12 // block)
    a, b = (te.placeholder((count, block), "float32", name=name) for name in "ab")
    c = te.compute((count, block), lambda i, j: a[i, j] + b[i, j], name="c")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    outer, inner = schedule.get_loops(schedule.get_sblock("c"))
    schedule.parallel(outer)
    schedule.vectorize(schedule.split(inner, [None, machine.lanes])[1])
    arrays = [np.ones((count, block), "float32") for _ in range(3)]
    number = max(1, int(2e7 // (12 * count * block)))
    return 12.0 * count * block / _best(schedule.mod, target, arrays, number)
