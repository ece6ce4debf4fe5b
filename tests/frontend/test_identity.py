"""Two models are told apart by their weights, wherever these lie."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import pytest

from tests import models
from tunefarm.errors import InvalidModel
from tunefarm.frontend.onnx.identity import check_alone, locations, model_digest


def outside(path: Path) -> Path:
    """A network with its weights in a file beside it."""
    model = onnx.load(models.cnn(path))
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=64
    )
    return path


@pytest.mark.slow
def test_weights_beside_the_file_are_part_of_the_model(tmp_path: Path) -> None:
    path = outside(tmp_path / "m.onnx")
    assert locations(path) == ["weights.bin"]
    before = model_digest(path)
    assert before == model_digest(path, here=True)
    assert before != hashlib.sha256(path.read_bytes()).hexdigest()
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(weights)
    changed = model_digest(path)
    assert changed != before
    (tmp_path / "weights.bin").unlink()
    assert model_digest(path) not in (before, changed), "the import says what is missing"


def test_of_any_other_file_it_is_the_bytes(tmp_path: Path) -> None:
    inside, junk = models.cnn(tmp_path / "m.onnx"), tmp_path / "junk.onnx"
    junk.write_bytes(b"\xff" * 100 + b"location" + b"\xff" * 100)
    for path in (Path(inside), junk):
        assert model_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidModel, match="there is no file"):
        model_digest(tmp_path / "none.onnx")
    with pytest.raises(InvalidModel, match="cannot be read"):
        model_digest(tmp_path)


def test_a_model_of_several_files_does_not_go_through_a_door(tmp_path: Path) -> None:
    whole = Path(models.cnn(tmp_path / "whole.onnx"))
    check_alone(whole, model_digest(whole))
    path = outside(tmp_path / "m.onnx")
    with pytest.raises(InvalidModel, match="a farm's door takes one"):
        check_alone(path, model_digest(path))


@pytest.mark.slow
def test_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    """Whatever a model says; the import refuses them."""
    (tmp_path / "models").mkdir()
    path = outside(tmp_path / "models" / "m.onnx")
    (tmp_path / "models" / "weights.bin").rename(tmp_path / "weights.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../weights.bin"
    path.write_bytes(model.SerializeToString())
    before = model_digest(path)
    (tmp_path / "weights.bin").write_bytes(b"others")
    assert model_digest(path) == before
