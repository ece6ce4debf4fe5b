"""Half precision: what a processor is given, and where a GPU's kernels sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from tunefarm.devices.target import parse_target
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend import importer
from tunefarm.frontend.dtypes import (
    HALF,
    for_npz,
    from_npz,
    is_float,
    narrowest,
    numpy_dtype,
    rounding,
    save_npz,
)
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.onnx.half import (
    half_types,
    narrowed,
    widen_inside,
    widen_islands,
    widened,
)
from tunefarm.frontend.onnx.passes import Graph
from tunefarm.frontend.onnx.writer import Writer
from tunefarm.frontend.program import load_program
from tunefarm.frontend.zoo.networks import write_zoo_model, zoo_model

TERMS = 4096
"""Ones, of which a sum in 16 bits stays at 2048 (float16) or at 256 (bfloat16)."""


def model_of(nodes, inputs, outputs, constants, opset: int = 17, ir: int = 8) -> onnx.ModelProto:
    """Inputs and outputs as (name, type, shape), constants by name."""
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def number(kind: str) -> int:
    return TensorProto.FLOAT16 if kind == "float16" else TensorProto.BFLOAT16


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


@pytest.mark.parametrize(("kind", "large"), [("float16", 65504.0), ("bfloat16", 3e38)])
def test_what_is_beyond_the_range_is_its_end_and_infinity_stays(kind: str, large: float) -> None:
    writer = Writer(0)
    mask = writer.constant(np.array([-3e38, -np.inf, np.inf, 1.0]))
    result = writer.node("Add", "x", mask)
    half = narrowed(writer.model("m", ("x", (4,)), ("y", result, (4,)), opset=13), kind)
    (stored,) = (one for one in Graph(half).constants.values() if one.size == 4)
    wanted = np.array([-large, -np.inf, np.inf, 1.0])
    np.testing.assert_allclose(stored.astype(np.float32), wanted, rtol=rounding(kind))


def test_what_goes_in_and_comes_out_keeps_its_type(tmp_path: Path) -> None:
    half = narrowed(onnx.load(models.cnn(tmp_path / "cnn.onnx")), "float16")
    graph = Graph(onnx.ModelProto.FromString(half.SerializeToString()))
    widen_inside(graph)
    assert not [name for name, array in graph.constants.items() if array.dtype == np.float16]
    model = graph.store()
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 32, 32)).astype(np.float16)
    (want,), (got,) = run(widened(half), {"x": x.astype(np.float32)}), run(model, {"x": x})
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_casts_constants_and_what_passes_through() -> None:
    """An input that is an output, a constant that is one, a cast, a constant with a value."""
    half = TensorProto.FLOAT16
    two = numpy_helper.from_array(np.full((1,), 2.0, np.float16))
    model = model_of(
        [
            helper.make_node("Cast", ["whole"], ["cast"], to=half),
            helper.make_node("ConstantOfShape", ["shape"], ["twos"], value=two),
            helper.make_node("Add", ["x", "cast"], ["sum"]),
            helper.make_node("Add", ["sum", "kept"], ["more"]),
            helper.make_node("Mul", ["more", "twos"], ["y"]),
        ],
        [("x", half, [2]), ("whole", TensorProto.INT64, [2])],
        [("y", half, [2]), ("x", half, [2]), ("kept", half, [2])],
        {"kept": np.full((2,), 7.0, np.float16), "shape": np.array([2])},
    )
    feed = {"x": np.array([0.5, 1.5], np.float16), "whole": np.array([10, 20])}
    found = Graph(model)
    widen_inside(found)
    stored = found.store()
    onnx.checker.check_model(stored, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(stored).graph.value_info
    inside = {one.name: one.type.tensor_type.elem_type for one in inferred}
    assert {inside[name] for name in ("cast", "twos", "sum", "more")} == {TensorProto.FLOAT}
    y, x, seven = run(stored, feed)
    assert [one.dtype for one in (y, x, seven)] == [np.float16] * 3
    np.testing.assert_array_equal(y, [35.0, 57.0])
    np.testing.assert_array_equal(x, feed["x"])
    np.testing.assert_array_equal(seven, [7.0, 7.0])


def test_weights_that_an_old_file_lists_among_its_inputs_stay_weights() -> None:
    half, ones = TensorProto.FLOAT16, np.ones((2, 3), np.float16)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", half, [1, 2]), ("w", half, [2, 3]), ("kept", half, [2, 3])],
        [("y", half, [1, 3]), ("kept", half, [2, 3])],
        {"w": ones, "kept": ones},
        opset=8,
        ir=3,
    )
    found = Graph(model)
    widen_inside(found)
    stored = found.store()
    assert [value.name for value in stored.graph.input] == ["x"]
    stored.ir_version = 8
    y, again = run(stored, {"x": np.ones((1, 2), np.float16)})
    np.testing.assert_array_equal(y, np.full((1, 3), 2.0))
    np.testing.assert_array_equal(again, np.ones((2, 3)))


def test_what_has_no_kernels_in_half_precision_is_an_island() -> None:
    half = TensorProto.FLOAT16
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Pow", ["r", "two"], ["p"]),
            helper.make_node("Elu", ["p"], ["q"]),
            helper.make_node("Einsum", ["q", "q"], ["e"], equation="i,i->i"),
            helper.make_node("Add", ["e", "r"], ["y"]),
        ],
        [("x", half, [3])],
        [("y", half, [3])],
        {"two": np.array(2.0, np.float16)},
    )
    x = np.array([-1.0, 2.0, 3.0], np.float16)
    want = run(model, {"x": x})
    found = Graph(model)
    widen_islands(found)
    stored = found.store()
    onnx.checker.check_model(stored, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(stored).graph.value_info
    kinds = {one.name: one.type.tensor_type.elem_type for one in inferred}
    assert {kinds[name] for name in ("r", "p", "q", "e")} == {half}
    for node in stored.graph.node:
        if node.op_type in ("Pow", "Elu", "Einsum"):
            assert {kinds[name] for name in node.output} == {TensorProto.FLOAT}
    np.testing.assert_array_equal(run(stored, {"x": x}), want)


def test_normalisations_without_a_convolution_keep_the_models_type() -> None:
    half, names = TensorProto.FLOAT16, ("scale", "shift", "mean", "var")
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("BatchNormalization", ["r", *names], ["y"]),
        ],
        [("x", half, [1, 3, 4, 4])],
        [("y", half, [1, 3, 4, 4])],
        {name: np.full(3, 0.5, np.float16) for name in names},
        opset=15,
    )
    from tunefarm.frontend.onnx.passes import PASSES

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
    with (tmp_path / "b.npz").open("wb") as file:
        save_npz(file, {"file": given, "a/b": np.float64(1.5) * np.ones(2)})
    with np.load(tmp_path / "b.npz") as stored:
        assert set(stored.files) == {"file", "a/b"}, "whatever NumPy calls its parameters"
        np.testing.assert_array_equal(from_npz(stored["file"], "bfloat16"), given)
    np.savez(tmp_path / "a.npz", bytes=given, numbers=for_npz(given))
    with np.load(tmp_path / "a.npz") as stored:
        np.testing.assert_array_equal(from_npz(stored["bytes"], "bfloat16"), given)
        np.testing.assert_array_equal(from_npz(stored["numbers"], "float32"), np.arange(6))


def sums(path: Path, kind: str) -> Path:
    """A product, a mean and a softmax of `TERMS` ones each."""
    model = model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[1], keepdims=1),
            helper.make_node("Softmax", ["x"], ["s"], axis=1),
        ],
        [("x", number(kind), [2, TERMS])],
        [(name, number(kind), [2, size]) for name, size in (("p", 1), ("m", 1), ("s", TERMS))],
        {"w": np.ones((TERMS, 1), numpy_dtype(kind))},
        opset=13,
    )
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

    from tunefarm.frontend.stored import load_program_module

    path = sums(tmp_path / "m.onnx", kind)
    run_import(ImportRequest(path, tmp_path / "program", parse_target(target)))
    program = load_program(tmp_path / "program")
    assert {spec.dtype for spec in (*program.inputs, *program.outputs)} == {kind}
    wide = {spec.dtype for task in program.tasks for spec in task.args}
    assert program.precision == (kind if target.startswith("cuda") else "float32")
    assert wide == ({kind} if target.startswith("cuda") else {kind, "float32"})
    machine = relax.VirtualMachine(
        relax.build(load_program_module(program.module), "llvm"), tvm.cpu()
    )
    ones = np.ones((2, TERMS), numpy_dtype(kind))
    product, mean, soft = (one.numpy() for one in machine["main"](tvm.runtime.tensor(ones)))
    np.testing.assert_array_equal(product.astype(np.float32), np.full((2, 1), TERMS))
    np.testing.assert_array_equal(mean.astype(np.float32), np.ones((2, 1)))
    np.testing.assert_array_equal(soft.astype(np.float32), np.full((2, TERMS), 1 / TERMS))


@pytest.mark.tvm
def test_grouped_convolutions_of_shuffled_channels_sum_in_float32(tmp_path: Path) -> None:
    """And have kernels by default, though TVM's rules for sums are at a loss with them."""
    import tvm
    from tvm import tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    from tunefarm.devices.gpu import completed
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search.replay import by_default, load_workload, tvm_target

    path = models.shuffled(tmp_path / "m.onnx")
    path.write_bytes(narrowed(onnx.load(path), "float16").SerializeToString())
    target = completed(parse_target("cuda:arch=sm_90"))
    run_import(ImportRequest(path, tmp_path / "program", target))
    program = load_program(tmp_path / "program")
    assert "shuffle_conv2d_cast" in {task.name for task in program.tasks}
    for task in program.tasks:
        module = load_workload(program.workload(task.id))
        blocks: list = []
        structural_walk(module["main"].body, (SBlock, blocks.append))
        summed = [one.body for one in blocks if one.init is not None]
        kinds = {str(one.buffer.dtype) for one in summed if isinstance(one.value, tirx.Add)}
        assert not kinds & {*HALF}, task.name
        with tvm_target(target):
            tvm.tirx.build(by_default(module, target), pipeline=pipeline(target))


