"""A network in float32 as a quantised one, by ONNX Runtime's own tool: to try things on."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

DYNAMIC = "dynamic"
NARROW = "uint8-7bit"
KINDS = ("uint8", NARROW, "int8", DYNAMIC)
"""Of the numbers between its operators; weights are of int8. `NARROW`: of uint8, and weights of 7
bits, as is advised for processors without VNNI. `DYNAMIC`: of uint8, quantised by what is in them,
around products of matrices alone."""
_OPSET = 13
"""The first with a scale for each channel."""
_SAMPLES = 4


def quantised(model: onnx.ModelProto, kind: str, seed: int = 0) -> onnx.ModelProto:
    """The network with nodes that quantise around each operator, a scale for each filter, and
    ranges as a few random inputs have them, drawn from `seed`. Softmaxes stay as they are: a
    probability of one in a thousand is nothing in steps of 1/255."""
    from onnxruntime.quantization import (
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < _OPSET:
        model = version_converter.convert_version(model, _OPSET)
    with tempfile.TemporaryDirectory() as directory, _quiet():
        plain, prepared, result = (str(Path(directory) / f"{n}.onnx") for n in "abc")
        onnx.save(model, plain)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        named = onnx.load(prepared)
        graph = named.graph
        for place, node in enumerate(graph.node):
            node.name = f"{node.op_type}_{place}"  # which the tool knows nodes by
        onnx.save(named, prepared)
        if kind == DYNAMIC:
            quantize_dynamic(
                prepared,
                result,
                weight_type=QuantType.QInt8,
                per_channel=True,
                op_types_to_quantize=["MatMul"],
            )
            return onnx.load(result)
        between = QuantType.QInt8 if kind == "int8" else QuantType.QUInt8
        quantize_static(
            prepared,
            result,
            _Samples(graph, seed),
            quant_format=QuantFormat.QDQ,
            activation_type=between,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=kind == NARROW,
            nodes_to_exclude=[n.name for n in graph.node if n.op_type == "Softmax"],
        )
        return onnx.load(result)


class _Samples:
    """Random inputs, as the tool asks for them."""

    def __init__(self, graph: onnx.GraphProto, seed: int) -> None:
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [one for one in graph.input if one.name not in constants]
        generator = np.random.default_rng(seed)
        self._left = iter(
            [{one.name: _drawn(one, generator) for one in inputs} for _ in range(_SAMPLES)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def _drawn(one: onnx.ValueInfoProto, generator: np.random.Generator) -> Any:
    """As a job draws inputs: whole numbers may be places in a table, or conditions."""
    tensor = one.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "f":
        return generator.uniform(-1.0, 1.0, shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The tool has advice for whoever calls it, by the root logger and on standard output."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
