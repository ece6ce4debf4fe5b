"""Jobs that want the same device, interrupted: through the command line, on a real Ray."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests import models
from tests.command import finish, start, tunefarm
from tests.jobs import left_over, measured, wait_for
from tunefarm.home import Home
from tunefarm.results.driver_lock import driver_pid
from tunefarm.results.journal import Journal

pytestmark = pytest.mark.tvm  # it starts Ray too, but nothing here is judged by its time


@pytest.mark.long
def test_a_second_job_waits_for_the_device_and_ctrl_c_leaves_a_resumable_one(
    home: Home, tmp_path: Path
) -> None:
    model = models.cnn(tmp_path / "cnn.onnx")
    first = start("submit", model, "--targets", "llvm", "--trials", 500, "--name", "first")
    wait_for(lambda: measured(home) >= 1)
    second = start("submit", model, "--targets", "llvm", "--trials", 4, "--name", "second")
    journal = Journal(home)
    wait_for(lambda: len(journal.jobs()) == 2)
    waiting, running = journal.jobs()
    wait_for(lambda: driver_pid(home, waiting.id) is not None)
    time.sleep(2)
    assert (journal.status(waiting.id), journal.status(running.id)) == ("queued", "running")
    second.send_signal(signal.SIGINT)
    stopped = finish(second, 60)
    assert stopped.code == 130
    assert running.id in stopped.err, "who waits is told for whom"
    assert f"tunefarm resume {waiting.id}" in stopped.err
    assert journal.status(waiting.id) == "interrupted"
    busy = tunefarm("devices", "list", "--json").json["devices"]
    assert busy[0]["busy"]["job"] == running.id
    device = busy[0]["id"]
    assert tunefarm("devices", "quarantine", device, "--reason", "a test").code == 0
    taken = finish(first, 60)
    assert taken.code == 130
    assert "quarantined: a test" in taken.err
    assert journal.status(running.id) == "interrupted"
    refused = tunefarm("submit", model, "--targets", "llvm")
    assert refused.code == 4
    assert f"tunefarm devices release {device}" in refused.err
    assert tunefarm("devices", "release", device).code == 0
    before = journal.counts(running.id)["measured"]
    again = start("resume", running.id)
    wait_for(lambda: journal.counts(running.id)["measured"] > before)
    again.send_signal(signal.SIGINT)
    assert finish(again, 60).code == 130
    assert journal.status(running.id) == "interrupted"
    assert tunefarm("cancel", running.id, "--json").json["status"] == "cancelled"
    journal.close()
    assert left_over(str(home.root)) == []
