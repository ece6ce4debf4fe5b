"""Reshapes that only add or drop axes of one in front of the others, moved down the graph.

Exporters and quantisers make matrices of a batch of one before a product, and a batch of them again
behind it. The data does not move, but what follows a product no longer fuses with it: of such an
encoder each bias and each activation is a kernel of its own. Whatever works on the last axes alone
computes the same before such a reshape as behind it; moved down, two of them meet and are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import helper

from tunefarm.frontend.onnx.passes import (
    Graph,
    Shape,
    attribute,
    set_attribute,
    unset_attribute,
)
from tunefarm.frontend.onnx.walk import Walk

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})
OF_ELEMENTS = frozenset(
    {
        *("Abs", "Add", "Cast", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu"),
        *("HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul"),
        *("Neg", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softplus", "Sqrt"),
        *("Sub", "Tanh"),
    }
)
"""Each element of the result is made of the elements at its place, broadcast from the right."""
_OF_TENSORS = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
"""The same, where what else they read is one number."""
_OF_ROWS = frozenset({"LayerNormalization", "Softmax", "LogSoftmax"})
"""Of the last axis, where that is theirs."""
_PRODUCTS = frozenset({"MatMul", "MatMulInteger"})
_OPSET = 13
"""Before, Softmax was of all axes from its own on, and longer ago sums said how they broadcast."""


def sink_unit_axes(graph: Graph) -> None:
    """Leaves no such reshape between a product and what follows it, where nothing else needs it."""
    reshapes = any(node.op_type in _RESHAPES for node in graph.nodes)
    if reshapes and not graph.branches() and graph.opset >= _OPSET:
        _Sinking(graph).run()


@dataclass
class _View:
    """What a tensor is: `source`, of the same elements, with other axes of one in front; `there`
    once it has been made for somebody who needs it as it is."""

    source: str
    there: bool = False


class _Sinking(Walk):
    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.views: dict[str, _View] = {}

    def moves(self, node: onnx.NodeProto) -> bool:
        return self._is_view(node) or self._moves(node)

    def _is_view(self, node: onnx.NodeProto) -> bool:
        """Takes note of a reshape of unit axes; of another one of a view, reads what that is of."""
        if node.op_type not in _RESHAPES or node.domain not in ("", "ai.onnx"):
            return False
        given, made = node.input[0], node.output[0]
        source = self.views[given].source if given in self.views else given
        if source in self.shapes and made in self.shapes and source not in self.graph.constants:
            if _core(self.shapes[source]) == _core(self.shapes[made]):
                self.views[made] = _View(source)
                return True
            if source != given and node.op_type == "Reshape":
                self.reshape(source, made, self.shapes[made])
                return True
        return False

    def _moves(self, node: onnx.NodeProto) -> bool:
        """Whether the node now works on what its first view is of, and its result is the view."""
        viewed = [n for n in node.input if n in self.views and not self.views[n].there]
        if not viewed or node.domain not in ("", "ai.onnx"):
            return False
        made = node.output[0]
        if made not in self.shapes or made in self.views:
            return False
        source = self.views[viewed[0]].source
        if node.op_type in _PRODUCTS:
            return self._product(node, source)
        if node.op_type == "Gemm":
            return self._gemm(node, source)
        if _core(self.shapes[source]) != _core(self.shapes[made]):
            return False  # something else is broadcast over it
        if node.op_type in OF_ELEMENTS:
            return self._elements(node, source)
        rank = len(self.shapes[node.input[0]])
        if node.op_type in _OF_TENSORS:
            if node.input[0] not in self.views or not all(map(self._is_one, node.input[1:])):
                return False
        elif node.op_type in _OF_ROWS:
            axis = attribute(node, "axis", -1)
            if node.input[0] not in self.views or axis not in (-1, rank - 1) or rank < 2:
                return False
            if len(self.shapes[source]) < 1 or not self._alone(node):
                return False
            set_attribute(node, "axis", -1)
        else:
            return False
        if node.op_type in _OF_TENSORS:
            unset_attribute(node, "axis")  # of one number there is none
        return self._done(node, {0: source}, self.shapes[source])

    def _alone(self, node: onnx.NodeProto) -> bool:
        """Whether it makes one tensor, of which the others would be of other shapes."""
        return not any(node.output[1:])

    def _is_one(self, name: str) -> bool:
        return not name or (name in self.shapes and math.prod(self.shapes[name]) == 1)

    def _elements(self, node: onnx.NodeProto, source: str) -> bool:
        rank, read = len(self.shapes[source]), {}
        for place, name in enumerate(node.input):
            if not name:
                continue
            if name not in self.shapes:
                return False
            own = self.views[name].source if name in self.views else name
            shape = self.shapes[own]
            if len(shape) > rank and set(shape[: len(shape) - rank]) != {1}:
                return False
            read[place] = own
        for place, own in read.items():
            if len(self.shapes[own]) > rank:
                read[place] = self._of_rank(own, rank)
        return self._done(node, read, self.shapes[source])

    def _product(self, node: onnx.NodeProto, source: str) -> bool:
        """By a constant matrix: rows of the left operand are what they were."""
        left, right = node.input[:2]
        shapes = [self.shapes[source], self.shapes[left]]
        if left not in self.views or right not in self.graph.constants:
            return False
        if self.graph.constants[right].ndim != 2 or min(map(len, shapes)) < 2:
            return False
        if shapes[0][-2:] != shapes[1][-2:] or not all(map(self._is_one, node.input[2:3])):
            return False
        return self._done(node, {0: source}, (*shapes[0][:-1], self.shapes[right][-1]))

    def _gemm(self, node: onnx.NodeProto, source: str) -> bool:
        """As a product and a sum, which take more axes than two."""
        left, right = node.input[:2]
        shape, weights = self.shapes[source], self.graph.constants.get(right)
        scaled = (attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0))
        if left not in self.views or weights is None or len(shape) < 2 or scaled != (1.0, 1.0):
            return False
        if attribute(node, "transA", 0) or shape[-2:] != self.shapes[left]:
            return False
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias and (bias not in self.shapes or len(_core(self.shapes[bias])) > 1):
            return False
        if attribute(node, "transB", 0):
            right = f"{right}/turned"
            self.graph.constants[right] = weights.T
            self.shapes[right] = weights.T.shape
        made = (*shape[:-1], self.shapes[right][-1])
        product = helper.make_node("MatMul", [source, right], [f"{node.output[0]}/product"])
        if not bias:
            product.output[0] = node.output[0]
            return self._done(product, {}, made)
        self.nodes.append(product)
        self.shapes[product.output[0]] = made
        total = helper.make_node("Add", [product.output[0], bias], [node.output[0]])
        return self._done(total, {1: self._of_rank(bias, 1)}, made)

    def _done(self, node: onnx.NodeProto, read: dict[int, str], shape: Shape) -> bool:
        """Let it read these, and what it makes be a view of a result of `shape`."""
        for place, name in read.items():
            node.input[place] = name
        for name in node.input:
            self.make(name)
        made = node.output[0]
        if shape == self.shapes[made]:
            self.nodes.append(node)
            return True
        node.output[0] = f"{made}/whole"
        self.shapes[node.output[0]] = shape
        self.nodes.append(node)
        self.views[made] = _View(node.output[0])
        return True

    def _of_rank(self, name: str, rank: int) -> str:
        """The same without its first axes, which are of one."""
        shape = self.shapes[name][len(self.shapes[name]) - rank :]
        if shape == self.shapes[name]:
            return name
        made = f"{name}/of_{rank}"
        if made in self.shapes:
            return made
        self.shapes[made] = shape
        if name in self.graph.constants:
            self.graph.constants[made] = self.graph.constants[name].reshape(shape)
        else:
            self.make(name)
            self.reshape(name, made, self.shapes[made])
        return made

    def make(self, name: str) -> None:
        view = self.views.get(name)
        if view is not None and not view.there:
            view.there = True
            self.reshape(view.source, name, self.shapes[name])


def _core(shape: Shape) -> Shape:
    """Without its first axes of one."""
    first = next((n for n, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]
