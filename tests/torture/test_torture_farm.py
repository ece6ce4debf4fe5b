"""A farm and its users: who gets in, and how jobs share it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.command import tunefarm
from tests.farms import Farm, farm_of
from tests.torture.conftest import Report
from tunefarm.results.journal import Journal

pytestmark = pytest.mark.torture


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm_of(tmp_path_factory.mktemp("farm"), "first", "second") as found:
        yield found


def test_without_the_token_nobody_gets_in(farm: Farm, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    model = models.matmul(tmp_path / "mm.onnx")
    refused = tunefarm(
        *("submit", model, "--targets", "llvm", "--farm", farm.address, "--token", wrong),
        timeout=120,
        TUNEFARM_HOME=str(tmp_path / "home"),
    )
    assert refused.code == 5
    assert "cannot be reached" in refused.err


@pytest.mark.timeout(3600)
def test_jobs_share_the_machines(farm: Farm, tmp_path: Path, report: Report) -> None:
    """Three at once on two units, through the door: each makes headway beside the others, and no
    unit ever measures for two at a time."""
    user = farm.user("three")
    names = {"a": "normal", "b": "normal", "c": "low"}
    model = models.cnn(tmp_path / "cnn.onnx")
    jobs = {}
    for name, priority in names.items():
        options = ("--trials", 400, "--retune", "--name", name, "--priority", priority)
        sent = tunefarm(
            *("submit", model, "--targets", "llvm", *options), "--detach", "--json", **user
        )
        assert sent.code == 0, sent.err
        jobs[sent.json["job"]] = name
    for job in jobs:
        done = tunefarm("watch", job, "--json", timeout=1800, **user)
        assert done.code == 0, done.err
        assert done.json["targets"]["llvm"]["verdict"] == "FASTER"
    journal = Journal(farm.head.home)
    facts = dict(journal.all_facts())
    journal.close()
    screened = [row for row in facts["measurements"] if row["stage"] == "screen"]
    rows = sorted((r["time"], r["unit"], r["job"]) for r in screened if r["job"] in jobs)
    together = max(min(at for at, _, job in rows if job == one) for one in jobs)
    first_over = min(max(at for at, _, job in rows if job == one) for one in jobs)
    shares = Counter(jobs[job] for at, _, job in rows if together < at < first_over)
    moves = 0
    for unit in {unit for _, unit, _ in rows}:
        order = [job for _, one, job in rows if one == unit]
        moves += sum(before != after for before, after in itertools.pairwise(order))
    assert min(shares[name] for name in ("a", "b")) > 20, shares
    assert moves < 40, "a turn is longer than a candidate"
    report(seconds_together=round(first_over - together, 1), moves=moves, results=dict(shares))
