"""A whole job for a GPU, on a GPU of paper: built, measured, checked, packaged and run again; what
it computes counts, how fast does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cuda import needs_compiler
from tests.models import cnn
from tunefarm.home import Home

RUN = [sys.executable, "-m", "tunefarm.measure.emulator"]


def on_paper(*command: object, arch: str = "sm_80") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, "--arch", arch, sys.executable, "-m", "tunefarm", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


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


@pytest.mark.ray
@needs_compiler
def test_a_whole_job(home: Home, tmp_path: Path) -> None:
    import json

    model = cnn(tmp_path / "cnn.onnx", size=8)
    done = on_paper(
        *("submit", model, "--targets", "cuda", "--trials", "6", "--json"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout)["targets"]["cuda"]
    assert row["verdict"] == "UNMEASURED"
    assert row["speedup"] is None
    assert row["parity"]["passed"]
    assert row["candidates"] == 6
    assert "wrong_result" not in row["failures"], row["failures"]
    assert "crash" not in row["failures"], row["failures"]
    inputs, outputs = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(inputs, x=np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype("f4"))
    ran = on_paper("artifacts", "run", row["artifact"], "--inputs", inputs, "--outputs", outputs)
    assert ran.returncode == 0, ran.stderr[-3000:]
    import onnxruntime

    session = onnxruntime.InferenceSession(model)
    (expected,) = session.run(None, {"x": np.load(inputs)["x"]})
    np.testing.assert_allclose(np.load(outputs)["y"], expected, rtol=1e-4, atol=1e-6)
    elsewhere = on_paper("artifacts", "run", row["artifact"], "--inputs", inputs, arch="sm_90")
    assert elsewhere.returncode == 6
    assert "sm_90" in elsewhere.stderr
    pulled = on_paper("artifacts", "pull", "cnn")
    assert pulled.returncode != 0, "nobody deploys what no GPU has run"
