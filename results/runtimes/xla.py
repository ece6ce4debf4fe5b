"""XLA's CPU compiler through JAX, on the model as jaxonnxruntime reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject


class Xla(Runtime):
    """Compiled at load. It takes as many threads as the process has cores."""

    name: ClassVar[str] = "xla"
    needs: ClassVar[Mapping[str, str]] = {"jax": "jax", "jaxonnxruntime": "jaxonnxruntime"}

    def environment(self, threads: int) -> dict[str, str]:
        return {"JAX_PLATFORMS": "cpu", "NPROC": str(threads)}

    def load(self, subject: Subject, setting: str) -> Run:
        import jax
        import onnx
        from jaxonnxruntime import backend

        prepared = backend.Backend.prepare(onnx.load(subject.model))
        compiled = jax.jit(lambda *arrays: prepared.run(list(arrays)))
        shapes = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in subject.inputs]
        ready = compiled.lower(*shapes).compile()

        def run(feed: Mapping[str, Array]) -> list[Array]:
            results = ready(*(feed[spec.name] for spec in subject.inputs))
            return [np.asarray(result) for result in results]

        return run
