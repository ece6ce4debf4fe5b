"""The journal's file: drivers killed while they write, bits flipped, disks full."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.results.test_salvage import damaged_once, write_journal
from tests.torture.conftest import Report
from tunefarm.devices.device import Device
from tunefarm.errors import StoreError
from tunefarm.home import Home
from tunefarm.results.facts import Measurement
from tunefarm.results.journal import Journal

pytestmark = pytest.mark.torture
KILLS, DAMAGES, FULL = 1000, 10_000, 50
JOB = "net-1"


def write_on(home: Home, first: int, said: int) -> None:
    """Write fact after fact, and say of each that it is written; until killed."""
    journal = Journal(home)
    journal.drive(JOB)
    for number in range(first, first + 10**6):
        made = [Measurement(f"c{number}-{k}", "screen", 0, (1.0,) * 20) for k in range(3)]
        journal.add_process(JOB, "llvm", "race", number, made)
        os.write(said, f"{number}\n".encode())


def killed_once(home: Home, rng: random.Random, first: int) -> int:
    """A driver writes transactions from number `first` on, and is killed; the number after the last
    one that is there."""
    heard, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        try:
            write_on(home, first, said)
        finally:
            os._exit(1)
    os.close(said)
    with os.fdopen(heard) as lines:
        told = lines.readline()  # it has begun
        time.sleep(rng.uniform(0, 0.03))
        os.kill(pid, signal.SIGKILL)
        told += lines.read()
    os.waitpid(pid, 0)
    journal = Journal(home)
    stored = {m.candidate for m in journal.measurements(JOB, "llvm", ("screen",))}
    numbers = {row["process"] for row in journal.processes(JOB, "llvm")} - {0}
    journal.close()
    acknowledged = [int(line) for line in told.split("\n")[:-1]]
    assert set(acknowledged) <= numbers, "acknowledged, and lost"
    for number in numbers:
        parts = {f"c{number}-{k}" for k in range(3)}
        assert parts <= stored, "half a transaction"
    assert len(stored) == 3 * len(numbers) + 1, "more than was written"
    return max(numbers) + 1


@pytest.mark.timeout(3600)
def test_drivers_killed_while_they_write(tmp_path: Path, device: Device, report: Report) -> None:
    rng = random.Random(0)
    facts = 0
    for number in range(KILLS // 25):
        home = Home(tmp_path / f"home{number}").prepare()
        write_journal(home, device, rows=1)
        last = 1
        for _ in range(25):
            last = killed_once(home, rng, last)
        journal = Journal(home)
        assert journal.damage() == {}
        journal.close()
        facts += 4 * (last - 1)
        shutil.rmtree(home.root)
    report(kills=KILLS, facts=facts)


@pytest.mark.timeout(7200)
def test_bits_flipped_and_files_torn(
    home: Home, device: Device, tmp_path: Path, report: Report
) -> None:
    truth = write_journal(home, device)
    pristine = tmp_path / "pristine.db"
    shutil.copy(home.root / "journal.db", pristine)
    rng = random.Random(1)
    outcomes = [damaged_once(home, pristine, truth, rng) for _ in range(DAMAGES)]
    whole = sum(map(len, truth.values()))
    report(
        damaged=DAMAGES,
        seen=sum(seen for _, seen in outcomes),
        without_a_fact_lost=sum(lost == 0 for lost, _ in outcomes),
        facts_kept=round(1 - sum(lost for lost, _ in outcomes) / DAMAGES / whole, 4),
    )


def fill(journal: Journal, written: list[str]) -> None:
    for number in range(100_000):
        made = Measurement(f"c{number}", "screen", 0, (1.0,) * 50)
        journal.add_measurements(JOB, "llvm", [made])
        written.append(made.candidate)


@pytest.mark.timeout(3600)
def test_a_full_disk(tmp_path: Path, device: Device, report: Report) -> None:
    """On a small file system of its own where that can be had (as root), else by a limit on the
    size of a file."""
    place = tmp_path / "small"
    place.mkdir()
    rng = random.Random(2)
    mounted = 0
    acknowledged = 0
    for _ in range(FULL):
        size = rng.randrange(400, 1400) * 1024
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tunefarm-test", str(place)]
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
        mounted += is_mounted
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        home = Home(place / "home").prepare()
        try:
            write_journal(home, device, rows=1)
            if not is_mounted:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            journal = Journal(home)
            written: list[str] = []
            with pytest.raises(StoreError, match="cannot be written"):
                fill(journal, written)
            journal.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            if is_mounted:
                subprocess.run(["mount", "-o", "remount,size=8m", str(place)], check=True)
            again = Journal(home)
            stored = [m.candidate for m in again.measurements(JOB, "llvm")]
            assert stored[1:] == written, "what was acknowledged is there, and nothing else"
            again.add_measurements(JOB, "llvm", [Measurement("more", "screen", 0, (1.0,))])
            assert again.damage() == {}
            again.close()
            acknowledged += len(written)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
            if is_mounted:
                subprocess.run(["umount", str(place)], check=True)
            else:
                shutil.rmtree(place / "home")
    report(full=FULL, on_a_file_system_of_its_own=mounted, facts_acknowledged=acknowledged)
