"""Dense contractions in turns with multiply-adds alone: the part of the peak that each reaches.

    python benchmarks/peak.py RESULTS.json [--rounds 200]

RESULTS.json is what `compare.py` left: of each kernel that multiplying bounds the best schedule
that tunefarm found there is built anew. The machine's speed changes by the minute, so a peak
measured at another time says little: kernels and chains of multiply-adds that never leave the
registers are called once a round, in random order, while the gauge says that all cores are there.
Medians are compared with the median of the chains, and fastest calls with the fastest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kernels import KERNELS, Kernel, imported
from turns import in_turns, once

from tunefarm.devices.cpu import usable_cores
from tunefarm.devices.device import Device
from tunefarm.devices.probe import probe
from tunefarm.home import Home
from tunefarm.measure.build import Builder, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.roofline import CHAINS, STEPS, chained, measure_roof, roof_path
from tunefarm.measure.steady import VARIABLE

PEAK = "multiply-adds alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    a = parser.parse_args()
    runs = json.loads(a.results.read_text())["runs"]
    (device,) = probe()
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory) / "home")
        measure_roof(home, device)
        os.environ[VARIABLE] = str(roof_path(home, device))
        built = {
            kernel.name: build(kernel, best_trace(runs[kernel.name]["tunefarm"]), device, directory)
            for kernel in KERNELS
            if kernel.bound == "peak"
        }
        seconds, flops = timed(built, device, a.rounds)
    of_peak = flops[PEAK] / statistics.median(seconds[PEAK]), flops[PEAK] / min(seconds[PEAK])
    print(
        "| kernel | ms | GFLOP/s | of the peak's | fastest, of the peak's |\n|---|---|---|---|---|"
    )
    for name, samples in seconds.items():
        middle, fastest = statistics.median(samples), min(samples)
        speed, top = flops[name] / middle, flops[name] / fastest
        print(
            f"| {name} | {middle * 1e3:.4g} | {speed / 1e9:.0f} "
            f"| {speed / of_peak[0]:.0%} | {top / of_peak[1]:.0%} |"
        )


def best_trace(seeds: dict[str, Any]) -> str:
    """Of all seeds' results, each [seconds, latency or None, trace]."""
    sound = [
        (latency, t) for run in seeds.values() for _, latency, t in run["results"] if latency and t
    ]
    return min(sound)[1]


def build(
    kernel: Kernel, trace: str, device: Device, directory: str
) -> tuple[Library, KernelFacts]:
    program, task = imported(kernel, Path(directory) / kernel.name, device.target)
    builder = Builder(60.0)
    request = BuildRequest(
        program.workload(task.id), device.target, trace, Path(directory) / f"{kernel.name}.so"
    )
    library = builder.build(request).library
    builder.close()
    assert library is not None, kernel.name
    return library, KernelFacts(task.id, task.args, task.flops, Path(directory) / "none.npz")


def timed(
    built: dict[str, tuple[Library, KernelFacts]], device: Device, rounds: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each one's calls, and the operations of one."""
    os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))
    from tunefarm.measure.kernel import Kernel as Loaded
    from tunefarm.measure.kernel import make_inputs
    from tunefarm.measure.protocol import Protocol

    calls: dict[str, Callable[[], float]] = {}
    flops: dict[str, float] = {}
    for name, (library, facts) in built.items():
        loaded = Loaded(library, facts)
        bound = loaded.bind(make_inputs(facts, 1, False))
        loaded.run(bound)
        calls[name] = partial(_sampled, loaded, loaded.in_turns(bound, Protocol()))
        flops[name] = facts.flops
    calls[PEAK], flops[PEAK] = fastest_chains(device)
    return in_turns(calls, rounds), flops


def _sampled(kernel: Any, turns: Any) -> float:
    """Seconds of one of two calls."""
    (seconds,) = kernel.sample(turns, 2, 1)
    return float(seconds)


def fastest_chains(device: Device) -> tuple[Callable[[], float], float]:
    """Of multiply-adds alone, with the number of chains that is fastest here: seconds of a call,
    and its operations."""
    import numpy as np
    import tvm

    found = []
    for chains in CHAINS:
        module, shapes, work = chained(device.target, chains, STEPS)
        tensors = [tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes]
        call = partial(once, module.time_evaluator("kernel", tvm.cpu(), number=1), tensors)
        found.append((work / min(call() for _ in range(20)), call, work))
    _, call, work = max(found, key=lambda one: one[0])
    return call, work


if __name__ == "__main__":
    random.seed(0)
    main()
