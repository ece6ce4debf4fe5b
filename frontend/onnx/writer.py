"""An ONNX graph written node by node, with weights drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


class Writer:
    """Nodes and constants of the graph so far; each method adds one, and returns its result's
    name."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def normal(self, *shape: int) -> NDArray[np.float64]:
        return self._generator.normal(0, 1, shape)

    def constant(self, values: NDArray[np.float64] | float) -> str:
        return self._keep(np.asarray(values, np.float32))

    def integers(self, values: Sequence[int]) -> str:
        return self._keep(np.array(values, np.int64))

    def _keep(self, values: NDArray[np.float32] | NDArray[np.int64]) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: int | float | str | list[int]) -> str:
        result = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [result], **attributes))
        return result

    def model(
        self,
        name: str,
        given: tuple[str, Sequence[int]],
        made: tuple[str, str, Sequence[int]],
        opset: int,
    ) -> onnx.ModelProto:
        """The network.

        Args:
            given: its input's name and shape.
            made: its output's name, what it is the result of, and its shape.
        """
        output, result, shape = made
        nodes = [*self._nodes, helper.make_node("Identity", [result], [output])]
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(given[0], onnx.TensorProto.FLOAT, given[1])],
            [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape)],
            self._constants,
        )
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        model.producer_name = "tunefarm"
        return model
