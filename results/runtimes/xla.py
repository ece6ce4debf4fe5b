"""XLA's CPU compiler through JAX, on the model as jaxonnxruntime reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject

OPSET = 17
"""What is read knows few of the older operators."""


class Xla(Runtime):
    """Compiled at load, once more in each process."""

    name: ClassVar[str] = "xla"
    needs: ClassVar[Mapping[str, str]] = {
        "jax": "jax",
        "jaxlib": "jaxlib",
        "jaxonnxruntime": "jaxonnxruntime",
    }

    def environment(self, threads: int) -> dict[str, str]:
        return {"JAX_PLATFORMS": "cpu", "NPROC": str(threads)}

    def load(self, subject: Subject, setting: str) -> Run:
        import jax
        import onnx.version_converter
        from jaxonnxruntime import call_onnx

        feed = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in subject.inputs}
        model = onnx.version_converter.convert_version(onnx.load(subject.model), OPSET)
        function, weights = call_onnx.call_onnx_model(model, feed)
        placed = jax.device_put(weights)
        ready = jax.jit(function).lower(placed, feed).compile()

        def run(feed: Mapping[str, Array]) -> list[Array]:
            return [np.asarray(result) for result in ready(placed, dict(feed))]

        return run
