"""OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject


class OpenVino(Runtime):
    """One stream, in single precision, where the artifact beside it is: on processors with bfloat16
    it would choose that."""

    name: ClassVar[str] = "openvino"
    needs: ClassVar[Mapping[str, str]] = {"openvino": "openvino"}
    settings: ClassVar[tuple[str, ...]] = ("pinned", "floating")

    def load(self, subject: Subject, setting: str) -> Run:
        import openvino

        compiled = openvino.Core().compile_model(
            str(subject.model),
            "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_NUM_THREADS": str(subject.threads),
                "NUM_STREAMS": "1",
                "INFERENCE_PRECISION_HINT": "bf16" if subject.rounds == "bfloat16" else "f32",
                "ENABLE_CPU_PINNING": "YES" if setting == "pinned" else "NO",
            },
        )
        request = compiled.create_infer_request()

        def run(feed: Mapping[str, Array]) -> list[Array]:
            request.infer(dict(feed), share_inputs=True)
            count = len(subject.outputs)
            return [_array(request.get_output_tensor(place)) for place in range(count)]

        return run


def _array(tensor: Any) -> Array:
    """A copy. OpenVINO shows bfloat16 as float16 of the same bits."""
    array = np.array(tensor.data)
    is_bfloat16 = tensor.element_type.get_type_name() == "bf16"
    return array.view(numpy_dtype("bfloat16")) if is_bfloat16 else array
