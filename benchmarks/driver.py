"""What a candidate costs the driver on a real Ray: processor time of its process.

    python benchmarks/driver.py

Two jobs of a small network, a short and a long one, each in a process and a farm home of its own:
the difference over the difference in candidates is what one costs; what jobs cost besides falls
out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import models

SHORT, LONG = 50, 300
"""Candidates."""
JOB = """
import json, sys, time
from tunefarm.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps({"driver_s": time.process_time()}), file=sys.stderr)
"""


def driver_s(place: Path, trials: int) -> tuple[float, int]:
    """Processor seconds of a job's driver, and how many candidates were measured."""
    model = models.cnn(place / "cnn.onnx")
    options = ["--targets", "llvm", "--trials", str(trials), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", JOB, "submit", str(model), *options],
        env={**os.environ, "TUNEFARM_HOME": str(place / f"home{trials}")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)["targets"]["llvm"]["candidates"]
    return json.loads(done.stderr.strip().splitlines()[-1])["driver_s"], found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        (short, few), (long, many) = (driver_s(Path(place), n) for n in (SHORT, LONG))
    each = (long - short) / (many - few)
    print(f"driver: {short:.1f} s for {few} candidates, {long:.1f} s for {many}")
    print(f"{1e3 * each:.2f} ms of processor time a candidate")


if __name__ == "__main__":
    main()
