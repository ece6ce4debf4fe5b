"""A whole job on a GPU of paper: every request that a GPU is asked, in fresh processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda import needs_compiler
from tests.models import cnn, single_matmul
from tests.on_paper import on_paper, submitted
from tunefarm.home import Home

pytestmark = [pytest.mark.torture, needs_compiler]


@pytest.mark.parametrize("make", [lambda path: single_matmul(path, 32), lambda path: cnn(path, 8)])
def test_a_job_is_measured_and_its_times_are_no_evidence(home: Home, tmp_path: Path, make) -> None:
    row = submitted(make(tmp_path / "m.onnx"), "--targets", "cuda", "--trials", "4")
    assert row["candidates"] == 4
    assert not {"crash", "wrong_result"} & set(row["failures"]), row["failures"]
    assert row["parity"]["passed"]
    assert on_paper("artifacts", "pull", "m").returncode != 0, "nobody is to deploy it"
