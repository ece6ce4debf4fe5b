"""Models in half precision: float16 and bfloat16.

A processor computes them in single precision, as other runtimes do: few have arithmetic of 16 bits,
and sums in it are bad ones. What goes in and comes out keeps its type. For a GPU values stay in 16
bits between the kernels (`relax_half`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.frontend.onnx_passes import Graph

_HALF = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that name the type of a result."""


def half_types(model: onnx.ModelProto) -> frozenset[str]:
    """Which of both the model's constants, inputs, outputs and casts have."""
    graph = model.graph
    found = {tensor.data_type for tensor in graph.initializer}
    found |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    for node in graph.node:
        found |= {a.i for a in node.attribute if a.name in _TYPES}
        found |= {a.t.data_type for a in node.attribute if a.HasField("t")}
    return frozenset(_HALF[one] for one in found if one in _HALF)


def widen(graph: Graph) -> None:
    """Compute in float32 what the graph computes in half precision; the types of its inputs and
    outputs stay."""
    _in_float32(graph)
    inputs = {value.name for value in graph.model.graph.input} - set(graph.constants)
    names: dict[str, str] = {}
    starts, ends = [], []
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        kind = value.type.tensor_type.elem_type
        if kind not in _HALF or value.name in names:
            continue
        inner = names[value.name] = f"{value.name}::float32"
        if value.name in inputs:
            starts.append(_cast(value.name, inner, TensorProto.FLOAT))
            continue
        if value.name in graph.constants:
            graph.constants[inner] = graph.constants.pop(value.name)
        if value.name in graph.outputs:
            ends.append(_cast(inner, value.name, kind))
    graph.rename(names)
    for node in graph.nodes:
        node.output[:] = [names.get(name, name) for name in node.output]
    graph.nodes = [*starts, *graph.nodes, *ends]


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that computes in float32 from end to end, inputs and outputs included."""
    graph = Graph(_copy(model))
    _in_float32(graph)
    for value in (*graph.model.graph.input, *graph.model.graph.output):
        _widen_value(value)
    return graph.store()


def narrowed(model: onnx.ModelProto, kind: str) -> onnx.ModelProto:
    """A copy of a float32 model, with all of its numbers in `kind` (``float16``, ``bfloat16``)."""
    number = next(n for n, name in _HALF.items() if name == kind)
    graph = Graph(_copy(model))
    dtype = helper.tensor_dtype_to_np_dtype(number)
    for name, array in graph.constants.items():
        if array.dtype == np.float32:
            graph.constants[name] = array.astype(dtype)
    for node in graph.nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == TensorProto.FLOAT:
                attribute.i = number
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t).astype(dtype)
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


def _cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], to=kind)


def _in_float32(graph: Graph) -> None:
    for name, array in graph.constants.items():
        if array.dtype.name in _HALF.values():
            graph.constants[name] = array.astype(np.float32)
    _widen_nodes(graph.nodes)
    for function in graph.model.functions:
        _widen_nodes(function.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _HALF:
                attribute.i = TensorProto.FLOAT
            for tensor in (attribute.t, *attribute.tensors):
                _widen_tensor(tensor)
            for inner in (attribute.g, *attribute.graphs):
                _widen_subgraph(inner)


def _widen_subgraph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_value(value)
    _widen_nodes(graph.node)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _HALF:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _widen_value(value: onnx.ValueInfoProto) -> None:
    tensor = value.type.tensor_type
    if tensor.elem_type in _HALF:
        tensor.elem_type = TensorProto.FLOAT
