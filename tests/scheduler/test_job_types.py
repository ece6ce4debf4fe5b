"""Whole jobs on models that are not in float32, through the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests import models
from tests.command import tunefarm
from tests.quantised_models import network as quantised_network
from tunefarm.frontend.dtypes import numpy_dtype, rounding
from tunefarm.frontend.half import narrowed
from tunefarm.frontend.onnx_passes import Graph
from tunefarm.measure.gate import parity

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A farm home for all of them."""
    root = tmp_path_factory.mktemp("types")
    return {"TUNEFARM_HOME": str(root / "home"), "TUNEFARM_CACHE": str(root / "cache")}


def _faster(env: dict[str, str], model: Path, trials: int) -> dict[str, Any]:
    """What a job on `model` says, which has no failure, and is right and faster."""
    submit = ("submit", model, "--targets", "llvm", "--trials", trials, "--json")
    done = tunefarm(*submit, **env)
    assert done.code == 0, done.err
    row: dict[str, Any] = done.json["targets"]["llvm"]
    assert row["verdict"] == "FASTER"
    assert row["failures"] == {}
    assert row["parity"]["passed"]
    return row


def test_a_model_in_half_precision(env: dict[str, str], tmp_path: Path) -> None:
    """Of a type that NumPy has not: in, out, and through every file between."""
    model = tmp_path / "half.onnx"
    onnx.save(narrowed(onnx.load(models.vector_dense(tmp_path / "m.onnx", 256)), "bfloat16"), model)
    row = _faster(env, model, trials=8)
    assert row["parity"]["max_rel_err"] <= rounding("bfloat16")
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, x=np.ones((1, 256), numpy_dtype("bfloat16")))
    ran = tunefarm(
        *("artifacts", "run", row["artifact"], "--inputs", given, "--outputs", made, "--json"),
        **env,
    )
    assert ran.code == 0, ran.err
    with np.load(made) as outputs:
        assert outputs["y"].dtype == np.float32
        (weights,) = Graph(onnx.load(model)).constants.values()
        sums = weights.astype(np.float32).sum(axis=0, keepdims=True)
        np.testing.assert_allclose(outputs["y"], sums, rtol=rounding("bfloat16"), atol=1e-3)


def test_a_quantised_model(env: dict[str, str], tmp_path: Path) -> None:
    """Products of integers where the processor has an instruction for them, or else of floats."""
    model = quantised_network(tmp_path / "quantised.onnx", "int8")
    row = _faster(env, model, trials=16)
    seen = tunefarm("artifacts", "inspect", row["artifact"], "--json", **env)
    assert seen.json["computed_in"] == "int8"
    given, made = tmp_path / "in.npz", tmp_path / "out.npz"
    x = np.random.default_rng(3).uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32)
    np.savez(given, x=x)
    ran = tunefarm(
        *("artifacts", "run", row["artifact"], "--inputs", given, "--outputs", made, "--json"),
        **env,
    )
    assert ran.code == 0, ran.err
    (want,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    with np.load(made) as outputs:
        assert parity([outputs["y"]], [want], "int8").passed
