"""Whole jobs by file."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import models
from tests.cli.test_by_bundle import GPU, carried, look_at
from tests.command import finish, start, tunefarm
from tests.cuda import needs_compiler
from tunefarm.devices.device import Device
from tunefarm.measure.bundles.bundle import report_of

pytestmark = pytest.mark.torture


def test_a_job_on_a_processor_that_no_network_leads_to(tmp_path: Path) -> None:
    env = {"TUNEFARM_HOME": str(tmp_path / "home"), "TUNEFARM_CACHE": str(tmp_path / "cache")}
    model = models.cnn(tmp_path / "cnn.onnx")
    lab, over, said = tmp_path / "lab", threading.Event(), []

    def carry() -> None:
        while not over.wait(0.2):
            for bundle in lab.glob("[!.]*.bundle"):
                if not report_of(bundle).exists():
                    command = [sys.executable, "-P", bundle]
                    said.append(subprocess.run(command, cwd="/", env={}, check=False).returncode)

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        done = tunefarm(
            *("submit", model, "--targets", "llvm", "--trials", 60),
            *("--measure-by-bundle", lab, "--json"),
            timeout=900,
            **env,
        )
    finally:
        over.set()
        thread.join()
    assert done.code == 0, done.err[-3000:]
    assert set(said) == {0}
    row = done.json["targets"]["llvm"]
    assert row["verdict"] == "FASTER"
    assert row["candidates"] == 60
    assert row["parity"]["passed"]


@needs_compiler
def test_a_gpu_job_that_is_interrupted_and_carried_by_hand(tmp_path: Path, device: Device) -> None:
    """A whole job; interrupted while its first bundle is away, it takes the report when it goes
    on."""
    env = {"TUNEFARM_HOME": str(tmp_path / "home"), "TUNEFARM_CACHE": str(tmp_path / "cache")}
    model = models.single_matmul(tmp_path / "matmul.onnx", 96)
    lab = tmp_path / "lab"
    with carried(lab, device):
        process = start(
            *("submit", model, "--targets", GPU, "--trials", 6, "--measure-by-bundle", lab),
            **env,
        )
        while not list(lab.glob("probe*.report")):
            time.sleep(0.1)
    while not list(lab.glob("matmul-*.bundle")):
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    interrupted = finish(process)
    assert interrupted.code == 130, interrupted.err
    (row,) = tunefarm("jobs", "--json", **env).json["jobs"]
    job = row["job"]
    stick = tmp_path / "stick"
    assert tunefarm("measure", "export", job, stick, **env).code == 0
    (first,) = stick.glob("*.bundle")
    with carried(stick, device):
        while not report_of(first).exists():
            time.sleep(0.1)
    taken = tunefarm("measure", "import", report_of(first), "--json", **env).json
    assert taken == {"job": job, "answers": 1, "running": False}
    with carried(lab, device) as bundles:
        done = tunefarm("resume", job, "--json", **env)
    assert done.code == 0, done.err[-3000:]
    assert set(bundles) == {job}
    look_at(done, bundles, tmp_path / "home", 6)
