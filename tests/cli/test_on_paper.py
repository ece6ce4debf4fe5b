"""Whole jobs for a GPU, on a GPU of paper: what is computed counts, how fast does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cuda import needs_compiler
from tests.models import cnn
from tests.on_paper import RUN, on_paper, submitted
from tunefarm.home import Home
from tunefarm.results.bundle import open_bundle

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


@needs_compiler
def test_a_network_that_was_built_without_a_device_computes_what_it_is_to_and_is_never_promoted(
    home: Home, tmp_path: Path
) -> None:
    model = cnn(tmp_path / "cnn.onnx", size=8)
    target = "cuda:arch=sm_86:precision=tf32"  # the GPU's older
    row = submitted(model, "--targets", target, "--no-device", "build")
    assert row["parity"] == {"max_abs_err": None, "max_rel_err": None, "passed": None}
    bundle = open_bundle(Path(row["artifact"]))
    manifest = bundle.manifest
    assert any(kernel["tuned"] for kernel in manifest["kernels"])
    assert manifest["device"]["sku"] == ""
    assert manifest["target"]["precision"] == manifest["computed_in"] == "tf32"
    assert manifest["precision"] == ["float32"]
    assert b"tensor-tile" in bundle.read("schedules.json")
    pulled = on_paper("artifacts", "pull", "cnn", "-o", tmp_path / "release")
    assert pulled.returncode != 0, "what nobody has run must not be released"
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(inputs, x=np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype("f4"))
    run = ("artifacts", "run", row["artifact"], "--inputs", inputs, "--outputs", outputs)
    ran = on_paper(*run, arch="sm_86")
    assert ran.returncode == 0, ran.stderr[-3000:]
    session = onnxruntime.InferenceSession(model)
    (expected,) = session.run(None, {"x": np.load(inputs)["x"]})
    np.testing.assert_allclose(np.load(outputs)["y"], expected, rtol=4e-3, atol=1e-5)
    elsewhere = on_paper(*run, arch="sm_90")
    assert elsewhere.returncode == 6
    assert "sm_90" in elsewhere.stderr
