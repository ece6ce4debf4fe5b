"""Kernels that memory bounds, in turns with the plain sum of two arrays: bytes a second of each.

    python benchmarks/memory.py [--rounds 25]

The memory's speed changes by the hour on a shared machine, so a roof measured at another time says
little. Of each kernel (8192 x 1024, float32) a few of its family's points are built, and all are
called once a round in random order, while the gauge says that all cores are there; the best median
counts.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from kernels import KERNELS, Kernel, _model, imported
from onnx import helper
from turns import in_turns, once

from tunefarm.devices.cpu import usable_cores
from tunefarm.devices.probe import probe
from tunefarm.home import Home
from tunefarm.measure.build import Builder, BuildRequest
from tunefarm.measure.gate import make_input
from tunefarm.measure.roofline import measure_roof, roof_path
from tunefarm.measure.steady import VARIABLE
from tunefarm.search.replay import load_workload
from tunefarm.search.spaces import design_space

SHAPE = (8192, 1024)


def _elementwise(name: str, operator: str, inputs: list[str]) -> Kernel:
    nodes = [helper.make_node(operator, inputs, ["y"])]
    return Kernel(
        name, "bandwidth", "", lambda: _model(nodes, dict.fromkeys(inputs, SHAPE), {}, SHAPE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    known = {kernel.name: kernel for kernel in KERNELS}
    chosen = [
        _elementwise("sum", "Add", ["a", "b"]),
        _elementwise("relu", "Relu", ["a"]),
        known["layer-norm"],
        known["softmax"],
    ]
    with tempfile.TemporaryDirectory() as directory:
        built = {kernel.name: build(kernel, Path(directory) / kernel.name) for kernel in chosen}
        home = Home(Path(directory) / "home")
        measure_roof(home, probe()[0])
        os.environ[VARIABLE] = str(roof_path(home, probe()[0]))
        seconds = timed(built, rounds)
    best = {name: min(map(statistics.median, of)) for name, of in seconds.items()}
    speed = {name: built[name][1] / best[name] for name in best}
    print("| kernel | ms | GB/s | of the sum's |\n|---|---|---|---|")
    for name, s in best.items():
        share = speed[name] / speed["sum"]
        print(f"| {name} | {s * 1e3:.2f} | {speed[name] / 1e9:.1f} | {share:.0%} |")


def build(kernel: Kernel, directory: Path) -> tuple[list[Path], float, tuple[Any, ...]]:
    """Libraries of the best six points that its family expects and of three from the middle, the
    bytes that a call moves, and the arguments' specs."""
    (device,) = probe()
    program, task = imported(kernel, directory, device.target)
    space = design_space(load_workload(program.workload(task.id)), device.target)
    points = sorted(space.modelled(), key=lambda one: one.seconds)
    middle = len(points) // 2
    builder, libraries = Builder(60.0), []
    for number, one in enumerate([*points[:6], *points[middle : middle + 3]]):
        proposal = space.realise(one.point, 0)
        if proposal is not None:
            path = directory / f"{number}.so"
            request = BuildRequest(program.workload(task.id), device.target, proposal.trace, path)
            if builder.build(request).library is not None:
                libraries.append(path)
    builder.close()
    return libraries, float(task.bytes), task.args


def timed(built: dict[str, Any], rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of each library's calls, by kernel."""
    os.environ.setdefault("TVM_NUM_THREADS", str(usable_cores()))
    import tvm

    calls = {}
    for name, (libraries, _, specs) in built.items():
        arguments = [tvm.runtime.tensor(make_input(spec, 1, True)) for spec in specs]
        for library in libraries:
            module = tvm.runtime.load_module(str(library))
            module["kernel"](*arguments)
            timer = module.time_evaluator("kernel", tvm.cpu(), number=1, repeat=1)
            calls[name, library] = partial(once, timer, arguments)
    found: dict[str, list[list[float]]] = {}
    for (name, _), samples in in_turns(calls, rounds).items():
        found.setdefault(name, []).append(samples)
    return found


if __name__ == "__main__":
    random.seed(0)
    main()
