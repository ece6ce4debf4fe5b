"""What this machine can do at best: multiply-adds a second, and bytes a second by footprint.

    python benchmarks/roofline.py [BYTES ...]

Both are kernels of the same compiler on the same threads: sums of products that never leave the
registers, and the sum of two arrays into a third that together occupy so many bytes.
"""

from __future__ import annotations

import json
import os
import sys

from tunefarm.devices.cpu import usable_cores

os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tunefarm.devices.probe import probe
from tunefarm.devices.target import Target
from tunefarm.measure.pinning import pin_caller
from tunefarm.search.replay import tvm_target
from tunefarm.search.spaces.hardware import Hardware, hardware

STEPS = 100_000


def _best(module: tvm.IRModule, target: Target, arguments: list[np.ndarray], number: int) -> float:
    """Least seconds of a call: a roof is what can be reached."""
    built = tvm.tirx.build(module, target=tvm_target(target))
    tensors = [tvm.runtime.tensor(a) for a in arguments]
    built["main"](*tensors)
    pin_caller()
    timer = built.time_evaluator("main", tvm.cpu(), number=number, repeat=25)
    return min(float(r) for r in timer(*tensors).results)


def peak_flops(target: Target) -> float:
    """Floating-point operations a second, on all cores: the best of a few numbers of chains."""
    machine = hardware(target)
    return max(_chains(target, machine, chains) for chains in (8, 12, 16, 24))


def _chains(target: Target, machine: Hardware, chains: int) -> float:
    x = te.placeholder((machine.cores, machine.lanes), "float32", name="x")
    y = te.placeholder((machine.cores, chains), "float32", name="y")
    k = te.reduce_axis((0, STEPS), "k")
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
    return 2.0 * STEPS * machine.cores * chains * machine.lanes / seconds


def bandwidth(target: Target, footprint: int) -> float:
    """Bytes a second of reading two arrays and writing a third, `footprint` bytes in all."""
    machine = hardware(target)
    block = 16 * machine.lanes
    count = max(machine.cores, footprint // 12 // block)
    a = te.placeholder((count, block), "float32", name="a")
    b = te.placeholder((count, block), "float32", name="b")
    c = te.compute((count, block), lambda i, j: a[i, j] + b[i, j], name="c")
    schedule = Schedule(te.create_prim_func([a, b, c]))
    outer, inner = schedule.get_loops(schedule.get_sblock("c"))
    schedule.parallel(outer)
    schedule.vectorize(schedule.split(inner, [None, machine.lanes])[1])
    arrays = [np.ones((count, block), "float32") for _ in range(3)]
    number = max(1, int(2e7 // (12 * count * block)))
    return 12.0 * count * block / _best(schedule.mod, target, arrays, number)


def main() -> None:
    (device,) = probe()
    sizes = [int(a) for a in sys.argv[1:]] or [1 << 16, 1 << 20, 1 << 24, 1 << 27]
    print(
        json.dumps(
            {
                "gflops": peak_flops(device.target) / 1e9,
                "gbytes_per_s": {s: bandwidth(device.target, s) / 1e9 for s in sizes},
            }
        )
    )


if __name__ == "__main__":
    main()
