"""Models whose tensors are quantised by what is in them: spelled, they compute the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.quantised_models import Dynamic, copied, dynamic, outputs_of, spelled_as
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.quantised import passes as quantised

DATA = {
    "of both signs": lambda draw, shape: draw.standard_normal(shape),
    "all above zero": lambda draw, shape: draw.uniform(3, 4, shape),
    "all below zero": lambda draw, shape: -draw.uniform(3, 4, shape),
    "nothing": lambda draw, shape: np.zeros(shape),
}


def look_alike(model: onnx.ModelProto, target: str, shape: tuple[int, ...]) -> Graph:
    """That the spelled model computes what it did, whatever is put in; exactly, for sums are whole
    numbers that float32 holds."""
    graph = spelled_as(copied(model), target)
    made = graph.store()
    onnx.checker.check_model(made)
    for make in DATA.values():
        given = {"x": make(np.random.default_rng(3), shape).astype(np.float32)}
        for want, got in zip(outputs_of(model, given), outputs_of(made, given), strict=True):
            assert want.dtype == got.dtype
            assert want.shape == got.shape
            np.testing.assert_array_equal(got, want)
    return graph


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize(("target", "kind"), [("llvm", "uint8"), ("cuda", "int8")])
def test_a_network_computes_the_same(tmp_path: Path, target: str, kind: str, opset: int) -> None:
    model = onnx.load(dynamic(tmp_path / "m.onnx", opset=opset))
    assert quantised.is_quantised(model)
    graph = look_alike(model, target, (1, 6, 32))
    counts = Counter(node.op_type for node in graph.nodes)
    assert counts["MatMul"] == 3
    assert not {"DynamicQuantizeLinear", "MatMulInteger", "Squeeze"} & set(counts)
    zeros = [graph.constants[n.input[2]] for n in graph.nodes if n.op_type == "QuantizeLinear"]
    assert [zero.dtype.name for zero in zeros] == [kind, kind]


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_what_others_read_is_what_it_was(target: str) -> None:
    """Numbers, scale, zero and whole sums that leave the model, and numbers that something else
    reads or moves."""
    one = Dynamic()
    x = one.quantised("x")
    w, _ = one.weights(8, 4)
    one.add("MatMulInteger", x, w, f"{x}z")
    one.nodes[-1].output[0] = "sums"
    back = one.add("DequantizeLinear", x, f"{x}s", f"{x}z")
    one.add("MatMul", back, one.constant(one.draw.normal(size=(8, 2)).astype(np.float32)))
    one.nodes[-1].output[0] = "floats"
    z = one.quantised(one.add("Neg", "x"))
    turned = one.add("Transpose", z, perm=[0, 2, 1])
    one.add("MatMulInteger", turned, one.weights(5, 3)[0], f"{z}z")
    one.nodes[-1].output[0] = "moved"
    bare = one.add("MatMulInteger", z, one.weights(8, 4)[0])  # as if its zero were nothing
    one.nodes[-1].output[0] = "bare"
    assert bare
    flat = one.quantised("x")
    rows = one.add("Reshape", flat, one.constant(np.array([10, 8])))
    by = one.add("Mul", f"{flat}s", one.constant(np.full(4, 0.5, np.float32)))
    sums = one.add("MatMulInteger", rows, one.weights(8, 4)[0], f"{flat}z")
    one.add("Mul", one.add("Cast", sums, to=TensorProto.FLOAT), by)
    one.nodes[-1].output[0] = "flat"
    floats, whole = TensorProto.FLOAT, TensorProto.INT32
    outputs = [
        ("sums", [2, 5, 4], whole),
        ("floats", [2, 5, 2], floats),
        ("moved", [2, 8, 3], whole),
        ("bare", [2, 5, 4], whole),
        ("flat", [10, 4], floats),
        (f"{x}s", [], floats),
        (f"{x}z", [], TensorProto.UINT8),
        (x, [2, 5, 8], TensorProto.UINT8),
    ]
    look_alike(one.model([("x", [2, 5, 8])], outputs), target, (2, 5, 8))


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_products_of_two_tensors_are_computed_in_floating_point(target: str) -> None:
    one = Dynamic()
    x = one.quantised("x")
    y = one.quantised(one.add("Transpose", one.add("Neg", "x"), perm=[0, 1, 3, 2]))
    one.add("MatMulInteger", x, y, f"{x}z", f"{y}z")
    one.nodes[-1].output[0] = "y"
    outputs = [("y", [1, 2, 6, 6], TensorProto.INT32)]
    look_alike(one.model([("x", [1, 2, 6, 7])], outputs), target, (1, 2, 6, 7))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"pads": [2, 0, 1, 3], "strides": [2, 1], "dilations": [1, 2]},
        {"auto_pad": "SAME_UPPER"},
        {"group": 2, "pads": [1, 1, 1, 1]},
    ],
)
@pytest.mark.parametrize("zeros", [0, 1])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_the_border_of_an_image_is_its_zero(target: str, zeros: int, how: dict) -> None:
    one = Dynamic()
    x = one.quantised("x")
    channels = 4 // how.get("group", 1)
    w, w_zero = one.weights(6, channels, 3, 3, zeros=zeros)
    one.add("ConvInteger", *(x, w, f"{x}z", w_zero)[: 3 + bool(zeros)], **how)
    one.nodes[-1].output[0] = "y"
    shape = (1, 4, 8, 9)
    model = one.model([("x", list(shape))], [("y", [None] * 4, TensorProto.INT32)])
    look_alike(model, target, shape)


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("of", ["data", "weights"])
def test_a_product_with_zeros_that_are_several_is_left_what_it_reads(target: str, of: str) -> None:
    one = Dynamic()
    x = one.quantised("x")
    if of == "data":
        w, _ = one.weights(8, 4)
        one.add("MatMulInteger", x, w, one.constant(np.arange(5, dtype=np.uint8)))
    else:
        w = one.quantised(one.add("Transpose", "x", perm=[1, 0]))
        one.add("MatMulInteger", x, w, f"{x}z", one.constant(np.arange(5, dtype=np.uint8)))
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [5, 8])], [("y", [5, None], TensorProto.INT32)])
    graph = spelled_as(copied(model), target)
    assert "MatMulInteger" in {node.op_type for node in graph.nodes}
    if of == "weights":  # ONNX Runtime has no product of the other kind
        look_alike(model, target, (5, 8))


@pytest.mark.tvm
def test_its_products_are_kernels_of_integers(tmp_path: Path) -> None:
    from tests.bench import imported
    from tunefarm.devices.target import parse_target

    target = parse_target("llvm:mcpu=cascadelake:num-cores=2")
    program = imported(tmp_path, dynamic(tmp_path / "m.onnx"), target)
    products = [task for task in program.tasks if "fours" in task.name]
    assert sum(task.weight for task in products) == 3
    assert program.precision == "int8"


@pytest.mark.tvm
def test_so_are_its_convolutions_with_channels_last(tmp_path: Path) -> None:
    from tests.bench import imported
    from tunefarm.devices.target import parse_target

    one, x = Dynamic(), "x"
    for channels in (8, 16):
        x = one.quantised(x)
        w, _ = one.weights(16, channels, 3, 3)
        sums = one.add("ConvInteger", x, w, f"{x}z", pads=[1, 1, 1, 1])
        by = one.add("Mul", f"{x}s", one.constant(np.float32(0.01)))
        x = one.add("Relu", one.add("Mul", one.add("Cast", sums, to=TensorProto.FLOAT), by))
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 8, 9, 9])], [("y", [1, 16, 9, 9], TensorProto.FLOAT)])
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    target = parse_target("llvm:mcpu=cascadelake:num-cores=2")
    tasks = imported(tmp_path, path, target, layout="NHWC").tasks
    assert sum(task.weight for task in tasks if "conv2d_fours" in task.name) == 2, tasks


@pytest.mark.slow
def test_the_zoo_has_such_networks(tmp_path: Path) -> None:
    from tunefarm.frontend.zoo.networks import write_zoo_model

    model = onnx.load(write_zoo_model("encoder", tmp_path / "m.onnx", dtype="dynamic"))
    before = Counter(node.op_type for node in model.graph.node)
    after = Counter(node.op_type for node in spelled_as(copied(model), "llvm").nodes)
    assert before["MatMulInteger"] == 24
    assert after["MatMul"] == before["MatMul"] + before["MatMulInteger"]
