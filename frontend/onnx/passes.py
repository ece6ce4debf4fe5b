"""Passes over the ONNX graph that leave less for the compiler: pure, each with the same result.

They run before the import because the compiler folds constants by compiling a kernel for each
(45 s of DenseNet-121's import), and because its layout conversion stops at Dropout and Sum.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tunefarm.frontend.dtypes import HALF

Array = NDArray[np.generic]
Shape = tuple[int, ...]
_FOLDABLE = frozenset(
    {
        *("Constant", "ConstantOfShape", "Range", "Identity", "Cast"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Sqrt", "Floor", "Ceil", "Min", "Max"),
        *("Abs", "Cos", "Exp", "Log", "Pow", "Reciprocal", "Round", "Sign", "Sin"),
        *("Equal", "Less", "Greater", "Not", "And", "Or", "Where", "ReduceProd"),
        *("Clip", "Flatten", "GreaterOrEqual", "LessOrEqual", "NonZero"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
        *("BatchNormalization", "CumSum", "MelWeightMatrix", "Tile", "Trilu"),
        *("Concat", "Expand", "Gather", "Reshape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
_SUMS = frozenset(
    {"ReduceSum", "ReduceMean", "ReduceProd", "CumSum", "BatchNormalization", "MatMul"}
)
"""What of numbers in half precision would be summed in that: see `half`."""
_SIZES = ("Shape", "Size")
_CLIP_READS_BOUNDS = 11  # the opset since which they are inputs
_SHAPE_LIMIT = 1024
"""Elements of a constant that may be a shape."""
_FLOATS = ("float32", *HALF)
_FOLD_LIMIT = 2**27  # elements: a larger constant stays an operation


class Graph:
    """An ONNX graph as passes want it: constants by name, consumers counted, nodes in order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.opset: int = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.constants: dict[str, Array] = {
            i.name: numpy_helper.to_array(i) for i in model.graph.initializer
        }
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.outputs = {o.name for o in model.graph.output}
        self._numbers = itertools.count()

    def fresh(self, hint: str) -> str:
        """A name that nothing has, nor will have by this."""
        while (name := f"{hint}/{next(self._numbers)}") in self._taken:
            pass
        return name

    @cached_property
    def _taken(self) -> frozenset[str]:
        """The names of the model as it came."""
        graph = self.model.graph
        values = (*graph.input, *graph.output, *graph.initializer)
        found = {value.name for value in values}.union(self.constants)
        for node in self.nodes:
            found.update(named(node))
        return frozenset(found)

    def uses(self) -> Counter[str]:
        counts = Counter(name for node in self.nodes for name in read(node))
        counts.update(self.outputs)
        return counts

    def readers(self) -> defaultdict[str, list[onnx.NodeProto]]:
        """By what they read."""
        found: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in node.input:
                found[name].append(node)
        return found

    def branches(self) -> bool:
        """Whether there are graphs inside it: what those read of it is in no node's inputs."""
        return any(True for node in self.nodes for _ in graphs_of(node))

    def rename(self, names: dict[str, str]) -> None:
        """Let every consumer of a key read its value instead."""

        def final(name: str) -> str:
            while name in names:
                name = names[name]
            return name

        for node in self.nodes:
            for index, name in enumerate(node.input):
                node.input[index] = final(name)

    def store(self) -> onnx.ModelProto:
        used = self.uses()
        constants = {name: array for name, array in self.constants.items() if used[name]}
        graph = self.model.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(a, order="C"), n) for n, a in constants.items()
        )
        inputs = [i for i in graph.input if i.name not in self.constants]
        del graph.input[:]
        graph.input.extend(inputs)
        return self.model

    def inferred(self) -> onnx.GraphProto:
        """The graph with the type of every value, as far as ONNX infers it. Of a large constant
        only its type is told: what it holds says nothing of shapes, and copying it takes long."""
        used = self.uses()
        constants = {name: array for name, array in self.constants.items() if used[name]}
        small = {name: array for name, array in constants.items() if array.size <= _SHAPE_LIMIT}
        inputs = [i for i in self.model.graph.input if i.name not in self.constants]
        inputs += [
            helper.make_tensor_value_info(name, _dtype(array), list(array.shape))
            for name, array in constants.items()
            if name not in small
        ]
        graph = helper.make_graph(
            self.nodes,
            "inferred",
            inputs,
            list(self.model.graph.output),
            [numpy_helper.from_array(np.asarray(a, order="C"), n) for n, a in small.items()],
        )
        model = helper.make_model(graph, ir_version=self.model.ir_version)
        del model.opset_import[:]
        model.opset_import.extend(self.model.opset_import)
        return onnx.shape_inference.infer_shapes(model).graph

    def shapes(self) -> dict[str, Shape]:
        """Of all values whose sizes are known."""
        inferred = self.inferred()
        found: dict[str, Shape] = {name: array.shape for name, array in self.constants.items()}
        for value in (*inferred.value_info, *inferred.input, *inferred.output):
            tensor = value.type.tensor_type
            if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
                found[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
        return found


def is_standard(node: onnx.NodeProto) -> bool:
    """Whether its operator is one of the ONNX standard's."""
    return node.domain in ("", "ai.onnx")


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Its branches, or its body."""
    for one in node.attribute:
        if one.HasField("g"):
            yield one.g
        yield from one.graphs


def read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, and what graphs inside it read (of what is around them, too)."""
    yield from node.input
    for graph in graphs_of(node):
        yield from (output.name for output in graph.output)
        for inner in graph.node:
            yield from read(inner)


def named(node: onnx.NodeProto) -> Iterator[str]:
    """All names in a node, and in graphs inside it."""
    yield from (*node.input, *node.output)
    for graph in graphs_of(node):
        yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
        for inner in graph.node:
            yield from named(inner)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Of a node, `default` where it has no such attribute."""
    values = (helper.get_attribute_value(a) for a in node.attribute if a.name == name)
    return next(values, default)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    unset_attribute(node, name)
    node.attribute.append(helper.make_attribute(name, value))


def unset_attribute(node: onnx.NodeProto, name: str) -> None:
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def fold_constants(graph: Graph) -> None:
    """What does not depend on what the inputs hold is a constant: what is computed of constants,
    and of sizes, by which exporters reshape. That of a size some other sizes may depend on."""
    _evaluate(graph)
    while _state_sizes(graph):
        _evaluate(graph)


def _state_sizes(graph: Graph) -> bool:
    """Each Shape or Size of a value whose sizes are known becomes a Constant; whether one did."""
    if not any(node.op_type in _SIZES for node in graph.nodes):
        return False
    shapes, stated = graph.shapes(), False
    for index, node in enumerate(graph.nodes):
        asks = node.op_type in _SIZES and is_standard(node)
        shape = shapes.get(node.input[0]) if asks else None
        if shape is None:
            continue
        asked = shape[attribute(node, "start", 0) : attribute(node, "end", None)]
        size = math.prod(shape) if node.op_type == "Size" else asked
        value = numpy_helper.from_array(np.array(size, np.int64))
        graph.nodes[index] = helper.make_node("Constant", [], node.output, value=value)
        stated = True
    return stated


def _evaluate(graph: Graph) -> None:
    """With ONNX's reference evaluator: generators of constants, and arithmetic on them."""
    nodes = []
    for node in graph.nodes:
        foldable = (
            node.op_type in _FOLDABLE
            and is_standard(node)
            and all(name in graph.constants or not name for name in node.input)
        )
        if not foldable or set(node.output) & graph.outputs:
            nodes.append(node)
            continue
        values = {name: graph.constants[name] for name in node.input if name}
        summed = node.op_type in _SUMS and any(v.dtype.name in HALF for v in values.values())
        if summed or max(sum(v.size for v in values.values()), _made(node, values)) > _FOLD_LIMIT:
            nodes.append(node)
            continue
        onnx_graph = helper.make_graph(
            [node],
            "fold",
            [helper.make_tensor_value_info(n, _dtype(v), list(v.shape)) for n, v in values.items()],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        one = helper.make_model(
            onnx_graph, opset_imports=[helper.make_opsetid("", graph.opset)], ir_version=8
        )
        results = ReferenceEvaluator(one).run(None, values)
        for name, result in zip(filter(None, node.output), results, strict=True):
            graph.constants[name] = np.asarray(result)
    graph.nodes = nodes


def _made(node: onnx.NodeProto, values: dict[str, Array]) -> int:
    """Elements of what a node makes of constants, where they may be many more than it reads."""
    given = [values[name] for name in node.input if name]
    match node.op_type:
        case "ConstantOfShape":
            return math.prod(map(int, given[0].reshape(-1)))
        case "Expand":
            wanted = tuple(int(size) for size in given[1].reshape(-1))
            sides = itertools.zip_longest(wanted[::-1], given[0].shape[::-1], fillvalue=1)
            return math.prod(max(*pair) for pair in sides)
        case "Tile":
            return int(given[0].size) * math.prod(map(int, given[1].reshape(-1)))
        case "Range":
            start, limit, delta = (float(one.reshape(-1)[0]) for one in given)
            return int(abs((limit - start) / delta)) if delta else 0
        case "MelWeightMatrix":
            return int(given[0].item()) * (int(given[1].item()) // 2 + 1)
    return 0


def _dtype(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def drop_identities(graph: Graph) -> None:
    """Dropout at inference and Identity are nothing (unless their mask is read)."""
    used = graph.uses()
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        gone = is_standard(node) and (
            node.op_type == "Identity"
            or (node.op_type == "Dropout" and not any(used[name] for name in node.output[1:]))
        )
        if gone and node.output[0] not in graph.outputs:
            names[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    graph.nodes = nodes
    graph.rename(names)


def sum_to_add(graph: Graph) -> None:
    """A two-input Sum is an Add (the importer would stack the operands)."""
    for node in graph.nodes:
        if node.op_type == "Sum" and len(node.input) == 2:
            node.op_type = "Add"


def extremes_to_clip(graph: Graph) -> None:
    """The larger or the smaller of a tensor and one number is a Clip.

    The importer would stack both.
    """
    if graph.opset < _CLIP_READS_BOUNDS:
        return
    for node in graph.nodes:
        if node.op_type not in ("Max", "Min") or len(node.input) != 2:
            continue
        numbers = [n for n in node.input if n in graph.constants and graph.constants[n].size == 1]
        tensors = [n for n in node.input if n not in graph.constants]
        if len(numbers) != 1 or len(tensors) != 1:
            continue
        bound = f"{node.output[0]}/bound"
        graph.constants[bound] = np.reshape(graph.constants[numbers[0]], ())
        bounds = [bound] if node.op_type == "Max" else ["", bound]
        node.op_type = "Clip"
        node.input[:] = [*tensors, *bounds]


@dataclass
class _Affine:
    """y = scale * x + shift per channel of a (N, C, ...) tensor of this type."""

    scale: NDArray[np.float64]
    shift: NDArray[np.float64]
    source: str
    rank: int
    dtype: np.dtype[Any]


def fold_affine(graph: Graph) -> None:
    """Fold per-channel scales and shifts (BatchNormalization, Mul, Add) into the convolution
    before them; where there is none, into one multiplication and one addition."""
    types = value_types(graph)
    used = graph.uses()
    producers = {name: node for node in graph.nodes for name in node.output}
    pending: dict[str, _Affine] = {}
    nodes: list[onnx.NodeProto] = []

    def emit(name: str) -> None:
        if name in pending:
            nodes.extend(_affine_nodes(graph, name, pending.pop(name)))

    for node in graph.nodes:
        affine = _as_affine(graph, node, types)
        if affine is None:
            for name in node.input:
                emit(name)
            nodes.append(node)
            continue
        before = pending.get(affine.source)
        if before is not None and used[affine.source] == 1:
            del pending[affine.source]
            affine.shift = affine.scale * before.shift + affine.shift
            affine.scale = affine.scale * before.scale
            affine.source = before.source
        else:
            emit(affine.source)
        conv = producers.get(affine.source)
        if (
            conv is not None
            and conv.op_type == "Conv"
            and used[affine.source] == 1
            and conv.input[1] in graph.constants
            and all(name in graph.constants for name in conv.input[2:])
        ):
            _fold_into_conv(graph, conv, affine)
            conv.output[0] = node.output[0]
            producers[node.output[0]] = conv
        else:
            pending[node.output[0]] = affine
    for name in list(pending):
        emit(name)
    graph.nodes = nodes


def value_types(graph: Graph) -> dict[str, tuple[int, np.dtype[Any]]]:
    """Rank and element type of what ONNX infers them of."""
    inferred = graph.inferred()
    tensors = {
        value.name: value.type.tensor_type
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    return {
        name: (len(tensor.shape.dim), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        for name, tensor in tensors.items()
        if tensor.elem_type
    }


def _as_affine(
    graph: Graph, node: onnx.NodeProto, types: dict[str, tuple[int, np.dtype[Any]]]
) -> _Affine | None:
    constants = graph.constants
    if node.op_type == "BatchNormalization" and len(node.output) == 1:
        if not all(name in constants for name in node.input[1:]):
            return None
        gamma, beta, mean, var = (constants[n].astype(np.float64) for n in node.input[1:])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        scale = gamma / np.sqrt(var + epsilon)
        rank, dtype = types.get(node.input[0], (4, constants[node.input[1]].dtype))
        return _Affine(scale, beta - mean * scale, node.input[0], rank, dtype)
    if node.op_type in ("Mul", "Add") and len(node.input) == 2:
        known = [name in constants for name in node.input]
        if sum(known) != 1:
            return None
        source, constant = node.input[known.index(False)], constants[node.input[known.index(True)]]
        rank, dtype = types.get(source, (0, constant.dtype))
        shape = (1,) * (rank - constant.ndim) + constant.shape
        per_channel = rank >= 3 and len(shape) == rank and max(shape[:1] + shape[2:]) == 1
        if not per_channel or constant.dtype.name not in _FLOATS:
            return None
        values = constant.reshape(shape[1]).astype(np.float64)
        if node.op_type == "Mul":
            return _Affine(values, np.zeros_like(values), source, rank, dtype)
        return _Affine(np.ones_like(values), values, source, rank, dtype)
    return None


def _fold_into_conv(graph: Graph, conv: onnx.NodeProto, affine: _Affine) -> None:
    weight = graph.constants[conv.input[1]].astype(np.float64)
    dtype = graph.constants[conv.input[1]].dtype
    channels = weight.shape[0]
    bias = (
        graph.constants[conv.input[2]].astype(np.float64)
        if len(conv.input) > 2
        else np.zeros(channels)
    )
    scale = np.broadcast_to(affine.scale, (channels,))
    shape = (channels,) + (1,) * (weight.ndim - 1)
    names = [f"{conv.output[0]}::weight", f"{conv.output[0]}::bias"]
    graph.constants[names[0]] = (weight * scale.reshape(shape)).astype(dtype)
    graph.constants[names[1]] = (bias * scale + affine.shift).astype(dtype)
    del conv.input[1:]
    conv.input.extend(names)


def _affine_nodes(graph: Graph, name: str, affine: _Affine) -> list[onnx.NodeProto]:
    shape = (1, -1) + (1,) * (affine.rank - 2)
    nodes, source = [], affine.source
    parts = [("Mul", affine.scale, 1.0), ("Add", affine.shift, 0.0)]
    needed = [part for part in parts if not np.all(part[1] == part[2])] or parts[-1:]
    for index, (op, values, _) in enumerate(needed):
        constant = f"{name}::{op.lower()}"
        graph.constants[constant] = values.reshape(shape).astype(affine.dtype)
        output = name if index == len(needed) - 1 else f"{name}::scaled"
        nodes.append(helper.make_node(op, [source, constant], [output]))
        source = output
    return nodes


PASSES: tuple[Callable[[Graph], None], ...] = (
    fold_constants,
    drop_identities,
    sum_to_add,
    extremes_to_clip,
    fold_affine,
)
