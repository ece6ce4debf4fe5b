"""Models in half precision: float16 and bfloat16.

A processor computes them in single precision, as other runtimes do: few have arithmetic of 16 bits,
and sums in it are bad ones. What goes in and comes out keeps its type. For a GPU values stay in 16
bits between the kernels (`relax.half`), where the kernels are known to take them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.frontend.dtypes import HALF, numpy_dtype
from tunefarm.frontend.onnx.passes import Graph, value_types

_HALF = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that name the type of a result."""
_IN_16_BITS = frozenset(
    {
        *("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention"),
        *(
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Neg",
            "Abs",
            "Sqrt",
            "Exp",
            "Erf",
            "Tanh",
            "Sigmoid",
            "Gelu",
        ),
        *("Relu", "LeakyRelu", "Where", "Equal", "Greater", "Less"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "Softmax", "LogSoftmax"),
        *("LayerNormalization", "BatchNormalization", "InstanceNormalization"),
        *("Cast", "Concat", "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "Flatten"),
        *("Gather", "Identity", "Pad", "Reshape", "Shape", "Slice", "SpaceToDepth", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
"""Operators whose kernels take half precision, and sum in single precision where they sum."""


def half_types(model: onnx.ModelProto) -> frozenset[str]:
    """Which of both the model's constants, inputs, outputs and casts have."""
    graph = model.graph
    found = {tensor.data_type for tensor in graph.initializer}
    found |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    for node in graph.node:
        found |= {a.i for a in node.attribute if a.name in _TYPES}
        found |= {a.t.data_type for a in node.attribute if a.HasField("t")}
    return frozenset(_HALF[one] for one in found if one in _HALF)


def widen_inside(graph: Graph) -> None:
    """Compute in float32 what the graph computes in half precision; the types of its inputs and
    outputs stay."""
    _in_float32(graph)
    ends = graph.model.graph
    inputs = {value.name for value in ends.input} - set(graph.constants)
    names: dict[str, str] = {}
    first, last = [], []
    for value in (*ends.input, *ends.output):
        kind = value.type.tensor_type.elem_type
        if kind not in _HALF or value.name in names:
            continue
        inner = f"{value.name}::float32"
        if value.name in inputs:
            first.append(_cast(value.name, inner, TensorProto.FLOAT))
        elif value.name in graph.outputs:
            last.append(_cast(inner, value.name, kind))
        else:
            continue  # a constant that an old file lists among the inputs
        names[value.name] = inner
        if value.name in graph.constants:
            graph.constants[inner] = graph.constants.pop(value.name)
            kept = [one for one in ends.input if one.name != value.name]
            del ends.input[:]
            ends.input.extend(kept)
    graph.rename(names)
    for node in graph.nodes:
        node.output[:] = [names.get(name, name) for name in node.output]
    graph.nodes = [*first, *graph.nodes, *last]


def widen_islands(graph: Graph) -> None:
    """Compute in float32, between casts, what has no kernels for half precision."""
    types = {name: dtype.name for name, (_, dtype) in value_types(graph).items()}
    types |= {name: array.dtype.name for name, array in graph.constants.items()}
    nodes: list[onnx.NodeProto] = []
    for number, node in enumerate(graph.nodes):
        if node.op_type in _IN_16_BITS or not any(types.get(n) in HALF for n in node.output):
            nodes.append(node)
            continue
        wide = {name: f"{name}::{number}" for name in node.input if types.get(name) in HALF}
        for name, inner in wide.items():
            if name in graph.constants:
                graph.constants[inner] = graph.constants[name].astype(np.float32)
            else:
                nodes.append(_cast(name, inner, TensorProto.FLOAT))
        node.input[:] = [wide.get(name, name) for name in node.input]
        nodes.append(node)
        for place, name in enumerate(node.output):
            if types.get(name) in HALF:
                node.output[place] = f"{name}::{number}"
                nodes.append(_cast(node.output[place], name, _number(types[name])))
    graph.nodes = nodes


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that computes in float32 from end to end, inputs and outputs included."""
    graph = Graph(_copy(model))
    _in_float32(graph)
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        if value.type.tensor_type.elem_type in _HALF:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return graph.store()


def narrowed(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """A copy of a float32 model, with all of its numbers in `kind` (``float16``, ``bfloat16``);
    those beyond its range become its largest, as a mask's do, and infinite ones stay so."""
    graph, number, dtype = Graph(_copy(model)), _number(kind), numpy_dtype(kind)
    most = 65504.0 if kind == "float16" else np.inf

    def narrow(array: Any) -> Any:
        return np.where(np.isinf(array), array, np.clip(array, -most, most)).astype(dtype)

    for name, array in graph.constants.items():
        if array.dtype == np.float32:
            graph.constants[name] = narrow(array)
    for node in graph.nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
                attribute.i = number
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                values = narrow(numpy_helper.to_array(attribute.t))
                attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type == TensorProto.FLOAT:
            tensor.elem_type = number
    return graph.store()


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _number(kind: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(numpy_dtype(kind)))


def _cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], to=kind)


def _in_float32(graph: Graph) -> None:
    for name, array in graph.constants.items():
        if array.dtype.name in HALF:
            graph.constants[name] = array.astype(np.float32)
    for node in graph.nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _HALF:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t") and attribute.t.data_type in _HALF:
                values = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(values, attribute.t.name))
