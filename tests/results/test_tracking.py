"""What MLflow's registry, a real one, is told."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.results.test_journal import make_job
from tunefarm.cli import sync
from tunefarm.devices.device import Device
from tunefarm.errors import JobError, TunefarmError, UsageError
from tunefarm.home import Home
from tunefarm.results.driver_lock import DriverLock
from tunefarm.results.facts import PACKAGED, Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.tracking import _Sync, experiment_of, prepare_environment, pull
from tunefarm.results.uris import without_password

pytestmark = pytest.mark.filterwarnings("ignore")  # of what MLflow asks of its own libraries


def registered(home: Home, journal: Journal, target: JobTarget, job: Job) -> tuple[_Sync, str]:
    """A job on record, what tells MLflow of it, and its run there."""
    journal.add_job(job, [target])
    journal.add_event(job.id, PACKAGED, target="llvm", tunefarm="9")
    sync = _Sync(journal, job, home.mlflow_uri)
    experiment = experiment_of(sync.client, "tests", home)
    return sync, sync.client.create_run(experiment).info.run_id


def row(digest: str, verdict: str = "FASTER", interval: Sequence[float] = (3.0, 4.0)) -> Any:
    summary = {"verdict": verdict, "speedup_ci95": interval}
    return {"digest": digest, "path": "/h/a.tfa", "summary": summary}


@pytest.mark.slow
def test_an_alias_stays_with_what_is_faster_and_the_other_version_says_so(
    home: Home, device: Device
) -> None:
    prepare_environment()
    journal = Journal(home)
    target = JobTarget("llvm", device.target, device, "tc")
    made = [
        ("net-1", 1.0, "FASTER", [3.0, 4.0]),
        ("net-2", 2.0, "AMBIGUOUS", [0.9, 1.1]),
        ("net-3", 3.0, "FASTER", [3.2, 4.1]),
    ]
    versions: list[dict[str, Any]] = []
    holders = []
    for name, created, verdict, interval in made:
        job = dataclasses.replace(make_job(job=name), created=created)
        sync, run = registered(home, journal, target, job)
        for _ in range(2):  # a sync that is done again registers nothing more
            sync._register(run, target, row(name, verdict, interval))
        holders.append(sync.client.get_model_version_by_alias("net", "llvm").version)
        versions = [v.tags for v in sync.client.search_model_versions("name = 'net'")]
    assert [int(holder) for holder in holders] == [1, 1, 3]
    said = {tags["tunefarm.job"]: tags.get("tunefarm.alias") for tags in versions}
    assert said == {"net-1": None, "net-2": "llvm stays with version 1", "net-3": None}
    journal.close()


@pytest.mark.slow
def test_a_promotion_that_was_cut_short_is_made_up_for(
    home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow goes away between a version and its alias; and when it does not say who has the alias,
    nobody gets it."""
    from mlflow.exceptions import MlflowException

    prepare_environment()
    with contextlib.closing(Journal(home)) as journal:
        target = JobTarget("llvm", device.target, device, "tc")
        sync, run = registered(home, journal, target, make_job(job="net-1"))

        def gone(*_: object) -> None:
            raise MlflowException("connection refused")

        for method in ("set_registered_model_alias", "get_model_version_by_alias"):
            with monkeypatch.context() as meanwhile:
                meanwhile.setattr(sync.client, method, gone)
                with pytest.raises(MlflowException, match="refused"):
                    sync._register(run, target, row("net-1"))
        sync._register(run, target, row("net-1"))
        assert int(sync.client.get_model_version_by_alias("net", "llvm").version) == 1
        assert len(sync.client.search_model_versions("name = 'net'")) == 1


@pytest.mark.slow
def test_a_name_alone_is_enough_where_it_means_one_thing(
    home: Home, device: Device, tmp_path: Path
) -> None:
    prepare_environment()
    with contextlib.closing(Journal(home)) as journal:
        target = JobTarget("llvm", device.target, device, "tc")
        sync, run = registered(home, journal, target, make_job(job="net-1"))
        sync._register(run, target, row("d1"))
        (tmp_path / "a.tfa").write_bytes(b"what was made")
        sync.client.log_artifact(run, str(tmp_path / "a.tfa"), "artifact")
        path, digest = pull(home, home.mlflow_uri, "net", None, tmp_path / "into")
        assert (path.read_bytes(), digest) == (b"what was made", "d1")
        sync.client.set_registered_model_alias("net", "cuda", "1")
        with pytest.raises(UsageError, match="net@cuda, net@llvm"):
            pull(home, home.mlflow_uri, "net", None, tmp_path / "into")
        with pytest.raises(TunefarmError, match="has no net@vax"):
            pull(home, home.mlflow_uri, "net", "vax", tmp_path / "into")
        with pytest.raises(TunefarmError, match="has no other"):
            pull(home, home.mlflow_uri, "other", None, tmp_path / "into")
        for alias in ("cuda", "llvm"):
            sync.client.delete_registered_model_alias("net", alias)
        with pytest.raises(TunefarmError, match="no version of net has an alias"):
            pull(home, home.mlflow_uri, "net", None, tmp_path / "into")


def test_a_job_that_is_named_is_written_whatever_became_of_it(
    home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one whose driver does so itself; without a name, all that have ended."""
    written: list[str] = []
    monkeypatch.setattr(
        "tunefarm.results.tracking.sync_job", lambda _, job, uri: written.append(job) or ""
    )
    with contextlib.closing(Journal(home)) as journal:
        for name, kind in (("net-1", "interrupted"), ("net-2", "succeeded"), ("net-3", "running")):
            job = dataclasses.replace(make_job(job=name), options={"tracking_uri": "u"})
            journal.add_job(job, [JobTarget("llvm", device.target, device, "tc")])
            journal.add_event(name, "running")
            journal.add_event(name, kind)
        driver = DriverLock(home, "net-3")
        assert driver.acquire()
        call = CliRunner().invoke
        assert call(sync.command, []).exit_code == 0
        assert call(sync.command, ["net-1"]).exit_code == 0
        assert written == ["net-2", "net-1"]
        refused = call(sync.command, ["net-3"])
        assert isinstance(refused.exception, JobError)
        assert "is running" in refused.exception.message
        driver.release()


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://u:secret@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("https://u:p@ss@h/x?y=1", "https://u:***@h/x?y=1"),
        ("postgresql://u:se/cr#e[t@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?user=u&password=***"),
        ("https://u@h/x", "https://u@h/x"),
        ("http://h:5000/a@b", "http://h:5000/a@b"),
        ("http://[::1]:5000", "http://[::1]:5000"),
        ("sqlite:////a/mlflow.db", "sqlite:////a/mlflow.db"),
    ],
)
def test_passwords_are_not_shown(uri: str, shown: str) -> None:
    assert without_password(uri) == shown
