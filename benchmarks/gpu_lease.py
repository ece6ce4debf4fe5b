"""Everything on a lent GPU by one command, in as many minutes as it is lent for.

    python benchmarks/gpu_lease.py OUT K N [--for 9m20s] [--rivals A,B]

K and N are directories of `gpu.py` and `gpu_network.py`, of which it takes the bundles,
`kernels.json` and `plan.json`. The bundles are measured, PyTorch (`gpu_rivals.py`) after them; each
has its part of the time and of what was left to it. OUT gets, below the directories' names, the
reports, and the rivals' times, what machine it was (`lease.json`) and the tables, which are printed
last. Needs the driver, Python, NumPy, PyTorch and this checkout; nothing of it is installed. Run
again with the same OUT it goes on where it stopped, and the tables are of all that has been there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_tables import KERNELS, NETWORK, NETWORKS_KERNELS, RIVALS, place_in, tables

from tunefarm.durations import seconds_of
from tunefarm.measure.bundles.bundle import report_of
from tunefarm.measure.bundles.main import heed_signals

SHARES = {KERNELS: 4.0, NETWORKS_KERNELS: 2.0, NETWORK: 2.0}
RIVALS_SHARE = 3.0
"""Of the time, in proportion."""
GRACE_S = 35.0
"""For what was begun when a part's time was over: the longest that one schedule may take."""
_ENDING_S = 10.0
"""For a part to write what it has."""
_LEAD_S = 15.0
"""By which the last part is told less than it has: after it there is no time for what it began."""
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
    """In the order in which they run. Kernels of a network that is there whole are known."""
    found = []
    for directory in directories:
        for bundle, share in SHARES.items():
            superseded = bundle == NETWORKS_KERNELS and (directory / NETWORK).exists()
            if (directory / bundle).exists() and not superseded:
                report = report_of(place_in(out, directory) / bundle)
                name = str(directory / bundle)
                found.append(Part(name, (name, str(report)), share))
    script = Path(__file__).with_name("gpu_rivals.py")
    command = (str(script), str(out / RIVALS), *(("--kernels", rivals) if rivals else ()))
    return [*found, Part("rivals", command, RIVALS_SHARE)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--for", dest="limit_s", type=seconds_of, default=560.0, metavar="TIME")
    parser.add_argument("--rivals", default="", help="of which kernels; by default of all")
    a = parser.parse_args()
    heed_signals()  # what runs then is ended with it, and the tables are of what there is
    if len({one.resolve().name for one in a.directories}) < len(a.directories):
        parser.error("directories must have different names")
    for directory in a.directories:
        place_in(a.out, directory).mkdir(parents=True, exist_ok=True)
    return lease(a.out, a.directories, parts(a.out, a.directories, a.rivals), a.limit_s)


def lease(out: Path, directories: Sequence[Path], due: Sequence[Part], limit_s: float) -> int:
    """Run what is `due`, and print the tables.

    Returns:
        1 where a part failed, 130 where somebody interrupted them.
    """
    until = time.monotonic() + limit_s
    file = out / "lease.json"
    journeys = json.loads(file.read_text()) if file.exists() else []
    own: dict[str, Any] = {"machine": machine(), "parts": []}
    own["directories"] = [str(one) for one in directories]
    journeys.append(own)
    code = 0
    for number, part in enumerate(due):
        share = part.share / sum(one.share for one in due[number:])
        left_s = max(1.0, until - time.monotonic() - _ENDING_S)
        told_s = min(share * left_s, left_s - min(_LEAD_S, 0.2 * left_s))
        ended = run(part, told_s, min(told_s + GRACE_S, left_s))
        own["parts"].append(ended)
        file.write_text(json.dumps(journeys, indent=1) + "\n")
        if ended["code"] == INTERRUPTED:
            code = 130
            break
        code = code or int(ended["code"] != 0)
    seen = dict.fromkeys(Path(one) for journey in journeys for one in journey["directories"])
    text = tables(list(seen), out)
    (out / "tables.md").write_text(text + "\n")
    print(text)
    return code


INTERRUPTED, OVER = "interrupted", "ended, for its time was over"


def run(part: Part, seconds: float, limit_s: float) -> dict[str, Any]:
    """It is told how many seconds it has, and ended when `limit_s` are over."""
    print(f"{part.name}: {seconds:.0f} s", flush=True)
    started = time.monotonic()
    command = [sys.executable, *part.command, "--for", f"{max(1.0, seconds):.0f}"]
    # Of its own group, which is ended as one.
    process = subprocess.Popen(command, start_new_session=True)
    code: int | str
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = OVER
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        end(process)
    took_s = round(time.monotonic() - started, 1)
    print(f"{part.name}: {took_s} s, {code}", flush=True)
    return {"part": part.name, "given_s": round(seconds, 1), "took_s": took_s, "code": code}


def end(process: subprocess.Popen[bytes]) -> None:
    """And all that it has started; a bundle that is interrupted writes its report."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


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
    sys.exit(main())
