"""Whole jobs for a GPU, on a GPU of paper: what is computed counts, how fast does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cuda import needs_compiler
from tests.models import cnn, renamed, single_matmul
from tests.on_paper import RUN, all_submitted, on_paper
from tunefarm.home import Home
from tunefarm.results.artifact_file import open_artifact
from tunefarm.results.journal import Journal

pytestmark = pytest.mark.tvm  # and not alone: nothing here is judged by its time


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--arch", "sm_21", "true"], 4, "no architecture 'sm_21'"),
        (["no-such-command"], 2, "no-such-command"),
        ([], 2, "which command"),
    ],
)
def test_what_it_cannot_run_it_says(home: Home, arguments, code: int, words: str) -> None:
    done = subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert words in done.stderr


@pytest.mark.long
@needs_compiler
def test_a_network_that_was_built_without_a_device_computes_what_it_is_to_and_is_never_promoted(
    home: Home, tmp_path: Path
) -> None:
    """In float32, and as another target where tf32 is allowed; its tensors' names are none in C."""
    model = renamed(cnn(tmp_path / "cnn.onnx", size=8), tmp_path / "named.onnx", "gpu_0/")
    plain, rounding = "cuda:arch=sm_86", "cuda:arch=sm_86:precision=tf32"  # the GPU's older
    rows = all_submitted(model, "--targets", f"{plain},{rounding}", "--no-device", "build")
    assert set(rows) == {plain, rounding}
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    given = {"gpu_0/x": np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype("f4")}
    np.savez(inputs, **given)
    (expected,) = onnxruntime.InferenceSession(model).run(None, given)
    for target, computed_in, off in ((plain, "float32", 1e-4), (rounding, "tf32", 4e-3)):
        row = rows[target]
        assert row["parity"]["passed"], "it was seen on paper before it was packaged"
        assert row["parity"]["ran_on"] == "GPU of paper"
        assert 0 <= row["parity"]["max_rel_err"] < off
        artifact = open_artifact(Path(row["artifact"]))
        manifest = artifact.manifest
        assert any(kernel["tuned"] for kernel in manifest["kernels"])
        assert manifest["device"]["sku"] == ""
        assert manifest["computed_in"] == computed_in
        assert manifest["target"].get("precision", "float32") == computed_in
        assert manifest["precision"] == ["float32"]
        assert (b"tensor-tile" in artifact.read("schedules.json")) == (target == rounding)
    run = ("artifacts", "run", rows[rounding]["artifact"], "--inputs", inputs, "--outputs", outputs)
    ran = on_paper(*run, arch="sm_86")
    assert ran.returncode == 0, ran.stderr[-3000:]
    np.testing.assert_allclose(np.load(outputs)["gpu_0/y"], expected, rtol=4e-3, atol=4e-5)
    elsewhere = on_paper(*run, arch="sm_90")
    assert elsewhere.returncode == 6
    assert "sm_90" in elsewhere.stderr
    pulled = on_paper("artifacts", "pull", "cnn", "-o", tmp_path / "release")
    assert pulled.returncode != 0, "what nobody has run must not be released"


@pytest.mark.long
@needs_compiler
def test_what_is_wrong_on_paper_ships_untuned(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that compiles and is expected to be the fastest. There is no GPU here at all."""
    monkeypatch.setenv("TUNEFARM_PLUGINS", "tests.plugins.wrong_on_gpu")
    model = single_matmul(tmp_path / "matmul.onnx", 16)
    command = [sys.executable, "-m", "tunefarm", "submit", model, "--targets", "cuda:arch=sm_80"]
    done = subprocess.run(
        [*command, "--no-device", "build", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 kernels have a schedule that a model chose" in done.stderr
    assert "too much" in done.stderr
    assert "that must not ship: the untuned build instead" in done.stderr
    (row,) = json.loads(done.stdout)["targets"].values()
    assert (row["verdict"], row["parity"]["passed"]) == ("UNMEASURED", True)
    manifest = open_artifact(Path(row["artifact"])).manifest
    report = (home.job_dir(manifest["job"]) / "report.html").read_text()
    assert "nothing was measured" in report
    assert "on a GPU of paper" in report
    assert [kernel["tuned"] for kernel in manifest["kernels"]] == [False]
    assert manifest["shipped"] == "untuned"
    assert "computes something else than the model" in manifest["why_untuned"]
    assert row["why_untuned"] == manifest["why_untuned"]
    journal = Journal(home)
    seen = [e["detail"] for e in journal.events(manifest["job"]) if e["kind"] == "on_paper"]
    journal.close()
    assert [one["parity"]["passed"] for one in seen] == [False, True]
