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
def test_a_network_that_was_built_without_a_device_computes_what_it_is_to(
    home: Home, tmp_path: Path
) -> None:
    model = cnn(tmp_path / "cnn.onnx", size=8)
    row = submitted(
        model, "--targets", "cuda:arch=sm_86", "--no-device", "build"
    )  # the GPU's older
    assert row["parity"]["passed"] is None
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(inputs, x=np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype("f4"))
    run = ("artifacts", "run", row["artifact"], "--inputs", inputs, "--outputs", outputs)
    ran = on_paper(*run, arch="sm_86")
    assert ran.returncode == 0, ran.stderr[-3000:]
    session = onnxruntime.InferenceSession(model)
    (expected,) = session.run(None, {"x": np.load(inputs)["x"]})
    np.testing.assert_allclose(np.load(outputs)["y"], expected, rtol=1e-4, atol=1e-6)
    elsewhere = on_paper(*run, arch="sm_90")
    assert elsewhere.returncode == 6
    assert "sm_90" in elsewhere.stderr