@pytest.mark.long
@pytest.mark.tvm
@pytest.mark.parametrize("name", ["decoder", "inception_v1", "rectified"])
def test_networks_are_imported_in_bfloat16_for_a_gpu(name: str, tmp_path: Path) -> None:
    """With masks, local normalisation and bounded rectifiers."""
    path = tmp_path / "m.onnx"
    if name == "rectified":
        onnx.save(narrowed(onnx.load(models.rectified(path)), "bfloat16"), path)
    else:
        write_zoo_model(name, path, dtype="bfloat16")
    run_import(ImportRequest(path, tmp_path / "program", parse_target("cuda:arch=sm_80")))
    program = load_program(tmp_path / "program")
    assert program.precision == "bfloat16"
    products = [task for task in program.tasks if task.name.startswith(("conv2d", "matmul"))]
    assert products
    assert all({spec.dtype for spec in task.args[:-1]} == {"bfloat16"} for task in products)


@pytest.mark.tvm
@pytest.mark.parametrize("kind", HALF)
def test_constant_sums_are_not_folded_in_16_bits(kind: str, tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
        [("x", number(kind), [1, 1])],
        [("y", number(kind), [1, 1])],
        {
            "a": np.ones((1, TERMS), numpy_dtype(kind)),
            "b": np.ones((TERMS, 1), numpy_dtype(kind)),
        },
    )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    request = ImportRequest(
        tmp_path / "m.onnx", tmp_path / "program", parse_target("cuda:arch=sm_80")
    )
    run_import(request)
    (y,) = compiled_for_a_processor(tmp_path)([np.zeros((1, 1), numpy_dtype(kind))])
    np.testing.assert_array_equal(y.astype(np.float32), [[TERMS]])


