"""What `tunefarm bench` says of a runtime beside itself: how often its interval leaves out 1.

    python benchmarks/same.py MODEL.onnx [--artifact A.tfa] [--copies 4] [--times 10] [--turn 0.05]

Each time so many processes of one runtime (tunefarm with an artifact, else ONNX Runtime) go through
a benchmark's rounds as if they were several; of each pair the interval of the ratio should hold 1
in 95 of 100. Pairs of the same time share a member: they do not count for as many.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import tempfile
from pathlib import Path

from tunefarm.cli.measuring import alone, steadied
from tunefarm.devices.registry import local_devices
from tunefarm.frontend.onnx.file import ImportLimits, input_specs, read_model
from tunefarm.home import Home
from tunefarm.results.bench import BenchProtocol, Entry
from tunefarm.results.bench_figures import ENOUGH, OURS, figures
from tunefarm.results.bench_round import Contestant, Pace, Report, call, play
from tunefarm.results.runtimes import runtime
from tunefarm.results.runtimes.contract import Subject
from tunefarm.results.runtimes.serve import Load, MakeReference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--artifact", type=Path)
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--turn", type=float, default=0.05)
    arguments = parser.parse_args()
    if arguments.processes < ENOUGH:
        parser.error(f"fewer than {ENOUGH} processes give no interval")
    protocol = BenchProtocol(
        processes=arguments.processes, seconds=arguments.seconds, turn_s=arguments.turn
    )
    name = OURS if arguments.artifact else "onnxruntime"
    loaded, threads = read_model(arguments.model, ImportLimits()), len(os.sched_getaffinity(0))
    outputs = tuple(output.name for output in loaded.graph.output)
    home = Home.from_environment().prepare()
    (device,) = local_devices(home)
    ratios: list[tuple[float, float, float]] = []
    with (
        tempfile.TemporaryDirectory() as work,
        alone(device, "same"),
        steadied(home, device) as machine,
    ):
        directory, inputs = Path(work), input_specs(loaded)
        model, artifact = arguments.model.absolute(), arguments.artifact
        subject = Subject(model, inputs, outputs, threads, directory, artifact)
        reference = directory / "reference.npz"
        if failed := call(MakeReference(subject, 0, reference), {}, 600.0):
            raise SystemExit(failed)
        setting = runtime(name).settings[0]
        load = Load(name, setting, subject, 0, reference, protocol.seconds, machine.near_s)
        environment = runtime(name).environment(threads)
        pace = Pace(protocol.seconds, protocol.least, protocol.turn_s)
        for time in range(arguments.times):
            copies: list[list[Report]] = [[] for _ in range(arguments.copies)]
            for number in range(protocol.processes):
                round_ = [
                    Contestant(str(n), load, environment, 600.0) for n, _ in enumerate(copies)
                ]
                rng = random.Random(f"{time} {number}")
                reports = play(round_, pace, rng, machine.wait, lambda _: None)
                for copy, report in zip(copies, reports, strict=True):
                    assert report is not None, [one.out for one in round_]
                    copy.append(report)
            for pair in itertools.combinations(copies, 2):
                ratios.append(_ratio(*pair, protocol))
                print("{:.3f} ({:.3f} to {:.3f})".format(*ratios[-1]), flush=True)
    outside = sum(not low <= 1 <= high for _, low, high in ratios)
    widths = sorted(math.log(high / low) for _, low, high in ratios)
    print(
        f"{outside} of {len(ratios)} intervals leave out 1; width (logarithm of the ends' ratio) "
        f"{widths[len(widths) // 2]:.3f} in the median, {widths[-1]:.3f} at most"
    )


def _ratio(
    ours: list[Report], other: list[Report], protocol: BenchProtocol
) -> tuple[float, float, float]:
    entries = [
        Entry(OURS, "", {}, reports=tuple(ours)),
        Entry("copy", "", {}, reports=tuple(other)),
    ]
    found = figures(entries, protocol)[1]["ours_faster"]
    return found["speedup"], *found["ci95"]


if __name__ == "__main__":
    main()
