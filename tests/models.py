"""Small real networks for tests, as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _save(path: Path, nodes, inputs, outputs, constants) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def cnn(path: Path) -> Path:
    """conv 3x3, batch norm, relu, max pool, conv 1x1, mean, dense, softmax."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.2, shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "g", "b", "m", "v"], ["n1"]),
        helper.make_node("Relu", ["n1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["d"], transB=1),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    constants = [
        ("w1", weights(32, 16, 3, 3)),
        ("b1", weights(32)),
        *((name, np.abs(weights(32)) + 0.5) for name in "gbmv"),
        ("w2", weights(64, 32, 1, 1)),
        ("w3", weights(10, 64)),
        ("b3", weights(10)),
    ]
    return _save(path, nodes, [("x", [1, 16, 32, 32])], [("y", [1, 10])], constants)


def matmul(path: Path) -> Path:
    """One 16x16x16 matmul: the kernel that `tests.plugins.faults` has schedules for."""
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    return _save(path, nodes, [("a", [16, 16]), ("b", [16, 16])], [("y", [16, 16])], [])


def unsupported(path: Path) -> Path:
    """An operator that is in the standard and that no compiler imports."""
    nodes = [helper.make_node("DFT", ["x"], ["y"], name="my_fourier", axis=1)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def huge_constant(path: Path) -> Path:
    """A ConstantOfShape of 2^40 elements in a file of a few hundred bytes."""
    shape = ("s", np.array([2**20, 2**20]))
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["y"])]
    return _save(path, nodes, [], [("y", [2**20, 2**20])], [shape])
