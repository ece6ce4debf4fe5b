"""Channel shuffles, which stand between grouped convolutions, moved to where they cost nothing.

A shuffle before a depthwise convolution is a shuffle after it, of a convolution whose filters are
permuted. After it, what follows is most often a grouped 1x1 convolution, which reads its channels
one by one: in an order of its own as well as in the tensor's (`relax.layout.absorb_shuffles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tunefarm.frontend.onnx.passes import Graph, Shape

LARGEST = 2**26
"""Elements of a tensor through which positions are sent, 25 bytes for each; a larger one keeps its
shuffle."""


Move = tuple[str, Sequence[int] | None]
"""A step of a rearrangement: ("reshape", sizes) or ("transpose", order), None for reversed."""


def shuffle_order(channels: int, groups: int) -> NDArray[np.int64]:
    """Of each channel of a shuffle's result, the channel of its source."""
    place = np.arange(channels)
    return place % groups * (channels // groups) + place // groups


def shuffled_groups(moves: Sequence[Move], shape: Shape, axis: int) -> int | None:
    """The groups of the channel shuffle that `moves` make of a tensor of `shape`, which has its
    channels on `axis`; None where they make something else, or nothing."""
    if not moves or prod(shape) > LARGEST:
        return None
    source = np.arange(prod(shape)).reshape(shape)
    moved = source
    for kind, how in moves:
        moved = moved.reshape(how or ()) if kind == "reshape" else moved.transpose(how)
    if moved.shape != shape:
        return None
    first = tuple(slice(None) if place == axis else 0 for place in range(len(shape)))
    order = moved[first] // prod(shape[axis + 1 :]) % shape[axis]
    if not np.array_equal(source.take(order, axis), moved):
        return None
    channels = shape[axis]
    fitting = (g for g in range(2, channels) if channels % g == 0)
    return next((g for g in fitting if np.array_equal(order, shuffle_order(channels, g))), None)


def shuffles_after_depthwise(graph: Graph) -> None:
    """A shuffle before a depthwise convolution is done after it instead."""
    shapes = graph.shapes()
    producers = {name: node for node in graph.nodes for name in node.output}
    used = graph.uses()
    after: dict[str, list[onnx.NodeProto]] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        result = shapes.get(node.output[0])
        if result is None or not _is_depthwise(graph, node) or node.output[0] in graph.outputs:
            continue
        chain = _chain(producers, used, graph, node.input[0])
        source = chain[0].input[0] if chain else ""
        groups = _groups(chain, graph, shapes.get(source))
        if groups is None:
            continue
        gone.update(one.output[0] for one in chain)
        _permute_filters(graph, node, groups)
        node.input[0] = source
        name = node.output[0]
        node.output[0] = f"{name}::unshuffled"
        after[node.output[0]] = _shuffle_nodes(graph, node.output[0], name, result, groups)
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        if node.output[0] not in gone:
            nodes += [node, *after.get(node.output[0], ())]
    graph.nodes = nodes


def _is_depthwise(graph: Graph, node: onnx.NodeProto) -> bool:
    if node.op_type != "Conv" or not all(name in graph.constants for name in node.input[1:]):
        return False
    filters = graph.constants[node.input[1]]
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    return bool(groups > 1 and groups == filters.shape[0] and filters.shape[1] == 1)


def _chain(
    producers: dict[str, onnx.NodeProto], used: dict[str, int], graph: Graph, name: str
) -> list[onnx.NodeProto]:
    """The reshapes and transposes that alone make `name`, first one first."""
    chain: list[onnx.NodeProto] = []
    while (
        (node := producers.get(name)) is not None
        and used[name] == 1
        and (
            node.op_type == "Transpose"
            or (node.op_type == "Reshape" and node.input[1] in graph.constants)
        )
    ):
        chain.insert(0, node)
        name = node.input[0]
    return chain


def _groups(chain: Sequence[onnx.NodeProto], graph: Graph, shape: Shape | None) -> int | None:
    """Of the channel shuffle that `chain` makes of a (N, C, H, W) tensor; None where it is none."""
    if shape is None or len(shape) != 4:
        return None
    moves: list[Move] = []
    sizes = list(shape)
    for node in chain:
        if node.op_type == "Reshape":
            if any(a.name == "allowzero" and a.i for a in node.attribute):
                return None
            wanted = graph.constants[node.input[1]].tolist()
            sizes = [size or sizes[place] for place, size in enumerate(wanted)]
            known = max(1, prod(size for size in sizes if size > 0))
            sizes = [prod(shape) // known if size < 0 else size for size in sizes]
            moves.append(("reshape", sizes))
        else:
            order = next((list(a.ints) for a in node.attribute if a.name == "perm"), None)
            sizes = [sizes[place] for place in order] if order else sizes[::-1]
            moves.append(("transpose", order))
    return shuffled_groups(moves, shape, 1)


def _permute_filters(graph: Graph, node: onnx.NodeProto, groups: int) -> None:
    """Let the convolution do before the shuffle what it did after it."""
    for place in range(1, len(node.input)):
        old = graph.constants[node.input[place]]
        new = np.empty_like(old)
        new[shuffle_order(len(old), groups)] = old
        name = f"{node.output[0]}::permuted{place}"
        graph.constants[name] = new
        node.input[place] = name


def _shuffle_nodes(
    graph: Graph, source: str, result: str, shape: Shape, groups: int
) -> list[onnx.NodeProto]:
    batch, channels, *image = shape
    sizes = {
        f"{result}::groups": (batch, groups, channels // groups, *image),
        f"{result}::channels": shape,
    }
    for name, values in sizes.items():
        graph.constants[name] = np.array(values, np.int64)
    apart, together = sizes
    return [
        helper.make_node("Reshape", [source, apart], [f"{result}::apart"]),
        helper.make_node(
            "Transpose", [f"{result}::apart"], [f"{result}::shuffled"], perm=[0, 2, 1, 3, 4]
        ),
        helper.make_node("Reshape", [f"{result}::shuffled", together], [result]),
    ]
