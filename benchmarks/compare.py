"""tunefarm against the reference tuner, kernel by kernel.

    python benchmarks/compare.py RESULTS.json [--seeds 3] [--trials 64] [--kernels A,B]
                                 [--tuners A,B] [--warm-seeds 1] [--table]

The reference is TVM's own MetaSchedule: same compiler, machine, target, threads, trials and seeds;
each run in a process of its own, one after another. A run that is in RESULTS.json already is not
done again, so an interrupted comparison goes on where it stood. `--table` only prints the tables.

When all have run, every tuner's best schedule of every seed is built anew and timed by one
harness, interleaved in fresh processes, with the machine's roofs just before and just after, and
ONNX Runtime in turns beside them: one process of each kernel after another, and that several times,
for the machine's slow phases last for minutes. Ratios are taken within a pass; of the passes the
median counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernel_tables import best_of, tables
from kernels import KERNELS, Kernel, imported
from roofs import (
    Entrants,
    Roof,
    before_and_after,
    multiply_adds,
    plain_sum,
    speeds,
)

from tunefarm.devices.cpu import conditions, cpu_model, usable_cores
from tunefarm.devices.device import Device
from tunefarm.devices.probe import probe
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.home import Home, write_atomically
from tunefarm.measure.build import Builder, BuildRequest, Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.measure.roofline import measure_roof, roof_path
from tunefarm.measure.runner import Runner

HERE = Path(__file__).parent
TUNERS = ("tunefarm", "metaschedule-warm", "metaschedule")
FINAL_PASSES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--kernels", default=",".join(kernel.name for kernel in KERNELS))
    parser.add_argument("--tuners", default=",".join(TUNERS))
    parser.add_argument("--warm-seeds", type=int, default=1, help="Seeds of metaschedule-warm.")
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    store = Store(a.results)
    if not a.table:
        chosen = [kernel for kernel in KERNELS if kernel.name in a.kernels.split(",")]
        (device,) = probe()
        seeds = dict.fromkeys(a.tuners.split(","), a.seeds)
        if "metaschedule-warm" in seeds:
            seeds["metaschedule-warm"] = a.warm_seeds
        with tempfile.TemporaryDirectory() as directory:
            compare(store, chosen, device, seeds, a.trials, Path(directory))
    print(tables(store.data))


class Store:
    """The results so far; written after every run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def put(self, *keys: str, value: Any) -> None:
        place = self.data
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        write_atomically(self.path, (json.dumps(self.data, indent=1) + "\n").encode())

    def has(self, *keys: str) -> bool:
        place: Any = self.data
        for key in keys:
            if key not in place:
                return False
            place = place[key]
        return True


def compare(
    store: Store,
    kernels: list[Kernel],
    device: Device,
    seeds: dict[str, int],
    trials: int,
    directory: Path,
) -> None:
    """Run each tuner with its number of seeds, and time what they found."""
    machine = {"cpu": cpu_model(), "cores": usable_cores(), **conditions()}
    store.put("machine", value={**machine, "toolchain": dict(device.toolchain)})
    (directory / "device.json").write_text(json.dumps(device.to_dict()))
    home = Home(directory / "home")
    measure_roof(home, device)
    gauge = roof_path(home, device)
    programs = {k.name: imported(k, directory / k.name, device.target) for k in kernels}
    for seed in range(max(seeds.values())):
        for kernel in kernels:
            program, task = programs[kernel.name]
            tuners = [tuner for tuner, count in seeds.items() if seed < count]
            random.Random(f"{kernel.name} {seed}").shuffle(tuners)
            for tuner in tuners:
                if not store.has("runs", kernel.name, tuner, str(seed)):
                    run = tune(tuner, program, task, gauge, directory / "device.json", trials, seed)
                    store.put("runs", kernel.name, tuner, str(seed), value=run)
                    log(f"{kernel.name} {tuner} seed {seed}: {summary(run, task)}")
    due = [kernel for kernel in kernels if is_due(store.data, kernel)]
    entrants = {k.name: built(store, k, *programs[k.name], device, directory / k.name) for k in due}
    peak = multiply_adds(device, directory) if due else []
    roofs = {
        k.name: [*peak, plain_sum(device, programs[k.name][1].bytes, directory / k.name)]
        for k in due
    }
    for number in range(FINAL_PASSES):
        for kernel in due:
            names = {name for name, _ in entrants[kernel.name][1]}
            kept = store.data.get("processes", {}).get(kernel.name, {}).get(str(number), {})
            if names <= set(kept):
                continue
            model = directory / kernel.name / f"{kernel.name}.onnx"
            found, roof = timed(
                entrants[kernel.name], roofs[kernel.name], model, device, gauge, number
            )
            log(f"{kernel.name} ms: { {n: round(s * 1e3, 4) for n, s in found.items()} }")
            store.put("roofs", kernel.name, str(number), value=roof)
            store.put("processes", kernel.name, str(number), value=found)
    for kernel in due:
        of, task = store.data["processes"][kernel.name].values(), programs[kernel.name][1]
        # Whoever faults in one of them has no result.
        names = set.intersection(*(set(one) for one in of))
        medians = {name: statistics.median(one[name] for one in of) for name in names}
        store.put("finals", kernel.name, value=medians)
        store.put("kernels", kernel.name, value={"flops": task.flops, "bytes": task.bytes})


