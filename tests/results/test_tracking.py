"""What MLflow's registry, a real one, is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.results.facts import PACKAGED, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.results.tracking import _Sync, experiment_of, prepare_environment

pytestmark = pytest.mark.filterwarnings("ignore")  # of what MLflow asks of its own libraries


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
        journal.add_job(job, [target])
        journal.add_event(name, PACKAGED, target="llvm", tunefarm="9")
        sync = _Sync(journal, job, home.mlflow_uri)
        experiment = experiment_of(sync.client, "tests", home)
        run = sync.client.create_run(experiment).info.run_id
        summary = {"verdict": verdict, "speedup_ci95": interval}
        for _ in range(2):  # a sync that is done again registers nothing more
            row = {"digest": name, "path": "/h/a.tfa", "summary": summary}
            sync._register(run, target, row)
        holders.append(sync.client.get_model_version_by_alias("net", "llvm").version)
        versions = [v.tags for v in sync.client.search_model_versions("name = 'net'")]
    assert [int(holder) for holder in holders] == [1, 1, 3]
    said = {tags["tunefarm.job"]: tags.get("tunefarm.alias") for tags in versions}
    assert said == {"net-1": None, "net-2": "llvm stays with version 1", "net-3": None}
    journal.close()
