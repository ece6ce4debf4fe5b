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
from tests.quantised_models import network as quantised_network
from tunefarm.devices.target import Target, parse_target
from tunefarm.errors import UnsupportedTarget
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, load_program
from tunefarm.frontend.stored import load_program_module
from tunefarm.measure.lowering import pipeline
from tunefarm.search import replay

pytestmark = pytest.mark.tvm

ALLOWED = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
PLAIN = parse_target("llvm:mcpu=sapphirerapids:num-cores=2")
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


def test_many_columns_are_filled_up(tmp_path: Path) -> None:
    """And cut off by what follows; few are not, and are float32's where they are no whole vectors
    either."""
    one = Network()
    x = one.add("MatMul", "x", one.constant(48, 72))
    x = one.add("Relu", one.add("MatMul", one.add("Relu", x), one.constant(72, 88)))
    x = one.add("Relu", one.add("MatMul", x, one.constant(88, 20)))
    one.add("MatMul", x, one.constant(20, 22))
    model = one.write(tmp_path / "m.onnx", [8, 48], [8, 22])
    program = imported(tmp_path / "allowed", model, ALLOWED)
    names = [task.name for task in program.tasks]
    assert sum("halves" in name for name in names) == 3
    packed = [task.args[1].shape for task in program.tasks if "halves" in task.name]
    assert sorted(shape[1] for shape in packed) == [20, 80, 96]
    given = np.random.default_rng(0).normal(size=(8, 48)).astype(np.float32)
    exact = computed(imported(tmp_path / "plain", model, PLAIN), given)
    off = computed(program, given) - exact
    assert np.sqrt(np.mean(off**2) / np.mean(exact**2)) < 2e-2


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
