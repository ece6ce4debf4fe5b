"""Models that are refused, or nearly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.models import save


def to_eight_bits(path: Path) -> Path:
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT8E4M3FN),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    return save(path, nodes, [("x", [4])], [("y", [4])], [], opset=19)


def empty(path: Path) -> Path:
    return save(path, [helper.make_node("Exp", ["x"], ["y"])], [("x", [0, 4])], [("y", [0, 4])], [])


def chosen(path: Path) -> Path:
    """Those of its numbers that are not zero."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["where"]),
        helper.make_node("Gather", ["x", "where"], ["y"]),
    ]
    return save(path, nodes, [("x", [4])], [("y", ["n", "m"])], [])


def unsupported(path: Path) -> Path:
    """An operator that is in the standard and that no compiler imports."""
    nodes = [helper.make_node("Det", ["x"], ["y"], name="my_volume")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def nothing_to_compute(path: Path) -> Path:
    """One output is the input, the other a sum of constants."""
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Add", ["a", "a"], ["z"])]
    return save(path, nodes, [("x", [2])], [("y", [2]), ("z", [3])], [("a", np.ones(3, "f4"))])


def huge_constant(path: Path) -> Path:
    """A ConstantOfShape of 2^40 elements in a file of a few hundred bytes."""
    shape = ("s", np.array([2**20, 2**20]))
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["y"])]
    return save(path, nodes, [], [("y", [2**20, 2**20])], [shape])
