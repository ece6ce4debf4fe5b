"""One node of an ONNX graph that is to become others, and what is known of what it reads."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import helper

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.onnx.passes import Array, Graph, Shape, attribute

AXES_ARE_INPUTS = 13
"""The opset since which Squeeze, Unsqueeze, Split and ReduceSum read their axes or sizes."""
BOUNDS_ARE_INPUTS = 10
"""The opset since which Slice reads what it cuts out."""
_SPLIT_MOST = 64
NEGATIVE_AXES = 11
"""The opset since which Unsqueeze and Concat count axes from the end, too."""
WHERE = 9
"""The opset since which there is Where."""
MOST_ELEMENTS = 2**27
"""Of a constant that a rule makes."""


class Facts:
    """Shapes and types of a graph's values, inferred when one is asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    @cached_property
    def inferred(self) -> dict[str, onnx.NodeProto]:
        """The nodes by what they make, graphs inside them with the types of what is in them."""
        return {name: node for node in self._graph.node for name in node.output}

    @cached_property
    def _graph(self) -> onnx.GraphProto:
        return self.graph.inferred()

    @cached_property
    def makers(self) -> dict[str, onnx.NodeProto]:
        """The nodes by what they make."""
        return {name: node for node in self.graph.nodes for name in node.output}

    @cached_property
    def _tensors(self) -> dict[str, onnx.TypeProto.Tensor]:
        graph = self._graph
        values = (*graph.value_info, *graph.input, *graph.output)
        return {value.name: value.type.tensor_type for value in values}

    def shape(self, name: str) -> Shape | None:
        """None where a size is not known."""
        if name in self.graph.constants:
            return self.graph.constants[name].shape
        tensor = self._tensors.get(name)
        return None if tensor is None else known_shape(tensor)

    def type(self, name: str) -> int:
        """ONNX's number of it; 0 where that is not known."""
        if name in self.graph.constants:
            return int(helper.np_dtype_to_tensor_dtype(self.graph.constants[name].dtype))
        tensor = self._tensors.get(name)
        return 0 if tensor is None else int(tensor.elem_type)

    def type_proto(self, name: str) -> onnx.TypeProto | None:
        """None where the type is not known; the shape may not be."""
        number = self.type(name)
        if not number:
            return None
        return helper.make_tensor_type_proto(number, self.shape(name))


def known_shape(tensor: onnx.TypeProto.Tensor) -> Shape | None:
    """None where a size is not known."""
    if not tensor.HasField("shape"):
        return None
    dims = tensor.shape.dim
    known = all(dim.HasField("dim_value") for dim in dims)
    return tuple(dim.dim_value for dim in dims) if known else None


