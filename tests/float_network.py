"""A small network of float32 for tests, with all that products are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Network:
    """A graph of float32 that grows."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, *shape: int) -> str:
        name = f"c{len(self.constants)}"
        values = self.draw.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape)
        self.constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def whole(self, numbers: list[int]) -> str:
        """A constant of whole numbers."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def add(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def write(self, path: Path, x: list[int], y: list[int]) -> Path:
        self.nodes[-1].output[0] = "y"
        infos = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
            for name, shape in (("x", x), ("y", y))
        )
        graph = helper.make_graph(self.nodes, "network", *infos, self.constants)
        opsets = [helper.make_opsetid("", 13)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        path.write_bytes(model.SerializeToString())
        return path


def network(path: Path) -> Path:
    """Padded and in steps; channels that are no pairs; a residue, a pool, one channel at a time;
    columns that are no whole registers, many and few, and a product of one row."""
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(32, 3, 3, 3), pads=[1] * 4))
    y = one.add("Conv", x, one.constant(32, 32, 3, 3), one.constant(32), pads=[1] * 4)
    x = one.add("Relu", one.add("Add", x, y))
    x = one.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = one.add("Relu", one.add("Conv", x, one.constant(64, 32, 1, 1), one.constant(64)))
    x = one.add("Conv", x, one.constant(64, 1, 3, 3), group=64, pads=[1] * 4)
    x = one.add("Conv", x, one.constant(64, 64, 3, 3), pads=[1] * 4, strides=[2, 2])
    x = one.add("Conv", x, one.constant(72, 64, 1, 1), one.constant(72))
    x = one.add("Conv", one.add("Relu", x), one.constant(24, 72, 1, 1))
    x = one.add("Flatten", one.add("GlobalAveragePool", x))
    one.add("Gemm", x, one.constant(32, 24), one.constant(32), transB=1)
    return one.write(path, [1, 3, 14, 14], [1, 32])
