"""Padding that is a node of its own, as frameworks export whose padding is not symmetric.

The compiler's change of layout stops at it, and a pass over the image is what it would cost.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx

from tunefarm.frontend.onnx.passes import Graph, attribute, set_attribute, unset_attribute


def fold_padding(graph: Graph) -> None:
    """Zeros around an image that only convolutions read become padding of theirs."""
    used = graph.uses()
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.nodes:
        if node.op_type == "Conv" and attribute(node, "auto_pad", b"NOTSET") in _EXPLICIT:
            readers[node.input[0]].append(node)
    kept = []
    for node in graph.nodes:
        pads = _zeros_around(graph, node) if node.op_type == "Pad" else None
        convolutions = readers[node.output[0]]
        if pads is None or not convolutions or used[node.output[0]] != len(convolutions):
            kept.append(node)
            continue
        for one in convolutions:
            one.input[0] = node.input[0]
            _add_padding(one, pads)
    graph.nodes = kept


_EXPLICIT = (b"NOTSET", b"VALID")


def _zeros_around(graph: Graph, pad: onnx.NodeProto) -> list[int] | None:
    """What it adds before each axis of the image and then after each, None where it does more."""
    if attribute(pad, "mode", b"constant") != b"constant" or any(pad.input[3:]):
        return None
    pads, value = attribute(pad, "pads", []), attribute(pad, "value", 0.0)
    if len(pad.input) > 1:
        if any(name and name not in graph.constants for name in pad.input[1:]):
            return None
        pads = graph.constants[pad.input[1]].tolist()
        value = np.sum([graph.constants[name] for name in pad.input[2:] if name])
    axes = len(pads) // 2
    if axes < 3 or value != 0.0 or min(pads) < 0 or any((*pads[:2], *pads[axes : axes + 2])):
        return None
    return [*pads[2:axes], *pads[axes + 2 :]]


def _add_padding(convolution: onnx.NodeProto, pads: list[int]) -> None:
    own = attribute(convolution, "pads", [0] * len(pads))
    unset_attribute(convolution, "auto_pad")
    set_attribute(convolution, "pads", [a + b for a, b in zip(own, pads, strict=True)])
