"""Measuring what this machine can do at best, in a child (it compiles, and runs what it compiled).

Both roofs are kernels of the same compiler on the same threads as any candidate: sums of products
that never leave the registers, and the sum of two arrays into a third.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunefarm.devices.cores import exchange_s
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
STEPS = 100_000
CHAINS = (8, 12, 16, 24)
_GAUGE_CHAINS, _GAUGE_STEPS = 12, 60_000
_REPEATS = 20
_ASKED, _REST_S, _FREAKS = 24, 0.05, 2


def roof_path(home: Home, device: Device) -> Path:
    tvm = dict(device.toolchain).get("tvm", "")
    return home.roofs / f"{device.fingerprint}-{tvm}.json"


def known_roof(home: Home, device: Device) -> Roof | None:
    """The roof on record, None where there is none that can be read, or an older tunefarm's, that
    does not tell how near the cores are."""
    try:
        document = json.loads(roof_path(home, device).read_text())
        return roof_from_dict(document) if "near_s" in document else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure_roof(home: Home, device: Device) -> Roof:
    """Measure and record it. Nothing else may run on the machine meanwhile.

    Raises:
        JobError: it could not be measured.
    """
    l2, l3 = device.caches[1] or 1 << 20, device.caches[2] or 1 << 25
    path = roof_path(home, device)
    near_s = nearest()
    footprints = (device.cores * l2 // 2, l3 // 2, 4 * l3)
    roof, gauge = measured(device.target, footprints, path.with_suffix(".so"))
    document = {"device": device.id, **roof.to_dict(), "gauge": gauge, "near_s": near_s}
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())
    return roof


def nearest() -> float:
    """Seconds of an exchange between cores that are as near as they get (`devices.cores`): within a
    second without work they mostly come to be. Not the least of all, which may be a freak."""
    found = []
    for _ in range(_ASKED):
        found.append(exchange_s())
        time.sleep(_REST_S)
    return sorted(found)[_FREAKS]


def measured(target: Target, footprints: Sequence[int], gauge: Path) -> tuple[Roof, dict[str, Any]]:
    """The best that any of `PROCESSES` fresh processes reaches, and what to remember of the gauge
    (see `measure.steady`) whose library is left in the file `gauge`.

    Raises:
        JobError: one of them failed.
    """
    cores = int(dict(target.attrs).get("num-cores", 1))
    found: list[dict[str, Any]] = []
    for _ in range(PROCESSES):
        with Child("tunefarm.measure.roofline:measure_here", env=thread_env(cores)) as child:
            try:
                found.append(child.call((target, tuple(footprints), gauge), LIMIT_S))
            except (ChildTimeout, ChildDied, ChildError) as error:
                raise JobError(f"the roofline could not be measured: {error}") from error
    speeds = zip(*(one["bandwidth"] for one in found), strict=True)
    roof = Roof(max(one["flops"] for one in found), tuple(max(same) for same in speeds))
    seconds = min(one["gauge_s"] for one in found)
    return roof, {"shapes": found[0]["gauge_shapes"], "seconds": seconds}


def measure_here(request: tuple[Target, tuple[int, ...], Path]) -> dict[str, Any]:
    """Runs in the child."""
    from tunefarm.measure.compile import link

    target, footprints, gauge = request
    built, shapes, _ = chained(target, _GAUGE_CHAINS, _GAUGE_STEPS)
    link(built, gauge)
    flops = 0.0
    for chains in CHAINS:
        module, arguments, work = chained(target, chains, STEPS)
        flops = max(flops, work / _best(module, arguments, 2))
    return {
        "flops": flops,
        "bandwidth": [(size, _bandwidth(target, size)) for size in sorted(footprints)],
        "gauge_s": _best(built, shapes, 1),
        "gauge_shapes": shapes,
    }


def _best(built: Any, shapes: list[tuple[int, ...]], number: int) -> float:
    """Least seconds of a call."""
    import numpy as np
    import tvm

    from tunefarm.measure.pinning import pin_caller

    tensors = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes]
    built["kernel"](*tensors)
    pin_caller()
    timer = built.time_evaluator("kernel", tvm.cpu(), number=number, repeat=_REPEATS)
    return min(float(result) for result in timer(*tensors).results)


def _built(schedule: Any, target: Target) -> Any:
    import tvm

    from tunefarm.search.replay import tvm_target

    function = schedule.mod["main"].with_attr("global_symbol", "kernel")
    return tvm.tirx.build(tvm.IRModule({"kernel": function}), target=tvm_target(target))


def chained(target: Target, chains: int, steps: int) -> tuple[Any, list[tuple[int, ...]], float]:
    """So many independent sums of products on each core: a kernel, its arguments' shapes, and the
    operations of a call."""
    from tvm import te
    from tvm.s_tir import Schedule

    from tunefarm.search.spaces.hardware import hardware

    machine = hardware(target)
    x = te.placeholder((machine.cores, machine.lanes), "float32", name="x")
    y = te.placeholder((machine.cores, chains), "float32", name="y")
    k = te.reduce_axis((0, steps), "k")
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
    shapes: list[tuple[int, ...]] = [
        (machine.cores, machine.lanes),
        (machine.cores, chains),
        shape,
    ]
    work = 2.0 * steps * machine.cores * chains * machine.lanes
    return _built(schedule, target), shapes, work


def _bandwidth(target: Target, footprint: int) -> float:
    """Bytes a second of `summed`."""
    module, shapes, moved = summed(target, footprint)
    return moved / _best(module, shapes, max(1, int(2e7 // moved)))


def summed(target: Target, footprint: int) -> tuple[Any, list[tuple[int, ...]], float]:
    """Reading two arrays and writing their sum, about `footprint` bytes in all: a kernel, its
    arguments' shapes, and the bytes of a call."""
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
    return _built(schedule, target), [(count, block)] * 3, 12.0 * count * block
