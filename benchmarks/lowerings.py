"""What a kernel gains by our lowering over TVM's own: the same schedules, built by both.

    python benchmarks/lowerings.py squeezenet [--dtype uint8] [--heaviest 12] [--points 2]
                                   [--processes 4] [--json RESULTS.json]

Of each of the network's heaviest kernels with a hardware model, its first points, each built twice
and raced in turns in fresh processes, as a job's candidates are. Printed: times faster, least,
median and most of the processes' medians. Who is wrong or faults is named, and has no row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import tvm
from compare import log

from tunefarm.devices.device import Device
from tunefarm.devices.probe import probe
from tunefarm.frontend.importer import ImportRequest, import_model
from tunefarm.frontend.program import Program, TuningTask
from tunefarm.frontend.zoo.networks import write_zoo_model
from tunefarm.home import Home
from tunefarm.measure.build import BuildRequest, Library
from tunefarm.measure.compile import link, run_build
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.measure.roofline import measure_roof, roof_path
from tunefarm.measure.runner import Runner
from tunefarm.search import replay
from tunefarm.search.candidate import UNTUNED
from tunefarm.search.spaces import design_space

PLAIN, OURS = "plain", "ours"
ROUNDS = 12


def entrants(
    program: Program, task: TuningTask, device: Device, points: int, directory: Path
) -> tuple[tuple[str, Library], ...]:
    """Each point by both lowerings, under the names ``plain N`` and ``ours N``; none where no model
    of the hardware knows the kernel."""
    path = program.workload(task.id)
    workload = replay.load_workload(path)
    space = design_space(workload, device.target)
    made: list[tuple[str, Library]] = []
    known = sorted(space.modelled(), key=lambda one: one.seconds)
    proposals = (space.realise(one.point, number) for number, one in enumerate(known[:points]))
    for number, proposal in enumerate(one for one in proposals if one is not None):
        library = directory / f"{task.id}-{number}.so"
        ours = run_build(BuildRequest(path, device.target, proposal.trace, library))
        function = replay.scheduled_function(workload, device.target, proposal.trace)
        kernel, _, _ = replay.kernel_module(function)
        plain = directory / f"{task.id}-{number}-plain.so"
        link(tvm.tirx.build(kernel, replay.tvm_target(device.target)), plain)
        made += [(f"{OURS} {number}", ours)]
        made += [(f"{PLAIN} {number}", Library(plain, ours.packed, ours.prepack))]
    return tuple(made)


def compared(
    program: Program, task: TuningTask, device: Device, runner: Runner, a: Any, directory: Path
) -> list[dict[str, Any]]:
    """A row for each point of which both builds are right and none has faulted."""
    entries = entrants(program, task, device, a.points, directory)
    if not entries:
        return []
    facts = KernelFacts.of(task, directory / f"{task.id}.npz")
    untuned = directory / f"{task.id}.so"
    request = BuildRequest(program.workload(task.id), device.target, UNTUNED, untuned)
    runner.screen(ScreenRequest(run_build(request), facts, Protocol(), None, True))
    wrong: dict[str, Any] = {}
    for name, library in entries:
        wrong[name] = runner.screen(ScreenRequest(library, facts, Protocol(), None)).failure
        if wrong[name] is not None:
            log(f"{task.name} {name}: {wrong[name]}")
    samples: dict[str, list[float]] = {name: [] for name, _ in entries}
    for process in range(a.processes):
        asked = RaceRequest(((facts, entries),), Protocol(), ROUNDS, process)
        for name, found in runner.race(asked).samples[task.id].items():
            samples[name].append(statistics.median(found))
    rows: list[dict[str, Any]] = []
    for number in range(len(entries) // 2):
        pair = (f"{OURS} {number}", f"{PLAIN} {number}")
        if any(wrong[one] or len(samples[one]) < a.processes for one in pair):
            continue
        ours, plain = (samples[one] for one in pair)
        faster = sorted(p / o for p, o in zip(plain, ours, strict=True))
        rows.append(
            {
                "kernel": task.name,
                "arguments": ["x".join(map(str, spec.shape)) for spec in task.args[:2]],
                "point": number,
                "ours_us": statistics.median(ours) * 1e6,
                "faster": statistics.median(faster),
                "least": faster[0],
                "most": faster[-1],
            }
        )
        log(f"{task.name} {number}: {rows[-1]['faster']:.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--heaviest", type=int, default=12)
    parser.add_argument("--points", type=int, default=2)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    (device,) = (one for one in probe() if one.target.kind == "llvm")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        home = Home(directory / "home").prepare()
        measure_roof(home, device)
        model = write_zoo_model(a.network, directory / "m.onnx", dtype=a.dtype)
        program = import_model(ImportRequest(model, directory / "program", device.target))
        runner = Runner(device.cores, Protocol().memory_bytes, roof_path(home, device))
        tasks = sorted(program.tasks, key=lambda task: -task.flops * task.weight)
        for task in tasks[: a.heaviest]:
            rows += compared(program, task, device, runner, a, directory)
        runner.close()
    print(f"{a.network} {a.dtype}, {device.sku}, {device.cores} cores")
    print("| kernel | data, weights | us | times faster |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['kernel'][:24]} | {', '.join(row['arguments'])} | {row['ours_us']:.1f} "
            f"| {row['faster']:.2f} ({row['least']:.2f} to {row['most']:.2f}) |"
        )
    if rows:
        print(f"median {statistics.median(row['faster'] for row in rows):.3f}")
    if a.json:
        a.json.write_text(json.dumps({"device": device.to_dict(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
