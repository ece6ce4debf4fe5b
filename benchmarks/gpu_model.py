"""How good the hardware model's choice is, by schedules that a GPU has measured.

    python benchmarks/gpu_model.py docs/h200/measured.json [--arch sm_90]

Of each kernel of `gpu.py` with at least four measured points that the model knows: what it expects
of them, and by how much the one that it would have chosen among them is slower than the fastest.
Tiles of clusters are those of later journeys, whose text is the one that there is.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import tvm
from crossbuild import target_of, workload_of
from gpu import kernels
from gpu_tables import cells, table

from tunefarm.search import replay
from tunefarm.search.spaces import design_space

LEAST = 4
NEAR = 1.1
JOURNEYS = ("first", "clusters", "second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--arch", default="sm_90")
    a = parser.parse_args()
    lines = table(["kernel", "points", "measured by expected", "its first choice by the fastest"])
    choices: list[float] = []
    for kernel, times in measured(a.measured).items():
        found = judged(kernel, times, a.arch)
        if len(found) < LEAST:
            continue
        _, chosen_us = min(found, key=lambda one: one[0])  # of equal ones the first that was tried
        choices.append(chosen_us / min(us for _, us in found))
        excess = statistics.median(us / expected_us for expected_us, us in found)
        lines += cells([kernel, str(len(found)), f"{excess:.2f}", f"{choices[-1]:.2f}"])
    print("\n".join(lines))
    near = sum(one <= NEAR for one in choices)
    middle = statistics.median(choices)
    print(
        f"\nThe first choice is within {NEAR} of the fastest in {near} of {len(choices)} kernels,"
    )
    print(f"in the middle {middle:.3f}.")


def measured(path: Path) -> dict[str, dict[str, float]]:
    """Microseconds by kernel and point; of several the last."""
    found: dict[str, dict[str, float]] = {}
    for journey, kernel, point, us in json.loads(path.read_text())["kernels"]:
        old = journey == JOURNEYS[0] and "cluster=" in point
        if us is not None and journey in JOURNEYS and not old and "=" in point:
            found.setdefault(kernel, {})[point] = us
    return found


def judged(kernel: str, times: dict[str, float], arch: str) -> list[tuple[float, float]]:
    """(expected, measured) microseconds of the points that the model knows."""
    module = workload_of(kernels()[kernel]())
    space = design_space(module, target_of(arch, kernel.rpartition(" ")[2]))
    expected = {one.point: one.seconds * 1e6 for one in space.modelled()}
    located = ((space.locate(trace_of(module, point)), us) for point, us in times.items())
    return [(expected[at], us) for at, us in located if at in expected]


def trace_of(module: tvm.IRModule, point: str) -> Any:
    """Of a kernel that is written whole, see `replay.in_full`."""
    schedule = replay.new_schedule(module, seed=1)
    replay.mark_complete(schedule, point)
    return replay.trace_json(schedule)


if __name__ == "__main__":
    main()
