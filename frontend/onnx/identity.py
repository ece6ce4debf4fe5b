"""Which model a file is: its bytes, and those of the files beside it that hold its weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tunefarm.errors import InvalidModel
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

_LIMIT_S = 120.0
_KEY = b"location"
"""Of external data: a file without it has none."""


def model_digest(model: Path, here: bool = False) -> str:
    """SHA-256 of the file; of one whose weights lie beside it, of its bytes' and theirs. Whether it
    is a model is for the import to find out; it is parsed for its files' names alone, and in a
    child, unless `here`.

    Raises:
        InvalidModel: it cannot be read.
    """
    try:
        whole = _of_file(model)
        if not _mentions_others(model):
            return whole
        others = locations(model) if here else _asked(model)
        if not others:
            return whole
        found = hashlib.sha256(whole.encode())
        place = model.parent.resolve()
        for name in others:
            file = (place / name).resolve()
            is_there = file.is_relative_to(place) and file.is_file()  # else the import refuses it
            found.update(f"\n{name} {_of_file(file) if is_there else 'missing'}".encode())
        return found.hexdigest()
    except FileNotFoundError:
        raise InvalidModel(f"there is no file {model}") from None
    except OSError as error:
        raise InvalidModel(f"{model} cannot be read: {error.strerror}") from None


def check_alone(model: Path, digest: str) -> None:
    """That the file is the whole model, whose `model_digest` is this.

    Raises:
        InvalidModel: its weights lie beside it.
    """
    if digest != _of_file(model):
        raise InvalidModel(
            f"{model} has weights in other files, and a farm's door takes one",
            hint="Export it with the weights inside, or submit it on one of the farm's machines.",
        )


def locations(model: Path) -> list[str]:
    """The files beside `model` that hold tensors of its graph, sorted; none of what is no model."""
    import onnx

    try:
        graph = onnx.load_model(str(model), load_external_data=False).graph
    except Exception:
        return []
    external = onnx.TensorProto.EXTERNAL
    return sorted(
        {
            entry.value
            for tensor in graph.initializer
            if tensor.data_location == external
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )


def _asked(model: Path) -> list[str]:
    try:
        with Child("tunefarm.frontend.onnx.identity:locations", memory_bytes=8 * 2**30) as child:
            return list(child.call(model, _LIMIT_S))
    except (ChildTimeout, ChildDied, ChildError):  # the import's child will say what is wrong
        return []


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mentions_others(model: Path) -> bool:
    """Whether the word is there at all, in pieces that overlap by its length."""
    tail = b""
    with model.open("rb") as file:
        while piece := file.read(1 << 22):
            if _KEY in tail + piece:
                return True
            tail = piece[-len(_KEY) :]
    return False
