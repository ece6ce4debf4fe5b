"""A whole job by file, every bundle of it run by a Python that knows of nothing here."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import models
from tests.command import tunefarm
from tunefarm.scheduler.exchange import report_of

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
