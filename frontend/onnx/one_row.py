"""One-dimensional convolutions as those of images that are one row high.

Kernels of images are computed channels last, in whichever tiles suit; a sound's or a sentence's
convolution would be left with vectors along its length, which an odd length or a stride spoils (of
3199 samples there are none but of seven). What follows such a convolution element by element, or
pools it, works on the image as well, so that from one convolution to the next nothing is reshaped.
"""

from __future__ import annotations

import numpy as np
import onnx

from tunefarm.frontend.onnx.passes import Array, Graph, attribute, is_standard, set_attribute
from tunefarm.frontend.onnx.unit_axes import OF_ELEMENTS
from tunefarm.frontend.onnx.walk import Walk

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_OF_CHANNELS = frozenset(
    {"BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"}
)
"""Of images as of rows, whatever else they read has one element for each channel."""
_OF_ELEMENTS = OF_ELEMENTS | {"PRelu", "Softsign", "Where"}
"""Each element of the result is made of those at its place, broadcast from the right."""
_BROADCASTS_FROM_THE_RIGHT = 7
"""The opset since which sums do."""
_BY_AXIS = ("dilations", "kernel_shape", "strides")
"""Attributes, of which an axis of one has one."""


def rows_as_images(graph: Graph) -> None:
    """Leaves no convolution of one dimension whose sizes and weights are known, where nothing
    branches."""
    of_rows = any(_weights(graph, node).ndim == 3 for node in graph.nodes if node.op_type == "Conv")
    if of_rows and not graph.branches() and graph.opset >= _BROADCASTS_FROM_THE_RIGHT:
        _Rows(graph).run()


def _weights(graph: Graph, convolution: onnx.NodeProto) -> Array:
    """Of no axes where they are computed."""
    return graph.constants.get(convolution.input[1], np.zeros(()))


class _Rows(Walk):
    """Tensors of three axes as those of four.

    Attributes:
        images: the four-dimensional twin of a three-dimensional tensor, by its name.
        moved: of those tensors, what is made as an image.
        missing: what of that nobody has needed as it was yet.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.images: dict[str, str] = {}
        self.moved: set[str] = set()
        self.missing: set[str] = set()

    def moves(self, node: onnx.NodeProto) -> bool:
        made = node.output[0]
        if not is_standard(node) or len(self.shapes.get(made, ())) != 3 or any(node.output[1:]):
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
            set_attribute(node, "axis", (0, 1, 3)[axis])
        elif node.op_type in _OF_ELEMENTS:
            if not all(len(self.shapes.get(n, (1,) * 4)) <= 3 for n in node.input if n):
                return False
        elif node.op_type not in _OF_CHANNELS:
            return False
        several = node.op_type == "Concat" or node.op_type in _OF_ELEMENTS
        self._done(node, range(len(node.input)) if several else [0])
        return True

    def _convolution(self, node: onnx.NodeProto) -> bool:
        rank = len(self.shapes.get(node.input[0], ()))
        if rank != 3 or _weights(self.graph, node).ndim != 3:
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
                self.reshape(name, self.images[name], as_image)
        return self.images[name]

    def make(self, name: str) -> None:
        if name in self.missing:
            self.missing.remove(name)
            self.reshape(self.images[name], name, self.shapes[name])


def _along(node: onnx.NodeProto) -> None:
    """Its attributes for an image of one row, which nothing is put around."""
    for name in _BY_AXIS:
        if given := attribute(node, name, None):
            set_attribute(node, name, [1, *given])
    if pads := attribute(node, "pads", None):
        before, after = pads
        set_attribute(node, "pads", [0, before, 0, after])