@pytest.mark.tvm
def test_weights_in_bfloat16_are_loaded(tmp_path: Path) -> None:
    """From the file beside the library, which NumPy knows no way to hand on."""
    path = tmp_path / "m.onnx"
    onnx.save(narrowed(onnx.load(models.vector_dense(tmp_path / "f.onnx", 64)), "bfloat16"), path)
    run_import(ImportRequest(path, tmp_path / "program", parse_target("cuda:arch=sm_80")))
    model = compiled_for_a_processor(tmp_path)
    (y,) = model([np.ones((1, 64), numpy_dtype("bfloat16"))])
    (weights,) = Graph(onnx.load(path)).constants.values()
    want = weights.astype(np.float32).sum(axis=0, keepdims=True)
    np.testing.assert_allclose(y.astype(np.float32), want, rtol=rounding("bfloat16"), atol=1e-3)


def compiled_for_a_processor(root: Path):
    """What was imported for a GPU into ``program``, to see what it computes."""
    from tunefarm.measure.assemble import AssembleRequest, run_assemble
    from tunefarm.measure.model import CompiledModel

    module = load_program(root / "program").module
    request = AssembleRequest(module, (), (), parse_target("llvm"), root / "model.so")
    return CompiledModel(run_assemble(request).library, kind="llvm")


@pytest.mark.tvm
def test_weights_that_are_too_many_in_float32_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Though the file is within the limit; here it is a thousandth of a thousandth."""
    path = tmp_path / "m.onnx"
    onnx.save(narrowed(onnx.load(models.vector_dense(tmp_path / "f.onnx", 32)), "float16"), path)
    monkeypatch.setattr(importer, "_MOST_BYTES", 3000)
    assert path.stat().st_size < 3000 < 4 * 32 * 32
    for target in ("llvm", "cuda:arch=sm_80"):
        request = ImportRequest(path, tmp_path / target, parse_target(target))
        if target == "llvm":
            with pytest.raises(UnsupportedModel, match="of weights in float32"):
                run_import(request)
        else:
            run_import(request)
