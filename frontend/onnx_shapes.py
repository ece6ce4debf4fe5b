"""Shapes that a graph computes as it runs, which are known before it does: exporters ask a tensor
for its size and reshape by it. With the inputs' shapes bound, all of that is constants."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tunefarm.frontend.onnx_passes import Graph, attribute, fold_constants


def fold_shapes(graph: Graph) -> None:
    """Shape and Size of what has a fixed shape are constants, and so is what follows from them."""
    while True:
        fold_constants(graph)
        asked = [node for node in graph.nodes if node.op_type in ("Shape", "Size")]
        if not asked:
            return
        shapes = _known(graph)
        folded = [node for node in asked if _fold(graph, node, shapes.get(node.input[0]))]
        if not folded:
            return  # those that are left are the importer's


def _known(graph: Graph) -> dict[str, tuple[int, ...]]:
    inferred = graph.inferred(through_shapes=True)
    found = {name: array.shape for name, array in graph.constants.items()}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            found[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return found


def _fold(graph: Graph, node: onnx.NodeProto, shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return False
    if node.op_type == "Size":
        value = np.array(np.prod(shape, dtype=np.int64), np.int64)
    else:
        part = slice(attribute(node, "start", 0), attribute(node, "end", None))
        value = np.array(shape[part], np.int64)
    index, (name,) = graph.nodes.index(node), node.output
    if name in graph.outputs:  # has to be some node's
        constant = f"{name}_known"
        graph.constants[constant] = value
        graph.nodes[index] = helper.make_node("Identity", [constant], [name])
    else:
        graph.constants[name] = value
        del graph.nodes[index]
    return True
