"""What this machine can do at best: multiply-adds a second, and bytes a second by footprint.

python benchmarks/roofline.py [BYTES ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tunefarm.devices.probe import probe
from tunefarm.measure.roofline import measured


def main() -> None:
    (device,) = probe()
    sizes = [int(a) for a in sys.argv[1:]] or [1 << 16, 1 << 20, 1 << 24, 1 << 27]
    with tempfile.TemporaryDirectory() as directory:
        roof, _ = measured(device.target, sizes, Path(directory) / "gauge.so")
    speeds = {size: speed / 1e9 for size, speed in roof.bandwidth}
    print(json.dumps({"gflops": roof.flops / 1e9, "gbytes_per_s": speeds}))


if __name__ == "__main__":
    main()