@dataclass
class Site:
    """What a rule sees of `node`, and the `nodes`, at most so many, that it puts in its place."""

    node: onnx.NodeProto
    facts: Facts
    most: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _constants: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.facts.graph

    @property
    def opset(self) -> int:
        return self.graph.opset

    def attribute(self, name: str, default: Any) -> Any:
        return attribute(self.node, name, default)

    def input(self, index: int) -> str:
        """Its name; empty where the node has none there."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def output(self, index: int) -> str:
        return self.node.output[index] if index < len(self.node.output) else ""

    def shape(self, index: int) -> Shape | None:
        """Of an input."""
        return self.facts.shape(self.input(index)) if self.input(index) else None

    def value(self, index: int) -> Array | None:
        """Of an input that is a constant."""
        return self.graph.constants.get(self.input(index))

    def dtype(self, index: int) -> np.dtype[Any] | None:
        """Of an input's elements."""
        number = self.facts.type(self.input(index))
        return helper.tensor_dtype_to_np_dtype(number) if number else None

    def add(self, node: onnx.NodeProto) -> None:
        """
        Raises:
            UnsupportedModel: there are `most` already.
        """
        self.check(len(self.nodes) + 1)
        self.nodes.append(node)

    def refuse(self, why: str) -> NoReturn:
        """
        Raises:
            UnsupportedModel: always; it names the node.
        """
        name = self.node.name or self.node.output[0]
        raise UnsupportedModel(f"{self.node.op_type} (node {name!r}) {why}")

    def check(self, count: int) -> None:
        """
        Raises:
            UnsupportedModel: these are more than `most`.
        """
        if count > self.most:
            name = self.node.name or self.node.output[0]
            raise UnsupportedModel(
                f"{self.node.op_type} (node {name!r}) becomes more than {self.most} nodes",
                hint="Give it fewer steps: recurrences and loops are spelled step by step.",
            )

    def fresh(self) -> str:
        """A name that nothing has."""
        return self.graph.fresh(next(output for output in self.node.output if output))

    def constant(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value, dtype)
        digest = hashlib.blake2b(np.asarray(array, order="C").tobytes()).digest()
        key = (array.dtype.name, array.shape, digest)
        if key not in self._constants:
            self._constants[key] = self.fresh()
            self.graph.constants[self._constants[key]] = array
        return self._constants[key]

    def sizes(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, and that one's name."""
        return self.emit_many(op, *inputs, outputs=1, **attributes)[0]

    def emit_many(self, op: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [self.fresh() for _ in range(outputs)]
        self.add(helper.make_node(op, inputs, names, **attributes))
        return names

    def give(self, index: int, name: str) -> None:
        """`name` is the node's output of this index, if anything reads that."""
        if self.output(index):
            self.add(helper.make_node("Identity", [name], [self.output(index)]))

    def again(self, op: str, *inputs: str, **attributes: Any) -> None:
        """One node, with the same outputs."""
        self.add(helper.make_node(op, inputs, self.node.output, self.node.name, **attributes))

    def cast(self, name: str, number: int) -> str:
        """To a type by ONNX's number of it."""
        return self.emit("Cast", name, to=number)

    def reshape(self, name: str, *shape: int) -> str:
        return self.emit("Reshape", name, self.sizes(*shape))

    def unsqueeze(self, name: str, axis: int) -> str:
        return self._along("Unsqueeze", name, axis)

    def squeeze(self, name: str, axis: int) -> str:
        return self._along("Squeeze", name, axis)

    def _along(self, op: str, name: str, axis: int) -> str:
        if self.opset < AXES_ARE_INPUTS:
            return self.emit(op, name, axes=[axis])
        return self.emit(op, name, self.sizes(axis))

    def split(self, name: str, axis: int, parts: int, size: int = 1) -> list[str]:
        """`parts` pieces of `size` along the axis. Of many, in two steps, so that neither is a
        kernel with more arguments than a compiler likes."""
        self.check(parts)
        if parts == 1:
            return [name]
        if parts > _SPLIT_MOST:
            inner = math.isqrt(parts)
            cut = parts - parts % inner
            sizes = [inner * size] * (cut // inner) + (
                [(parts - cut) * size] if cut < parts else []
            )
            runs = self._split(name, axis, sizes)
            return [
                piece
                for run, length in zip(runs, sizes, strict=True)
                for piece in self.split(run, axis, length // size, size)
            ]
        return self._split(name, axis, [size] * parts)

    def _split(self, name: str, axis: int, sizes: list[int]) -> list[str]:
        if self.opset < AXES_ARE_INPUTS:
            return self.emit_many("Split", name, outputs=len(sizes), axis=axis, split=sizes)
        return self.emit_many("Split", name, self.sizes(*sizes), outputs=len(sizes), axis=axis)

    def slice(self, name: str, axis: int, start: int, end: int) -> str:
        if self.opset < BOUNDS_ARE_INPUTS:
            return self.emit("Slice", name, starts=[start], ends=[end], axes=[axis])
        bounds = (self.sizes(start), self.sizes(end), self.sizes(axis))
        return self.emit("Slice", name, *bounds)

    def concat(self, names: list[str], axis: int) -> str:
        return names[0] if len(names) == 1 else self.emit("Concat", *names, axis=axis)
