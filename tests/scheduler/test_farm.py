"""A job on a farm of three machines: a head that builds, and two that measure; and one more, with
another tunefarm."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.command import tunefarm
from tests.farms import farm_of
from tunefarm.errors import JobError
from tunefarm.measure.code import whole_code
from tunefarm.results.artifact_file import open_artifact
from tunefarm.scheduler import actors

ROOT = Path(__file__).parents[2]


def another_tunefarm(place: Path) -> Path:
    """Where its code lies."""
    shutil.copytree(ROOT / "tunefarm", place / "tunefarm")
    with (place / "tunefarm" / "search" / "replay.py").open("a") as text:
        text.write("\n# other\n")
    return place


def test_a_worker_with_another_tunefarm_or_compiler_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its machine said when it joined: it may have been upgraded under it."""
    monkeypatch.setattr(actors, "cuda_compiler", lambda: "nvcc-13.0.88")
    tools = "tvm-0.27 llvm-22 ld-2 code-12345678"
    same, other = actors.Away(Path(), whole_code(), tools), actors.Away(Path(), "01234567", tools)
    for builds in (False, True):
        same.check(builds)
        with pytest.raises(JobError, match=f"another one .{whole_code()}, not 01234567"):
            other.check(builds)
    replace(same, toolchain=f"{tools} nvcc-13.0.88").check(builds=True)
    older = replace(same, toolchain=f"{tools} nvcc-12.4.0")
    older.check(builds=False)
    with pytest.raises(JobError, match=r"CUDA with nvcc-13\.0\.88, the job with nvcc-12\.4\.0"):
        older.check(builds=True)
    actors.check_compiler(tools)
    with pytest.raises(JobError, match=r"the job with nvcc-12\.4\.0") as error:
        actors.check_compiler(older.toolchain)
    assert "TUNEFARM_CUDA_COMPILER" in error.value.hint


@pytest.mark.long
@pytest.mark.ray
def test_a_job_is_measured_on_every_unit_and_packaged_at_the_head(tmp_path: Path) -> None:
    with farm_of(tmp_path, "first", "second") as farm:
        for token in (farm.token, farm.head.home.root / "door.token"):
            assert token.stat().st_mode & 0o777 == 0o600
        other = farm.join("other", code=another_tunefarm(tmp_path / "code"), builders=2)
        other.await_line("joined the farm")
        user = farm.user("laptop")
        # Two machines of one host's cores time at once: what takes less than a turn on a core is
        # lost in the noise of that.
        model = models.cnn(tmp_path / "cnn.onnx", size=96)
        options = ("--targets", "llvm", "--trials", 12, "--detach", "--json")
        sent = tunefarm("submit", model, *options, **user)
        assert sent.code == 0, sent.err
        job = sent.json["job"]  # whoever sent it may go home now
        done = tunefarm("watch", job, "--json", **user)
        assert done.code == 0, done.err
        row = done.json["targets"]["llvm"]
        assert row["verdict"] == "FASTER", tunefarm("logs", job, **user).out
        assert row["parity"]["passed"]
        pulled = tunefarm("artifacts", "pull", "cnn@llvm", "-o", tmp_path, "--json", **user)
        assert pulled.code == 0, pulled.err
        assert open_artifact(Path(pulled.json["path"])).manifest["complete"]
        assert Path(pulled.json["path"]).parent == tmp_path
        devices = tunefarm("devices", "list", "--json", **user).json["devices"]
        assert len(devices) == 2
        assert all(one["busy"] is None for one in devices)
        assert len(farm.units(job, "screen")) == 2
        assert len(farm.units(job, "final")) == 2, "finals are heard on both"
        for machine in farm.machines[1:3]:
            sent = list(machine.home.job_dir(job).glob("llvm/candidates/*.so"))
            assert sent, "what was measured there was sent there"
        assert not other.home.job_dir(job).exists()
        there = ("--farm", farm.address, "--json")
        listed = tunefarm("devices", "list", *there, **farm.environment())
        assert len(listed.json["devices"]) == 2
        refused = tunefarm("submit", model, "--targets", "llvm:mcpu=znver9", "--detach", **user)
        assert refused.code == 4
        for said in (listed.err, refused.err, tunefarm("logs", job, **user).out):
            assert "is left alone: its tunefarm is another one" in said
            assert whole_code() in said
