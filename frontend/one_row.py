"""One-dimensional convolutions as those of images that are one row high.

Kernels of images are computed channels last, in whichever tiles suit; a sound's or a sentence's
convolution would be left with vectors along its length, which an odd length or a stride spoils (of
3199 samples there are none but of seven). What follows such a convolution element by element, or
pools it, works on the image as well, so that from one convolution to the next nothing is reshaped.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tunefarm.frontend.onnx_passes import Graph, Shape, attribute, graphs_of, is_standard

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_OF_CHANNELS = frozenset(
    {"BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"}
)
"""Of images as of rows, whatever else they read has one element for each channel."""
_OF_ELEMENTS = frozenset(
    {
        *("Abs", "Add", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid"),
        *("HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow"),
        *("Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub"),
        *("Tanh", "Where"),
    }
)
"""Each element of the result is made of those at its place, broadcast from the right."""
_BROADCASTS_FROM_THE_RIGHT = 7
"""The opset since which sums do."""
_ALONG = {"dilations": 1, "kernel_shape": 1, "strides": 1}
"""What an axis of one has of these attributes, which are by axis."""


def rows_as_images(graph: Graph) -> None:
    """Leaves no convolution of one dimension whose sizes and weights are known, where nothing
    branches."""
    convolves = any(node.op_type == "Conv" for node in graph.nodes)
    # What a branch or a loop reads of the graph around it is in no node's inputs.
    branches = any(True for node in graph.nodes for _ in graphs_of(node))
    if convolves and not branches and graph.opset >= _BROADCASTS_FROM_THE_RIGHT:
        _Rows(graph).run()


class _Rows:
    """Walks the graph in order.

    Attributes:
        images: the four-dimensional twin of a three-dimensional tensor, by its name.
        moved: of those tensors, what is made as an image.
        missing: what of that nobody has needed as it was yet.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shapes = graph.shapes()
        self.nodes: list[onnx.NodeProto] = []
        self.images: dict[str, str] = {}
        self.moved: set[str] = set()
        self.missing: set[str] = set()

    def run(self) -> None:
        for node in self.graph.nodes:
            if not (is_standard(node) and self._moves(node)):
                for name in node.input:
                    self._make(name)
                self.nodes.append(node)
        for output in self.graph.model.graph.output:
            self._make(output.name)
        self.graph.nodes = self.nodes

    def _moves(self, node: onnx.NodeProto) -> bool:
        """Whether it was written as one of images."""
        made = node.output[0]
        if len(self.shapes.get(made, ())) != 3 or any(node.output[1:]):
            return False
        # Of a reshape's sizes nought says something else.
        if any(0 in self.shapes.get(name, ()) for name in (made, *node.input)):
            return False
        if node.op_type == "Conv":
            return self._convolution(node)
        if not self.moved.intersection(node.input):
            return False
        if node.op_type in _POOLS:
            _along(node)
        elif node.op_type == "Concat":
            axis = attribute(node, "axis", 0)
            if not all(len(self.shapes.get(name, ())) == 3 for name in node.input):
                return False
            _set(node, "axis", (0, 1, 3)[axis])
        elif node.op_type in _OF_ELEMENTS:
            if not all(len(self.shapes.get(n, (1,) * 4)) <= 3 for n in node.input if n):
                return False
        elif node.op_type not in _OF_CHANNELS:
            return False
        several = node.op_type == "Concat" or node.op_type in _OF_ELEMENTS
        self._done(node, range(len(node.input)) if several else [0])
        return True

    def _convolution(self, node: onnx.NodeProto) -> bool:
        weights = self.graph.constants.get(node.input[1])
        if weights is None or weights.ndim != 3 or len(self.shapes.get(node.input[0], ())) != 3:
            return False
        _along(node)
        self._done(node, [0, 1])
        return True

    def _done(self, node: onnx.NodeProto, places: range | list[int]) -> None:
        for place in places:
            node.input[place] = self._image(node.input[place])
        made = node.output[0]
        self.images[made] = self.graph.fresh(f"{made}/image")
        self.moved.add(made)
        self.missing.add(made)
        node.output[0] = self.images[made]
        self.nodes.append(node)

    def _image(self, name: str) -> str:
        """The twin of `name`; of what has no rows, itself."""
        shape = self.shapes.get(name, ())
        if not name or len(shape) < 2:
            return name
        if name not in self.images:
            self.images[name] = self.graph.fresh(f"{name}/image")
            as_image = (*shape[:-1], 1, shape[-1])
            if name in self.graph.constants:
                constant = self.graph.constants[name].reshape(as_image)
                self.graph.constants[self.images[name]] = constant
            else:
                self._reshape(name, self.images[name], as_image)
        return self.images[name]

    def _make(self, name: str) -> None:
        """A tensor that somebody needs as it was."""
        if name in self.missing:
            self.missing.remove(name)
            self._reshape(self.images[name], name, self.shapes[name])

    def _reshape(self, source: str, made: str, shape: Shape) -> None:
        wanted = self.graph.fresh(f"{made}/shape")
        self.graph.constants[wanted] = np.array(shape, np.int64)
        self.nodes.append(helper.make_node("Reshape", [source, wanted], [made]))


def _along(node: onnx.NodeProto) -> None:
    """Its attributes for an image of one row, which nothing is put around."""
    for name, alone in _ALONG.items():
        if given := attribute(node, name, None):
            _set(node, name, [alone, *given])
    if pads := attribute(node, "pads", None):
        before, after = pads
        _set(node, "pads", [0, before, 0, after])


def _set(node: onnx.NodeProto, name: str, value: int | list[int]) -> None:
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
