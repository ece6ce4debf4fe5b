"""Simulated farms by the ten thousand."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.simulation import Faults, jobs
from tests.torture.conftest import Report
from tunefarm.devices.device import Device
from tunefarm.home import Home

pytestmark = pytest.mark.torture
SEEDS, AT_ONCE = 20_000, 100


def share(root: Path, device: Device, first: int) -> Counter[str]:
    home = Home(root / f"home{first}").prepare()
    found: Counter[str] = Counter()
    for job in jobs(home, device, iter(range(first, first + AT_ONCE)), Faults()):
        found["jobs"] += 1
        found["results"] += len(job.acknowledged)
        found["lives of drivers"] += len(job.epochs)
        found["drivers taken over"] += job.fenced
        found["answers of workers that were given up"] += job.stale
    for path in home.root.rglob("*"):
        if path.is_file():
            path.unlink()
    return found


@pytest.mark.timeout(7200)
def test_simulated_farms(tmp_path: Path, device: Device, report: Report) -> None:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        firsts = range(1_000_000, 1_000_000 + SEEDS, AT_ONCE)
        shares = [pool.submit(share, tmp_path, device, first) for first in firsts]
        found = sum((one.result() for one in shares), Counter[str]())
    assert found["jobs"] == SEEDS
    assert found["drivers taken over"] > SEEDS / 20
    report(**found)
