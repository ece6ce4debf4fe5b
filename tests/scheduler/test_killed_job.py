"""A whole job whose driver is killed in the middle, and whose journal is damaged then."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from typing import Any

import pytest

from tests import models
from tests.command import start, tunefarm
from tests.jobs import left_over, measured, wait_for
from tunefarm.home import Home
from tunefarm.results.journal import Journal

pytestmark = [pytest.mark.ray, pytest.mark.long]


@pytest.fixture(scope="module")
def killed(farm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job on a network whose layout has to be measured: its driver is killed in the middle, the
    journal is damaged where it lies (a result is changed, which nobody may believe), and it is
    resumed."""
    root = tmp_path_factory.mktemp("killed")
    home = Home(root / "home").prepare()
    # What this machine can do is known: it need not be measured again.
    shutil.copytree(farm["home"].root / "roofs", home.root / "roofs", dirs_exist_ok=True)
    env = {"TUNEFARM_HOME": str(home.root), "TUNEFARM_CACHE": str(root / "cache")}
    model = models.rows_inside(root / "rows.onnx")
    process = start("submit", model, "--targets", "llvm", "--trials", 24, "--json", **env)
    wait_for(lambda: measured(home) >= 6)
    process.send_signal(signal.SIGKILL)
    _, told = process.communicate()
    journal = Journal(home)
    (job,) = journal.jobs()
    assert journal.status(job.id) == "interrupted"
    before = {m.candidate: m.samples for m in journal.measurements(job.id, "llvm", ("screen",))}
    journal.close()
    assert before
    damaged = next(iter(before))
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update measurements set samples = '[1e-9]' where candidate = ?", (damaged,))
    raw.close()
    done = tunefarm("resume", job.id, "--json", **env)
    assert done.code == 0, done.err
    found = {"home": home, "env": env, "job": job.id, "told": told, "done": done}
    return {**found, "before": before, "damaged": damaged}


def test_kill_nine_in_mid_job_then_resume(killed: dict[str, Any]) -> None:
    done, damaged, before = killed["done"], killed["damaged"], dict(killed["before"])
    assert "the journal was damaged" in done.err
    journal = Journal(killed["home"])
    after = journal.measurements(killed["job"], "llvm", ("screen",))
    journal.close()
    assert len(after) == len({m.candidate for m in after}) == 24
    kept = {m.candidate: m.samples for m in after if m.candidate in before}
    assert min(kept.pop(damaged)) > 1e-8, "measured again"
    before.pop(damaged)
    assert kept == before, "a measured candidate was lost or measured again"
    assert done.json["targets"]["llvm"]["verdict"] == "FASTER"
    wait_for(lambda: not left_over(str(killed["home"].root)), 90)


def test_where_transposes_would_stay_inside_both_layouts_are_measured(
    killed: dict[str, Any],
) -> None:
    """Once: a resumed job stays with what was decided."""
    journal = Journal(killed["home"])
    (event,) = [e for e in journal.events(killed["job"]) if e["kind"] == "layout"]
    journal.close()
    measured_ms, layout = event["detail"]["ms"], event["detail"]["layout"]
    assert set(measured_ms) == {"NCHW", "NHWC"}
    faster = measured_ms["NCHW"] > 1.02 * measured_ms["NHWC"]
    assert layout == ("NHWC" if faster else "NCHW")
    assert f"computed in {layout}" in killed["told"]
    artifact = killed["done"].json["targets"]["llvm"]["artifact"]
    manifest = tunefarm("artifacts", "inspect", artifact, "--json", **killed["env"]).json
    assert f'"{layout}"' in json.dumps(manifest)
    job = killed["home"].job_dir(killed["job"]) / "llvm"
    assert (job / "program-NHWC").exists() == faster
    assert not list((job / "model").glob("layout-*"))
