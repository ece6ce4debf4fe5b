"""A walk along an ONNX graph that leaves some tensors in another form than they were in.

Whoever can use the other form does; for others a tensor is made as it was when the first of them
needs it, and if nobody does, never.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import onnx
from onnx import helper

from tunefarm.frontend.onnx.passes import Graph, Shape


class Walk(ABC):
    """Visits the nodes in their order.

    Attributes:
        shapes: of all tensors whose sizes are known.
        nodes: that the graph will have.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shapes = graph.shapes()
        self.nodes: list[onnx.NodeProto] = []

    def run(self) -> None:
        for node in self.graph.nodes:
            if not self.moves(node):
                for name in node.input:
                    self.make(name)
                self.nodes.append(node)
        for output in self.graph.model.graph.output:
            self.make(output.name)
        self.graph.nodes = self.nodes

    @abstractmethod
    def moves(self, node: onnx.NodeProto) -> bool:
        """Whether the node is done with: what it makes is there in the other form."""

    @abstractmethod
    def make(self, name: str) -> None:
        """Let a tensor be there as it was, where it is not."""

    def reshape(self, source: str, made: str, shape: Shape) -> None:
        wanted = self.graph.fresh(f"{made}/shape")
        self.graph.constants[wanted] = np.array(shape, np.int64)
        self.nodes.append(helper.make_node("Reshape", [source, wanted], [made]))
