"""Half precision: what a processor is given, and where a GPU's kernels sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from tunefarm.devices.target import parse_target
from tunefarm.frontend.dtypes import (
    HALF,
    for_npz,
    from_npz,
    is_float,
    narrowest,
    numpy_dtype,
    rounding,
)
from tunefarm.frontend.half import half_types, narrowed, widen, widened
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.onnx_passes import Graph
from tunefarm.frontend.zoo import write_zoo_model, zoo_model

TERMS = 4096
"""Ones, of which a sum in 16 bits stays at 2048 (float16) or at 256 (bfloat16)."""


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feed)


@pytest.mark.parametrize("kind", HALF)
def test_widened_it_computes_what_it_did_before_its_numbers_were_rounded(
    kind: str, tmp_path: Path
) -> None:
    exact = onnx.load(models.cnn(tmp_path / "cnn.onnx"))
    half = narrowed(exact, kind)
    assert half_types(exact) == frozenset()
    assert half_types(half) == {kind}
    again = widened(half)
    assert half_types(again) == frozenset()
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 32, 32)).astype(np.float32)
    (want,), (got,) = run(exact, {"x": x}), run(again, {"x": x})
    assert 0 < np.abs(got - want).max() < 8 * rounding(kind) * np.abs(want).max()
    assert half_types(half) == {kind}, "the model itself was changed"


def test_what_goes_in_and_comes_out_keeps_its_type(tmp_path: Path) -> None:
    half = narrowed(onnx.load(models.cnn(tmp_path / "cnn.onnx")), "float16")
    graph = Graph(onnx.ModelProto.FromString(half.SerializeToString()))
    widen(graph)
    assert not [name for name, array in graph.constants.items() if array.dtype == np.float16]
    model = graph.store()
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 32, 32)).astype(np.float16)
    (want,), (got,) = run(widened(half), {"x": x.astype(np.float32)}), run(model, {"x": x})
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_casts_constants_subgraphs_and_what_passes_through() -> None:
    """An input that is an output, a constant that is one, a cast, branches of their own."""
    of = helper.make_tensor_value_info
    half = TensorProto.FLOAT16

    def branch(name: str, value: float) -> onnx.GraphProto:
        constant = numpy_helper.from_array(np.full((2,), value, np.float16), f"{name}_c")
        node = helper.make_node("Identity", [f"{name}_c"], [f"{name}_y"])
        return helper.make_graph([node], name, [], [of(f"{name}_y", half, [2])], [constant])

    two = numpy_helper.from_array(np.full((1,), 2.0, np.float16))
    nodes = [
        helper.make_node("Cast", ["whole"], ["cast"], to=half),
        helper.make_node("ConstantOfShape", ["shape"], ["twos"], value=two),
        helper.make_node("If", ["which"], ["chosen"], then_branch=branch("a", 1.0),
                         else_branch=branch("b", 3.0)),
        helper.make_node("Add", ["x", "cast"], ["sum"]),
        helper.make_node("Add", ["sum", "twos"], ["more"]),
        helper.make_node("Add", ["more", "chosen"], ["y"]),
    ]  # fmt: skip
    kept = numpy_helper.from_array(np.full((2,), 7.0, np.float16), "kept")
    graph = helper.make_graph(
        nodes,
        "mixed",
        [
            of("x", half, [2]),
            of("whole", TensorProto.INT64, [2]),
            of("which", TensorProto.BOOL, []),
        ],
        [of("y", half, [2]), of("x", half, [2]), of("kept", half, [2])],
        [kept, numpy_helper.from_array(np.array([2]), "shape")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = {
        "x": np.array([0.5, 1.5], np.float16),
        "whole": np.array([10, 20]),
        "which": np.array(False),
    }
    found = Graph(onnx.ModelProto.FromString(model.SerializeToString()))
    widen(found)
    kinds = {node.op_type: node for node in found.nodes}
    assert kinds["Add"].input[0].endswith("::float32") or kinds["Add"].input[0] == "more"
    stored = found.store()
    onnx.checker.check_model(stored, full_check=True)
    y, x, seven = run(stored, feed)
    assert [one.dtype for one in (y, x, seven)] == [np.float16] * 3
    np.testing.assert_array_equal(y, [15.5, 26.5])
    np.testing.assert_array_equal(x, feed["x"])
    np.testing.assert_array_equal(seven, [7.0, 7.0])


def test_normalisations_without_a_convolution_keep_the_models_type() -> None:
    of = helper.make_tensor_value_info
    names = ("scale", "shift", "mean", "var")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("BatchNormalization", ["r", *names], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "n",
        [of("x", TensorProto.FLOAT16, [1, 3, 4, 4])],
        [of("y", TensorProto.FLOAT16, [1, 3, 4, 4])],
        [numpy_helper.from_array(np.full(3, 0.5, np.float16), name) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    from tunefarm.frontend.onnx_passes import PASSES

    found = Graph(model)
    for one in PASSES:
        one(found)
    assert [node.op_type for node in found.nodes] == ["Relu", "Mul", "Add"]
    onnx.checker.check_model(found.store(), full_check=True)


def test_the_zoo_has_networks_in_half_precision(tmp_path: Path) -> None:
    path = write_zoo_model("squeezenet", tmp_path / "m.onnx", dtype="bfloat16")
    graph = Graph(onnx.load(path))
    floats = [array for array in graph.constants.values() if is_float(array.dtype)]
    assert {array.dtype.name for array in floats} == {"bfloat16"}
    exact = Graph(zoo_model("squeezenet"))
    for name, array in graph.constants.items():
        if is_float(array.dtype):
            np.testing.assert_allclose(
                array.astype(np.float32), exact.constants[name], rtol=rounding("bfloat16")
            )


def test_types_by_name(tmp_path: Path) -> None:
    assert [numpy_dtype(name).name for name in HALF] == list(HALF)
    assert [is_float(numpy_dtype(name)) for name in ("float64", *HALF, "int8")] == [True] * 3 + [
        False
    ]
    assert [rounding(name) for name in ("float32", *HALF)] == [2.0**-23, 2.0**-10, 2.0**-7]
    assert narrowest([]) == "float32"
    assert narrowest(HALF) == "bfloat16"
    given = np.arange(6).astype(numpy_dtype("bfloat16"))
    np.savez(tmp_path / "a.npz", bytes=given, numbers=for_npz(given))
    with np.load(tmp_path / "a.npz") as stored:
        np.testing.assert_array_equal(from_npz(stored["bytes"], "bfloat16"), given)
        np.testing.assert_array_equal(from_npz(stored["numbers"], "float32"), np.arange(6))


def sums(path: Path, kind: str) -> Path:
    """A product, a mean and a softmax of `TERMS` ones each."""
    of = helper.make_tensor_value_info
    number = TensorProto.FLOAT16 if kind == "float16" else TensorProto.BFLOAT16
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Softmax", ["x"], ["s"], axis=1),
    ]
    weights = np.ones((TERMS, 1), numpy_dtype(kind))
    graph = helper.make_graph(
        nodes,
        "sums",
        [of("x", number, [2, TERMS])],
        [of("p", number, [2, 1]), of("m", number, [2, 1]), of("s", number, [2, TERMS])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.tvm
@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("target", ["cuda:arch=sm_90", "llvm"])
def test_sums_are_made_in_float32(kind: str, target: str, tmp_path: Path) -> None:
    """For a GPU between values of 16 bits; the same kernels run on a processor, to see what they
    compute."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.program import load_program
    from tunefarm.frontend.stored import load_program_module

    path = sums(tmp_path / "m.onnx", kind)
    run_import(ImportRequest(path, tmp_path / "program", parse_target(target)))
    program = load_program(tmp_path / "program")
    assert {spec.dtype for spec in (*program.inputs, *program.outputs)} == {kind}
    wide = {spec.dtype for task in program.tasks for spec in task.args}
    assert wide == ({kind} if target.startswith("cuda") else {kind, "float32"})
    machine = relax.VirtualMachine(
        relax.build(load_program_module(program.module), "llvm"), tvm.cpu()
    )
    ones = np.ones((2, TERMS), numpy_dtype(kind))
    product, mean, soft = (one.numpy() for one in machine["main"](tvm.runtime.tensor(ones)))
    np.testing.assert_array_equal(product.astype(np.float32), np.full((2, 1), TERMS))
    np.testing.assert_array_equal(mean.astype(np.float32), np.ones((2, 1)))
    np.testing.assert_array_equal(soft.astype(np.float32), np.full((2, TERMS), 1 / TERMS))
