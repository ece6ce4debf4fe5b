"""A job's report is written once for all who want it, and again when the job went on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.results.test_salvage import write_journal
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.results.journal import Journal
from tunefarm.results.reported import reported


@pytest.mark.slow
def test_it_is_written_once_and_again_when_the_job_went_on(home: Home, device: Device) -> None:
    write_journal(home, device)
    journal = Journal(home)
    (job,) = journal.jobs()
    path = reported(journal, job)
    assert path == home.job_dir(job.id) / "report.html"

    def is_kept() -> bool:
        with path.open("a") as page:
            page.write("<!-- mine -->")
        return "mine" in reported(journal, job).read_text()

    assert job.id in path.read_text()
    assert is_kept()
    journal.add_event(job.id, "running")
    assert not is_kept()
    assert is_kept()
    unit = journal.measurements(job.id, "llvm")[0].unit
    assert unit is not None
    assert journal.withdraw(unit, 0.0, None, "a test") == [job.id]
    assert not is_kept()
    path.write_bytes(b"\xff half of one")
    assert job.id in reported(journal, job).read_text()
    journal.close()


@pytest.mark.slow
def test_finding_one_draws_nothing() -> None:
    code = "import sys, tunefarm.results.reported; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
