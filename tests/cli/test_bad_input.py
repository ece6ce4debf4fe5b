"""Bad input gets a clear sentence and the right exit code, and leaves nothing half-written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests import models, refused
from tests.command import tunefarm
from tunefarm.home import Home


def submit(*args: object, **env: str):
    return tunefarm("submit", *args, timeout=120, **env)


@pytest.mark.slow
@pytest.mark.alone
def test_help_is_quick() -> None:
    tunefarm("--help")
    times = []
    for _ in range(3):
        started = time.monotonic()
        assert tunefarm("--help").code == 0
        times.append(time.monotonic() - started)
    assert min(times) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("--trials", "0"),
        ("--trials", "-3"),
        ("--trials", "many"),
        ("--budget", "soon"),
        ("--budget", "-5m"),
        ("--budget", "0"),
        ("--shape", "x=1,0"),
        ("--shape", "x"),
        ("--targets", ","),
        ("--targets", "llvm:mcpu"),
        ("--strategy", "magic"),
        ("--no-such-option",),
    ],
)
def test_a_wrong_option_is_exit_2(home: Home, tmp_path: Path, args: tuple[str, ...]) -> None:
    done = submit(models.cnn(tmp_path / "m.onnx"), *args)
    assert done.code == 2, done.err
    assert done.out == ""
    assert args[0] in done.err or "strategy" in done.err or "target" in done.err
    assert not list(home.jobs.iterdir())


@pytest.mark.slow
def test_a_name_that_is_no_text_is_exit_2(home: Home, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xe9.onnx"))
    done = submit(models.cnn(tmp_path / "m.onnx").rename(path))
    assert done.code == 2, done.err
    assert "rename it" in done.err


def test_no_model_at_all_is_exit_2(home: Home) -> None:
    done = submit("--json")
    assert done.code == 2
    assert done.json["exit_code"] == 2


@pytest.mark.tvm
@pytest.mark.parametrize("targets", ["vax", "opencl", "llvm,vax"])
def test_an_unknown_target_is_exit_4(home: Home, tmp_path: Path, targets: str) -> None:
    done = submit(models.cnn(tmp_path / "m.onnx"), "--targets", targets, "--json")
    assert done.code == 4
    assert done.json["exit_code"] == 4
    assert "Targets are" in done.err
    assert not list(home.jobs.iterdir())


@pytest.mark.tvm
@pytest.mark.parametrize("targets", ["cuda", "cuda,llvm", "llvm:mcpu=znver9"])
def test_a_target_without_a_device_is_exit_4(home: Home, tmp_path: Path, targets: str) -> None:
    done = submit(models.cnn(tmp_path / "m.onnx"), "--targets", targets)
    assert done.code == 4
    assert "no registered device" in done.err
    assert "--no-device skip" in done.err
    assert not list(home.jobs.iterdir())


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p, "there is no file"),
        (lambda p: (p.write_bytes(b""), p)[1], "is empty"),
        (lambda p: (p.write_bytes(b"GIF89a" * 100), p)[1], "not an ONNX model"),
        (
            lambda p: (p.write_bytes(models.cnn(p).read_bytes()[:5000]), p)[1],
            "not an ONNX model",
        ),
        (refused.huge_constant, "more than"),
        (refused.unsupported, "operator Det (node 'my_volume')"),
        (refused.nothing_to_compute, "nothing to compute"),
    ],
    ids=["missing", "empty", "no model", "truncated", "huge", "unsupported", "nothing to do"],
)
def test_a_bad_model_is_exit_3(home: Home, tmp_path: Path, make, words: str) -> None:
    done = submit(make(tmp_path / "m.onnx"), "--targets", "llvm", "--trials", "4")
    assert done.code == 3, done.err
    assert done.err.count(words) == 1, "said once"
    assert [p for p in home.jobs.iterdir() if words not in (p / "job.log").read_text()] == []
    assert "Traceback" not in done.err
    assert not [p for p in home.jobs.rglob("*") if p.name in ("program", "model.onnx")]
    assert not list(home.artifacts.iterdir())


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_exit_5(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = submit(models.cnn(tmp_path / "m.onnx"), TUNEFARM_HOME=str(tmp_path / "file" / "home"))
    assert done.code == 5
    assert "cannot be written" in done.err
    assert "TUNEFARM_HOME" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "watch", "logs", "cancel", "resume"])
def test_an_unknown_job_is_exit_5(home: Home, command: str) -> None:
    done = tunefarm(command, "nothing")
    assert done.code == 5
    assert "no job 'nothing'" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "verify", "run"])
def test_what_is_no_artifact_is_exit_6(home: Home, tmp_path: Path, command: str) -> None:
    path = tmp_path / "a.tfa"
    assert tunefarm("artifacts", command, path).code == 6
    path.write_bytes(b"PK\x03\x04 not really")
    done = tunefarm("artifacts", command, path, "--json")
    assert done.code == 6
    assert done.json["exit_code"] == 6


@pytest.mark.slow
def test_an_empty_farm_answers(home: Home) -> None:
    assert tunefarm("jobs", "--json").json == {"jobs": []}
    assert tunefarm("artifacts", "list", "--json").json == {"artifacts": []}
    assert "no jobs yet" in tunefarm("jobs").out