def is_due(data: dict[str, Any], kernel: Kernel) -> bool:
    """Whether not every run's best has been timed yet."""
    runs = data["runs"][kernel.name]
    names = {f"{t} {s}" for t, seeds in runs.items() for s, run in seeds.items() if best_of(run)}
    known = set(data.get("finals", {}).get(kernel.name, {}))
    return not names <= known


def log(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def summary(run: dict[str, Any], task: TuningTask) -> str:
    best = best_of(run)
    if best is None:
        return f"nothing in {run['wall_s']:.0f} s"
    return f"{best * 1e3:.3f} ms ({task.flops / best / 1e9:.0f} GFLOP/s) in {run['wall_s']:.1f} s"


def tune(
    tuner: str,
    program: Program,
    task: TuningTask,
    gauge: Path,
    device: Path,
    trials: int,
    seed: int,
) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "tuners.py"), tuner, str(program.directory), task.id),
            *("--device", str(device), "--trials", str(trials), "--seed", str(seed)),
            *("--gauge", str(gauge), "--since", repr(time.time())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode:
        return {"results": [], "wall_s": math.inf, "exit_code": done.returncode}
    run: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # Of all the traces, only the best is needed again.
    best = min((latency for _, latency, *_ in run["results"] if latency), default=None)
    run["results"] = [
        [round(at, 3), latency, trace if latency == best else ""]
        for at, latency, trace, _ in run["results"]
    ]
    return run


FINAL = Protocol(race_kernel_s=3.0)


def built(
    store: Store,
    kernel: Kernel,
    program: Program,
    task: TuningTask,
    device: Device,
    directory: Path,
) -> Entrants:
    """The best schedule of every run so far, built anew."""
    runs = {
        f"{tuner} {seed}": next(t for _, latency, t in run["results"] if t and latency)
        for tuner, seeds in store.data["runs"][kernel.name].items()
        for seed, run in seeds.items()
        if best_of(run)
    }
    builder, runner = Builder(60.0), Runner(device.cores, FINAL.memory_bytes)
    facts = KernelFacts(task.id, task.args, task.flops, directory / "reference.npz")

    def build(trace: str, name: str) -> Library:
        workload = program.workload(task.id)
        built = builder.build(BuildRequest(workload, device.target, trace, directory / name))
        assert built.library is not None, built.failure
        return built.library

    untuned = build("", "untuned.so")
    runner.screen(ScreenRequest(untuned, facts, FINAL, None, make_reference=True))
    entries = tuple((name, build(trace, f"{i}.so")) for i, (name, trace) in enumerate(runs.items()))
    builder.close()
    runner.close()
    return facts, entries


def timed(
    entrants: Entrants,
    roofs: list[Roof],
    model: Path,
    device: Device,
    gauge: Path,
    process: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """All entrants in one fresh process, with the machine's roofs before and after them, then ONNX
    Runtime: median seconds of a call, and what the roofs were."""
    runner = Runner(device.cores, FINAL.memory_bytes, gauge)
    request = RaceRequest(before_and_after(roofs, entrants), FINAL, 40, process)
    raced = runner.race(request).samples
    runner.close()
    medians = {n: statistics.median(found) for n, found in raced[entrants[0].task].items()}
    medians["onnxruntime"] = onnxruntime_s(model, device.cores)
    return medians, speeds(raced, roofs)


def onnxruntime_s(model: Path, threads: int) -> float:
    """Median seconds of a call in a fresh process, outputs bound, spinning as is its default."""
    done = subprocess.run(
        [sys.executable, __file__, "--onnxruntime", str(model), str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def time_onnxruntime(model: str, threads: int, seconds: float = 1.0) -> float:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options)
    binding = session.io_binding()
    rng = np.random.default_rng(0)
    for one in session.get_inputs():
        binding.bind_cpu_input(one.name, rng.uniform(-1, 1, one.shape).astype(np.float32))
    for one in session.get_outputs():
        binding.bind_output(one.name)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 10 or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - started)
    return statistics.median(times[len(times) // 5 :])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--onnxruntime"]:
        os.environ.setdefault("OMP_NUM_THREADS", sys.argv[3])
        print(time_onnxruntime(sys.argv[2], int(sys.argv[3])))
    else:
        main()
