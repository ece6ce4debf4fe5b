"""Everything on a lent GPU by one command, in as many minutes as it is lent for.

    python benchmarks/gpu_lease.py OUT K N [--for 560] [--rivals A,B]

K and N are directories of `gpu.py` and `gpu_network.py`. Their bundles are measured, PyTorch
(`gpu_rivals.py`) after them; each has its part of the time and of what was left to it. OUT gets the
reports, `rivals.json`, what machine it was (`lease.json`) and the tables, which are printed last.
Needs the driver, Python, NumPy and PyTorch; nothing of tunefarm is installed. Run again with the
same OUT it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_tables import KERNELS, NETWORK, NETWORKS_KERNELS, report_of, tables

SHARES = {KERNELS: 4.0, NETWORKS_KERNELS: 2.0, NETWORK: 2.0}
RIVALS_SHARE = 3.0
"""Of the time, in proportion."""
GRACE_S = 20.0
"""For what was begun when its time was over, and for the tables."""
_NVIDIA_SMI = (
    *("name", "uuid", "driver_version", "vbios_version", "memory.total", "power.limit"),
    *("clocks.max.sm", "clocks.max.memory", "clocks.sm", "temperature.gpu", "power.draw"),
)


@dataclass(frozen=True)
class Part:
    """A process of the lease, and how much of the time is its own; it has an option for that."""

    name: str
    command: tuple[str, ...]
    share: float


def parts(out: Path, directories: Sequence[Path], rivals: str) -> list[Part]:
    """In the order in which they run. Kernels of a network that are known need not be measured
    again."""
    found = []
    for directory in directories:
        for bundle, share in SHARES.items():
            superseded = bundle == NETWORKS_KERNELS and (directory / NETWORK).exists()
            if (directory / bundle).exists() and not superseded:
                command = (str(directory / bundle), str(report_of(out / bundle)))
                found.append(Part(bundle, command, share))
    script = Path(__file__).with_name("gpu_rivals.py")
    command = (str(script), str(out / "rivals.json"), *(("--kernels", rivals) if rivals else ()))
    return [*found, Part("rivals", command, RIVALS_SHARE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--for", dest="limit_s", type=float, default=560.0, help="seconds")
    parser.add_argument("--rivals", default="", help="of which kernels; by default of all")
    a = parser.parse_args()
    until = time.monotonic() + a.limit_s
    a.out.mkdir(parents=True, exist_ok=True)
    lease: dict[str, Any] = {"machine": machine(), "parts": []}
    due = parts(a.out, a.directories, a.rivals)
    for number, part in enumerate(due):
        left_s = until - time.monotonic() - GRACE_S
        share = part.share / sum(one.share for one in due[number:])
        lease["parts"].append(run(part, max(1.0, left_s * share), until))
        (a.out / "lease.json").write_text(json.dumps(lease, indent=1) + "\n")
    text = tables(a.directories, a.out)
    (a.out / "tables.md").write_text(text + "\n")
    print(text)


def run(part: Part, seconds: float, until: float) -> dict[str, Any]:
    """It is told how long it has, and ended when nothing is left of all."""
    print(f"{part.name}: {seconds:.0f} s", flush=True)
    started = time.monotonic()
    command = [sys.executable, *part.command, "--for", f"{seconds:.0f}"]
    # Of its own group: what it has started goes with it.
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code: int | str = process.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        code = "ended, for its time was over"
    took_s = round(time.monotonic() - started, 1)
    print(f"{part.name}: {took_s} s, {code}", flush=True)
    return {"part": part.name, "given_s": round(seconds, 1), "took_s": took_s, "code": code}


def machine() -> dict[str, Any]:
    """What the numbers are of."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_NVIDIA_SMI)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        gpus = [dict(zip(_NVIDIA_SMI, line.split(", "), strict=False)) for line in said.split("\n")]
    except OSError:
        gpus = []
    return {
        "gpus": [one for one in gpus if one.get("name")],
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((one.partition(":")[2].strip() for one in lines if "model name" in one), "unknown")


if __name__ == "__main__":
    main()
