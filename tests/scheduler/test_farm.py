"""A job on a farm of three machines: a head that builds, and two that measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tests.command import finish
from tests.farms import farm_of, on_several_machines
from tunefarm.results.bundle import open_bundle

pytestmark = [pytest.mark.ray, on_several_machines]


def test_a_job_is_measured_on_every_unit_and_packaged_at_the_head(tmp_path: Path) -> None:
    with farm_of(tmp_path, "first", "second") as farm:
        assert farm.token.stat().st_mode & 0o777 == 0o600
        model = models.cnn(tmp_path / "cnn.onnx")
        done = finish(farm.submit(model, "--trials", 24))
        assert done.code == 0, done.err
        row = done.json["targets"]["llvm"]
        assert row["verdict"] == "FASTER"
        assert row["parity"]["passed"]
        job = done.json["job"]
        assert len(farm.units(job, "screen")) == 2
        assert len(farm.units(job, "final")) == 2, "finals are heard on both"
        assert open_bundle(Path(row["artifact"])).manifest["complete"]
        for machine in farm.machines[1:]:
            sent = list(machine.home.job_dir(job).glob("llvm/candidates/*.so"))
            assert sent, "what was measured there was sent there"
