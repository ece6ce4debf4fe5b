"""Activations that quantising makes needless."""

from __future__ import annotations

import onnx

from tunefarm.frontend.onnx.passes import Graph, attribute
from tunefarm.frontend.quantised.scale import QUANTISE, Scale, scale_of

_Ends = tuple[float | None, float | None]
"""The least and the largest value that something lets through; None where there is none."""


def drop_bounds(graph: Graph) -> None:
    """Leave out what bounds a tensor that is quantised next, where the ends of its type bound it at
    least as much: the larger a value, the larger its number, so that what lies beyond such a bound
    and the bound itself come to the same end."""
    readers, used = graph.readers(), graph.uses()
    needless: dict[str, str] = {}
    for node in reversed(graph.nodes):  # of two, one before the other, the latter first
        bounds = _bounds(graph, node)
        if bounds is None or used[node.output[0]] != 1:
            continue
        (reader,) = readers.get(node.output[0], [None])  # none: an output of the model
        while reader and reader.output[0] in needless:
            (reader,) = readers[reader.output[0]]
        scale = scale_of(graph, reader) if reader and reader.op_type == QUANTISE else None
        if scale is not None and _bounds_no_less(scale, bounds):
            needless[node.output[0]] = node.input[0]
    graph.nodes = [node for node in graph.nodes if node.output[0] not in needless]
    graph.rename(needless)


def _bounds_no_less(scale: Scale, bounds: _Ends) -> bool:
    if not scale.scale > 0:
        return False
    least, most = bounds
    low, high = scale.ends
    below = least is None or scale.number(least) == low
    above = most is None or scale.number(most) == high
    return below and above


def _bounds(graph: Graph, node: onnx.NodeProto) -> _Ends | None:
    """Of an activation that is nothing else; None where it is, or they are not known."""
    if node.op_type == "Relu":
        return 0.0, None
    if node.op_type != "Clip":
        return None
    if len(node.input) == 1:  # as it was before opset 11
        return attribute(node, "min", None), attribute(node, "max", None)
    ends: list[float | None] = [None, None]
    for place, name in enumerate(node.input[1:]):
        if not name:
            continue
        if name not in graph.constants:
            return None
        ends[place] = float(graph.constants[name].reshape(()))
    return ends[0], ends[1]
