"""Factors of products that may be rounded: which are, and that the network computes the like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.float_network import Network, network
from tests.frontend import test_relax_attention as attentions
from tests.quantised_models import network as quantised_network
from tunefarm.devices.target import Target, parse_target
from tunefarm.errors import UnsupportedTarget
from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, load_program
from tunefarm.frontend.stored import load_program_module
from tunefarm.measure.lowering import pipeline
from tunefarm.search import replay

pytestmark = pytest.mark.tvm

ALLOWED = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
PLAIN = parse_target("llvm:mcpu=sapphirerapids:num-cores=2")
VECTORS = parse_target("llvm:mcpu=znver4:num-cores=2:precision=bfloat16")
ANYWHERE = parse_target("llvm:mcpu=x86-64:num-cores=2")


def imported(directory: Path, model: Path, target: Target) -> Program:
    run_import(ImportRequest(model, directory, target))
    return load_program(directory)


def computed(program: Program, x: np.ndarray) -> np.ndarray:
    """By code for whatever x86 this runs on."""
    found: np.ndarray = called(load_program_module(program.module), x).numpy()
    return found


def called(module: tvm.IRModule, x: np.ndarray) -> Any:
    """What it makes of `x`, lowered as candidates are."""
    how = {"tir_pipeline": pipeline(ANYWHERE)}
    built = relax.build(module, replay.tvm_target(ANYWHERE), **how)
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))


def test_products_of_whole_vectors_are_of_bfloat16(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx")
    program = imported(tmp_path / "allowed", model, ALLOWED)
    assert program.precision == "bfloat16"
    halves = [task for task in program.tasks if "halves" in task.name]
    assert len(halves) == 7
    for task in halves:
        assert [arg.dtype for arg in task.args].count("bfloat16") >= 2
        assert task.float_flops(("amx_bf16",)) == task.flops / 16
        assert task.float_flops(("avx512_bf16",)) == task.flops / 2
        assert task.float_flops(("avx2",)) == task.flops
    others = [task for task in program.tasks if task.name.startswith(("conv2d", "matmul"))]
    plain = [task for task in others if "halves" not in task.name]
    assert [task.args[-1].shape[-1] for task in plain] == [64], "one channel at a time"
    assert {arg.dtype for task in plain for arg in task.args[:-1]} == {"float32"}
    assert not any(task.name == "cast" for task in program.tasks), "whoever makes numbers rounds"


def test_it_is_off_by_rounding_and_not_by_more(tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx")
    x = np.random.default_rng(1).uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32)
    exact = computed(imported(tmp_path / "plain", model, PLAIN), x)
    rounded = computed(imported(tmp_path / "allowed", model, ALLOWED), x)
    off = np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))
    assert 1e-4 < off < 2e-2


def test_rows_that_are_moved_are_moved_rounded(tmp_path: Path) -> None:
    """Two products read one tensor, one of them behind a reshape: it is rounded once."""
    one = Network()
    x = one.add("Relu", one.add("MatMul", "x", one.constant(48, 64)))
    shape = "shape"
    one.constants.append(numpy_helper.from_array(np.array([16, 64], np.int64), shape))
    moved = one.add("MatMul", one.add("Reshape", x, shape), one.constant(64, 32))
    shape = "back"
    one.constants.append(numpy_helper.from_array(np.array([2, 8, 32], np.int64), shape))
    one.add("Add", one.add("MatMul", x, one.constant(64, 32)), one.add("Reshape", moved, shape))
    model = one.write(tmp_path / "m.onnx", [2, 8, 48], [2, 8, 32])
    program = imported(tmp_path / "program", model, ALLOWED)
    assert sum("halves" in task.name for task in program.tasks) >= 2
    (first,) = (task for task in program.tasks if task.args[1].shape[0] == 24)
    assert first.args[-1].dtype == "bfloat16"
    rounding = [task for task in program.tasks if "cast" in task.name and "halves" not in task.name]
    assert [task.args[0].shape for task in rounding] == [(2, 8, 48)], "the input alone"


def test_what_is_joined_and_pooled_is_rounded_before(tmp_path: Path) -> None:
    """A concatenation then only copies, which costs nothing, and nothing is read in float32."""
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(16, 8, 1, 1)))
    y = one.add("Relu", one.add("Conv", x, one.constant(16, 16, 3, 3), pads=[1] * 4))
    x = one.add("Relu", one.add("Conv", x, one.constant(32, 16, 1, 1)))
    pooled = one.add("MaxPool", one.add("Concat", x, y, axis=1), kernel_shape=[2, 2])
    one.add("Conv", pooled, one.constant(16, 48, 1, 1))
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, 11, 11])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    for kind in ("concatenate", "max_pool2d"):
        (task,) = (task for task in program.tasks if task.name == kind)
        assert {arg.dtype for arg in task.args} == {"bfloat16"}
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


@pytest.mark.parametrize("settings", [{"pads": [1] * 4}, {"ceil_mode": 1}])
def test_pools_of_rounded_numbers_have_nothing_around_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """Less than any number, and rounded it still is."""
    one = Network()
    x = one.add("Conv", "x", one.constant(16, 8, 1, 1))
    pooled = one.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], **settings)
    one.add("Conv", pooled, one.constant(16, 16, 1, 1))
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, 6, 6])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    (task,) = (task for task in program.tasks if task.name.startswith("max_pool2d"))
    assert {arg.dtype for arg in task.args} == {"bfloat16"}
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_shape": [3, 3], "pads": [1] * 4},
        {"kernel_shape": [3, 3], "pads": [0, 1, 2, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1]},
    ],
)
def test_means_are_of_what_is_stored_rounded(settings: dict[str, Any], tmp_path: Path) -> None:
    """In single precision, and no kernel makes it wide for them."""
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(16, 8, 1, 1)))
    x = one.add("Concat", x, one.add("Conv", x, one.constant(16, 16, 1, 1)), axis=1)
    mean = one.add("AveragePool", x, **settings)
    parts = [one.add("Conv", y, one.constant(16, 32, 1, 1)) for y in (x, mean)]
    one.add("Add", *parts)
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, 12, 12])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    (task,) = (task for task in program.tasks if task.name.startswith("avg_pool2d"))
    assert {arg.dtype for arg in task.args} == {"bfloat16"}
    assert not any(task.name.startswith("cast") for task in program.tasks)
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


def test_constants_are_joined_rounded(tmp_path: Path) -> None:
    one = Network()
    x = one.add("Relu", one.add("MatMul", "x", one.constant(48, 32)))
    joined = one.add("Concat", x, one.constant(8, 16), axis=1)
    one.add("MatMul", joined, one.constant(48, 16))
    model = one.write(tmp_path / "m.onnx", [8, 48], [8, 16])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    (task,) = (task for task in program.tasks if task.name.startswith("concatenate"))
    assert {arg.dtype for arg in task.args} == {"bfloat16"}
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (8, 48))


def test_what_is_joined_with_an_input_is_rounded_behind_it(tmp_path: Path) -> None:
    """For no kernel is to round the input alone."""
    one = Network()
    x = one.add("Relu", one.add("MatMul", "x", one.constant(48, 32)))
    one.add("MatMul", one.add("Concat", x, "x", axis=1), one.constant(80, 16))
    model = one.write(tmp_path / "m.onnx", [8, 48], [8, 16])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    (task,) = (task for task in program.tasks if task.name.startswith("concatenate"))
    assert task.args[-1].dtype == "bfloat16"
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (8, 48))


@pytest.mark.parametrize("kind", ["Squeeze", "Split"])
def test_a_result_that_is_a_part_is_not_rounded(kind: str, tmp_path: Path) -> None:
    one = Network()
    x = one.add("Relu", one.add("MatMul", "x", one.constant(48, 32)))
    if kind == "Squeeze":
        one.nodes.append(helper.make_node(kind, [x, one.whole([0])], ["s"]))
    else:
        one.nodes.append(helper.make_node(kind, [x, one.whole([8, 24])], ["s", "t"], axis=2))
    one.add("MatMul", x, one.constant(32, 16))
    model = onnx.load(one.write(tmp_path / "m.onnx", [1, 8, 48], [1, 8, 16]))
    shape = [8, 32] if kind == "Squeeze" else [1, 8, 8]
    model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, shape))
    path = tmp_path / "two.onnx"
    path.write_bytes(model.SerializeToString())
    module = load_program_module(imported(tmp_path / "allowed", path, ALLOWED).module)
    given = np.random.default_rng(0).normal(size=(1, 8, 48)).astype(np.float32)
    found = called(module, given)[1].numpy()
    halves = found.astype(numpy_dtype("bfloat16")).astype(np.float32)
    assert (halves != found)[found > 0].mean() > 0.5


def test_what_is_also_a_result_is_joined_as_it_is(tmp_path: Path) -> None:
    """Nobody has allowed to round that."""
    one = Network()
    x = one.add("Relu", one.add("MatMul", "x", one.constant(48, 32)))
    y = one.add("Relu", one.add("MatMul", "x", one.constant(48, 32)))
    joined = one.add("Concat", x, y, axis=1)
    one.add("MatMul", joined, one.constant(64, 16))
    model = onnx.load(one.write(tmp_path / "m.onnx", [8, 48], [8, 16]))
    shape = [8, 64]
    model.graph.output.append(helper.make_tensor_value_info(joined, TensorProto.FLOAT, shape))
    path = tmp_path / "two.onnx"
    path.write_bytes(model.SerializeToString())
    given = np.random.default_rng(0).normal(size=(8, 48)).astype(np.float32)
    rounded, plain = (
        called(load_program_module(imported(tmp_path / name, path, target).module), given)[1]
        for name, target in (("allowed", ALLOWED), ("plain", PLAIN))
    )
    off = np.abs(rounded.numpy() - plain.numpy()).max()
    assert 0 < off < 2e-2, "by its factors alone"
    halves = rounded.numpy().astype(numpy_dtype("bfloat16")).astype(np.float32)
    assert (halves != rounded.numpy()).mean() > 0.2


def test_an_image_is_stored_with_the_zeros_that_convolutions_want(tmp_path: Path) -> None:
    """Also where one of them wants none, and another fewer, in steps."""
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(16, 8, 1, 1)))
    parts = [
        one.add("Conv", x, one.constant(16, 16, 1, 1), strides=[2, 2]),
        one.add("Conv", x, one.constant(16, 16, 3, 3), pads=[1] * 4, strides=[2, 2]),
        one.add("Conv", x, one.constant(16, 16, 5, 5), pads=[2, 1, 2, 3], strides=[2, 2]),
    ]
    one.add("Add", one.add("Add", *parts[:2]), parts[2])
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, 6, 6])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    assert not any(task.name.startswith("pad") for task in program.tasks)
    (maker,) = (task for task in program.tasks if task.name.endswith("halo"))
    assert (maker.args[-1].shape, maker.args[-1].dtype) == ((1, 16, 16, 16), "bfloat16")
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


@pytest.mark.parametrize("reader", ["Add", "MaxPool", "odd"])
def test_an_image_that_others_read_as_well_is_padded_for_those_that_want_it(
    reader: str, tmp_path: Path
) -> None:
    """As is one whose channels have to be filled up."""
    one = Network()
    channels = 15 if reader == "odd" else 16
    x = one.add("Relu", one.add("Conv", "x", one.constant(16, 8, 1, 1)))
    if reader == "odd":
        x = one.add("Slice", x, *(one.whole(n) for n in ([0], [15], [1])))
    if reader == "MaxPool":
        y = one.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        x = one.add("Conv", x, one.constant(16, channels, 3, 3), pads=[1] * 4)
        one.add("Mul", x, y)
    elif reader == "Add":
        one.add("Add", x, one.add("Conv", x, one.constant(16, channels, 3, 3), pads=[1] * 4))
    else:
        one.add("Conv", x, one.constant(16, channels, 3, 3), pads=[1] * 4)
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, 12, 12])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    assert not any(task.name.endswith("halo") for task in program.tasks)
    assert any("pad" in task.name for task in program.tasks)
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


def _is_near(program: Program, plain: Program, shape: tuple[int, ...]) -> None:
    given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    exact = computed(plain, given)
    off = computed(program, given) - exact
    assert np.sqrt(np.mean(off**2) / np.mean(exact**2)) < 2e-2


@pytest.mark.parametrize(
    ("target", "columns"), [(ALLOWED, [32, 32, 80, 96]), (VECTORS, [20, 80, 96])]
)
def test_columns_that_are_no_whole_registers_are_filled_up(
    target: Target, columns: list[int], tmp_path: Path
) -> None:
    """And cut off by what follows. In vectors few are not, and they are float32's where they are no
    whole vectors either."""
    one = Network()
    x = one.add("MatMul", "x", one.constant(48, 72))
    x = one.add("Relu", one.add("MatMul", one.add("Relu", x), one.constant(72, 88)))
    x = one.add("Relu", one.add("MatMul", x, one.constant(88, 20)))
    x = one.add("Relu", one.add("MatMul", x, one.constant(20, 22)))
    one.add("MatMul", x, one.constant(22, 6))
    model = one.write(tmp_path / "m.onnx", [8, 48], [8, 6])
    program = imported(tmp_path / "allowed", model, target)
    packed = [task.args[1].shape for task in program.tasks if "halves" in task.name]
    assert sorted(shape[1] for shape in packed) == columns
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (8, 48))


@pytest.mark.parametrize(("steps", "dtype"), [(1, "float32"), (2, "bfloat16")])
def test_single_channels_in_steps_are_read_rounded(steps: int, dtype: str, tmp_path: Path) -> None:
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(32, 8, 1, 1)))
    window = {"group": 32, "pads": [1] * 4, "strides": [steps] * 2}
    x = one.add("Relu", one.add("Conv", x, one.constant(32, 1, 3, 3), one.constant(32), **window))
    one.add("Conv", x, one.constant(16, 32, 1, 1))
    size = 12 // steps
    model = one.write(tmp_path / "m.onnx", [1, 8, 12, 12], [1, 16, size, size])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    (task,) = (t for t in program.tasks if t.name.startswith("conv2d") and "halves" not in t.name)
    found = [arg.dtype for arg in task.args]
    assert found == [dtype, "float32", "float32", "bfloat16"]
    assert task.float_flops(("amx_bf16", "avx512_bf16")) == task.flops, "it multiplies float32"
    _is_near(program, imported(tmp_path / "plain", model, PLAIN), (1, 8, 12, 12))


def test_a_result_is_not_rounded(tmp_path: Path) -> None:
    """Nor is what is moved to be one; a product that reads it rounds for itself."""
    one = Network()
    x = one.add("Relu", "x")
    y = one.add("MatMul", x, one.constant(64, 32))
    model = onnx.load(one.write(tmp_path / "m.onnx", [16, 64], [16, 32]))
    assert y
    model.graph.output.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [16, 64]))
    path = tmp_path / "two.onnx"
    path.write_bytes(model.SerializeToString())
    program = imported(tmp_path / "program", path, ALLOWED)
    assert program.precision == "bfloat16"
    module = load_program_module(program.module)
    relax.analysis.well_formed(module)
    given = np.random.default_rng(0).normal(size=(16, 64)).astype(np.float32)
    _, passed = (one.numpy() for one in called(module, given))
    np.testing.assert_array_equal(passed, np.maximum(given, 0))


def test_a_quantised_model_stays_what_it_is(tmp_path: Path) -> None:
    model = quantised_network(tmp_path / "m.onnx")
    allowed = imported(tmp_path / "allowed", model, ALLOWED)
    plain = imported(tmp_path / "plain", model, PLAIN)
    assert allowed.precision == "int8"
    assert {task.id for task in allowed.tasks} == {task.id for task in plain.tasks}


@pytest.mark.parametrize("target", ["llvm:mcpu=icelake-server:num-cores=2", "llvm:mcpu=znver3"])
def test_a_processor_without_the_instruction_cannot(target: str, tmp_path: Path) -> None:
    model = network(tmp_path / "m.onnx")
    with pytest.raises(UnsupportedTarget, match="does not multiply bfloat16") as caught:
        imported(tmp_path / "p", model, parse_target(f"{target}:precision=bfloat16"))
    assert caught.value.exit_code == 4
    assert imported(tmp_path / "p", model, parse_target(target)).precision == "float32"


def _with_attention(directory: Path, kind: str, target: Target) -> Program:
    path = directory / "m.onnx"
    path.write_bytes(attentions.network(kind).SerializeToString())
    return imported(directory / target.text.replace(":", "-"), path, target)


@pytest.mark.parametrize("kind", ["plain", "masked", "packed", "shared", "scaled"])
def test_attention_reads_what_is_stored_rounded(tmp_path: Path, kind: str) -> None:
    """Whoever makes queries, keys and values rounds them, once; a product reads its result so."""
    one = attentions.network(kind)
    program = imported(tmp_path / "p", _followed(one, tmp_path / "m.onnx"), ALLOWED)
    (task,) = (task for task in program.tasks if task.name == "attention")
    masks = [arg.dtype for arg in task.args if len(arg.shape) > 3]
    assert masks == ["float32"] * (kind == "masked")
    assert {arg.dtype for arg in task.args if len(arg.shape) == 3} == {"bfloat16"}
    assert task.float_flops(("amx_bf16",)) == task.flops / 16
    casts = [task for task in program.tasks if task.name.startswith("cast")]
    assert [task.args[0].dtype for task in casts if "halves" not in task.name] == ["float32"]
    (cast,) = (task for task in casts if "halves" not in task.name)
    assert cast.weight == 1, "the input alone"


def _followed(model: onnx.ModelProto, path: Path) -> Path:
    """`model` with a product of its result with constants."""
    (result,) = model.graph.output
    shape = [one.dim_value for one in result.type.tensor_type.shape.dim]
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(shape[-1], shape[-1])).astype(np.float32) / shape[-1] ** 0.5
    model.graph.initializer.append(numpy_helper.from_array(weights, "last"))
    model.graph.node.append(helper.make_node("MatMul", [result.name, "last"], ["followed"]))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("followed", TensorProto.FLOAT, shape)
    )
    path.write_bytes(model.SerializeToString())
    return path


def test_attention_whose_result_is_the_networks_stays_in_float32_there(tmp_path: Path) -> None:
    program = _with_attention(tmp_path, "plain", ALLOWED)
    (task,) = (task for task in program.tasks if task.name == "attention")
    assert [arg.dtype for arg in task.args] == ["bfloat16"] * 3 + ["float32"]
    assert program.outputs[0].dtype == "float32"


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("plain", PLAIN),  # nothing may be rounded
        ("plain", VECTORS),  # there are no matrix registers
        ("seen", ALLOWED),  # its weights are read by something else
        ("few", ALLOWED),  # queries that fill no register
    ],
)
def test_attention_stays_what_it_was(tmp_path: Path, kind: str, target: Target) -> None:
    program = _with_attention(tmp_path, kind, target)
    assert not [task for task in program.tasks if task.name == "attention"]


@pytest.mark.parametrize("kind", ["plain", "masked", "chosen", "turned"])
def test_attention_is_off_by_rounding_and_not_by_more(tmp_path: Path, kind: str) -> None:
    x = np.random.default_rng(1).normal(size=(1, attentions.TOKENS, attentions.HIDDEN))
    x = x.astype(np.float32)
    exact = computed(_with_attention(tmp_path, kind, PLAIN), x)
    rounded = computed(_with_attention(tmp_path, kind, ALLOWED), x)
    off = np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))
    assert 1e-4 < off < 2e-2
