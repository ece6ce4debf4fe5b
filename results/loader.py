"""Running an artifact: ``tunefarm.load(path)(inputs)``. Needs NumPy and the TVM runtime alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.errors import ArtifactIncompatible, ArtifactTampered, UsageError
from tunefarm.measure.runtime import import_runtime
from tunefarm.results.artifact_file import (
    Artifact,
    open_artifact,
    require_fit,
    unpacked_library,
)
from tunefarm.results.manifest import WEIGHTS

Array = NDArray[Any]


class LoadedModel:
    """A model ready to run; call it with a dictionary of input name to array.

    Attributes:
        timings: seconds: ``load`` (open, check, dlopen), ``first_request``, ``warm_up`` (what the
            first request took over the second).
        inputs, outputs: name, shape and dtype of each, from the manifest.
    """

    def __init__(self, artifact: Artifact) -> None:
        started = time.perf_counter()
        require_fit(artifact)
        import_runtime(int(artifact.manifest["threads"]))
        from tunefarm.measure import weights
        from tunefarm.measure.model import CompiledModel

        self.artifact = artifact
        self.inputs: list[dict[str, Any]] = artifact.manifest["inputs"]
        self.outputs: list[dict[str, Any]] = artifact.manifest["outputs"]
        constants: list[Array] = []
        if WEIGHTS in artifact.manifest["files"]:
            size = artifact.manifest["files"][WEIGHTS]["bytes"]
            try:
                memory = weights.room(size)
                artifact.read_into(WEIGHTS, memory)
                constants = weights.arrays(memory)
            except ValueError as error:
                raise ArtifactTampered(f"{artifact.path}: {WEIGHTS}: {error}") from None
            except OSError as error:
                raise ArtifactIncompatible(
                    f"{artifact.path}: no memory for {size} bytes of weights: {error}"
                ) from None
        kind = str(artifact.manifest["target"]["kind"])
        with unpacked_library(artifact) as library:
            self._model = CompiledModel(library, constants, kind=kind)
        self.timings: dict[str, float] = {"load": time.perf_counter() - started}
        self._calls = 0

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference. Calls from several threads take turns.

        Raises:
            UsageError: an input is missing, unknown, or of another shape or dtype.
        """
        started = time.perf_counter()
        results = self._model(self._ordered(inputs))
        elapsed = time.perf_counter() - started
        self._calls += 1
        if self._calls == 1:
            self.timings["first_request"] = elapsed
        elif self._calls == 2:
            self.timings["warm_up"] = max(0.0, self.timings["first_request"] - elapsed)
        names = [spec["name"] for spec in self.outputs]
        return dict(zip(names, results, strict=True))

    def _ordered(self, inputs: Mapping[str, Array]) -> list[Array]:
        unknown = set(inputs) - {spec["name"] for spec in self.inputs}
        if unknown:
            raise UsageError(f"unknown inputs: {', '.join(sorted(unknown))}")
        arrays = []
        for spec in self.inputs:
            if spec["name"] not in inputs:
                raise UsageError(f"input {spec['name']!r} is missing")
            array = np.asarray(inputs[spec["name"]])
            if list(array.shape) != list(spec["shape"]) or array.dtype.name != spec["dtype"]:
                raise UsageError(
                    f"input {spec['name']!r} is {array.dtype.name}{list(array.shape)}; "
                    f"the model takes {spec['dtype']}{list(spec['shape'])}"
                )
            arrays.append(np.asarray(array, order="C"))  # `ascontiguousarray` makes scalars vectors
        return arrays


def load(path: str | Path) -> LoadedModel:
    """Open an artifact, check that it is whole and fits this host, and load it.

    Raises:
        ArtifactTampered: its library or weights are not the ones that its manifest lists.
        ArtifactIncompatible: it does not fit this host; the message has every reason.
    """
    started = time.perf_counter()
    artifact = open_artifact(Path(path))
    opened = time.perf_counter() - started
    model = LoadedModel(artifact)
    model.timings["load"] += opened
    return model
