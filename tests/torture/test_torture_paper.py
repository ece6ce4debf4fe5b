"""A whole job on a GPU of paper: every request that a GPU is asked, in fresh processes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.cuda import needs_compiler
from tests.jobs import measured, wait_for
from tests.models import cnn, single_matmul
from tests.on_paper import on_paper, submitted
from tunefarm.home import Home
from tunefarm.measure.cuda.emulator.stand_in import GONE

pytestmark = [pytest.mark.torture, needs_compiler]


@pytest.mark.parametrize("make", [lambda path: single_matmul(path, 32), lambda path: cnn(path, 8)])
def test_a_job_is_measured_and_its_times_are_no_evidence(home: Home, tmp_path: Path, make) -> None:
    row = submitted(make(tmp_path / "m.onnx"), "--targets", "cuda", "--trials", "4")
    assert row["candidates"] == 4
    assert not {"crash", "wrong_result"} & set(row["failures"]), row["failures"]
    assert row["parity"]["passed"]
    assert on_paper("artifacts", "pull", "m").returncode != 0, "nobody is to deploy it"


def test_a_gpu_that_is_away_for_a_while_costs_no_candidate(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the search: its unit leaves the job, and is back."""
    gone = tmp_path / "gone"
    monkeypatch.setenv(GONE, str(gone))
    away: list[int] = []

    def take_away() -> None:
        wait_for(lambda: measured(home) >= 6)
        gone.touch()
        away.append(measured(home))
        time.sleep(15)
        away.append(measured(home))
        gone.unlink()

    thread = threading.Thread(target=take_away)
    thread.start()
    row = submitted(single_matmul(tmp_path / "m.onnx", 64), "--targets", "cuda", "--trials", "24")
    thread.join()
    assert away[1] < 24, "it was over before"
    assert row["candidates"] == 24
    assert row["failures"] == {}
    assert row["parity"]["passed"]
    (job,) = home.jobs.iterdir()
    log = (job / "job.log").read_text()
    assert "leaves: the device does not answer" in log
    assert 1 <= log.count("cannot start: the device does not answer") <= 4, "ever more seldom"
