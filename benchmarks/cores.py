"""What a network takes while the cores are near each other, and while they are apart.

    python benchmarks/cores.py ARTIFACT [--model MODEL.onnx] [--seconds 30]

Where nothing moves the cores about, all of it is in the first column. With a model ONNX Runtime is
run by turns with the artifact, each alone for half a second. Inferences come in bursts, before and
after which it is asked how far apart the cores are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tunefarm.devices.cores import LINES, exchange_s
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import make_input
from tunefarm.results.loader import load

TURN_S, BURST_S = 0.5, 0.05
APART = 2.0
"""Times the least exchange of all, from which on cores count as apart."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--model", type=Path, help="run it in ONNX Runtime as well")
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0)
    model = load(arguments.artifact)
    specs = [TensorSpec(one["name"], tuple(one["shape"]), one["dtype"]) for one in model.inputs]
    feed = {spec.name: make_input(spec, place, False) for place, spec in enumerate(specs)}
    runs: dict[str, Callable[[], object]] = {"tunefarm": lambda: model(feed)}
    if arguments.model is not None:
        runs["ONNX Runtime"] = _onnx_runtime(arguments.model, feed, len(cores))
    for run in runs.values():
        run()
    asked: list[float] = []
    bursts: list[tuple[str, float, list[float], float]] = []  # who, before, seconds, after
    until = time.monotonic() + arguments.seconds
    while time.monotonic() < until:
        for who, run in runs.items():
            run()
            turn = time.monotonic() + TURN_S
            while time.monotonic() < turn:
                before = exchange_s(cores)
                bursts.append((who, before, burst(run), exchange_s(cores)))
                asked += [before, bursts[-1][-1]]
    near = APART * min(asked)
    print(f"an exchange takes {1e6 * min(asked):.2f} us of {LINES} lines at best; apart from twice")
    for who in runs:
        for name, sides in (("near", (True, True)), ("apart", (False, False))):
            mine = [
                seconds
                for whose, before, found, after in bursts
                if whose == who and (before <= near, after <= near) == sides
                for seconds in found
            ]
            words = f"{1e3 * statistics.median(mine):8.3f} ms" if mine else "       -"
            print(f"{who:14} {name:6} {words}  of {len(mine)}")


def burst(run: Callable[[], object]) -> list[float]:
    found: list[float] = []
    while sum(found) < BURST_S:
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return found


def _onnx_runtime(path: Path, feed: dict[str, np.ndarray], threads: int) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feed)


if __name__ == "__main__":
    main()
