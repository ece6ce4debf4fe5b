"""What an artifact's manifest has to say. Pure; standard library alone: a machine that has no tuner
reads it."""

from __future__ import annotations

import json
import re
from types import NoneType
from typing import Any

from tunefarm.errors import ArtifactIncompatible, ArtifactTampered

LIBRARY = "lib/model.so"
WEIGHTS = "lib/model.weights"
SCHEMA = 2
"""Of the manifest. Before 2 a model's weights were inside its library."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_PART_LIMIT, _WEIGHTS_LIMIT = 4 * 2**30, 2**40
"""Bytes of a part: weights are read in pieces, everything else in one."""

_NUMBER = (int, float, NoneType)
_TENSORS = [{"name": str, "shape": [int], "dtype": str}]
_SHAPE = {
    "name": str,
    "model": {"source": str, "digest": str},
    "target": {"kind": str},
    "device": {"sku": str},
    "threads": int,
    "requires": {"os": str, "machine": str, "cpu_features": [str], "tvm_runtime": str},
    "inputs": _TENSORS,
    "outputs": _TENSORS,
    "kernels": [{"name": str, "tuned": bool}],
    "result": {
        "verdict": str,
        "baseline_ms": _NUMBER,
        "tuned_ms": _NUMBER,
        "speedup": _NUMBER,
        "parity": {"passed": (bool, NoneType)},
    },
    "files": dict,
}
"""What of it somebody reads, at least: a type, several, a list of one shape, or a document's keys.
"""
_GPU = {"arch": str, "cuda": int}
_FILE = {"bytes": int, "sha256": str}


def read_manifest(data: bytes, where: str) -> dict[str, Any]:
    """The manifest in these bytes, which lie `where`.

    Raises:
        ArtifactTampered: it makes no sense, or is not complete.
        ArtifactIncompatible: a newer tunefarm's.
    """
    try:
        manifest = json.loads(data)
        _refuse_newer(manifest, where)
        problem = _problem(manifest)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ArtifactTampered(f"{where}: its manifest makes no sense ({error})") from None
    if problem:
        raise ArtifactTampered(f"{where}: its manifest is not complete: {problem}")
    found: dict[str, Any] = manifest
    return found


def _refuse_newer(manifest: Any, where: str) -> None:
    if (schema := int(manifest["schema"])) > SCHEMA:
        raise ArtifactIncompatible(
            f"{where}: manifest schema {schema}; this tunefarm reads up to {SCHEMA}",
            hint="Use a newer tunefarm.",
        )


def _problem(manifest: dict[str, Any]) -> str:
    """What is missing, or is not what it should be; nothing where all is well."""
    if manifest["complete"] is not True:
        return "its packaging was never ended"
    if odd := _odd(manifest, _SHAPE):
        return odd
    if "gpu" in manifest["requires"] and (odd := _odd(manifest["requires"]["gpu"], _GPU)):
        return odd
    for name, entry in manifest["files"].items():
        limit = _WEIGHTS_LIMIT if name == WEIGHTS else _PART_LIMIT
        if not _NAME.fullmatch(name) or _odd(entry, _FILE) or not 0 <= entry["bytes"] <= limit:
            return f"files: {name[:60]}"
    needed = {LIBRARY, WEIGHTS} if int(manifest["schema"]) >= 2 else {LIBRARY}
    return ", ".join(sorted(needed - set(manifest["files"])))


def _odd(value: Any, shape: Any, place: str = "") -> str:
    """The first place in a document that is not of its shape."""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        places = (_odd(one, shape[0], f"{place}[{n}]") for n, one in enumerate(value))
        return next(filter(None, places), "")
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return place or "it is no document"
        for key, of in shape.items():
            inside = f"{place}.{key}" if place else key
            if key not in value:
                return inside
            if odd := _odd(value[key], of, inside):
                return odd
        return ""
    fits = isinstance(value, shape) and (shape is not int or not isinstance(value, bool))
    return "" if fits else place or "?"
