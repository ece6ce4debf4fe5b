"""Numbers of 8 bits that are kept in 16: which are, and that the network computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto
from tvm import relax

from tests.quantised_models import Quantised, network, outputs_of
from tunefarm.devices.target import parse_target
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, load_program
from tunefarm.frontend.relax import kept_wide
from tunefarm.frontend.stored import load_program_module
from tunefarm.measure.lowering import pipeline
from tunefarm.search import replay

pytestmark = pytest.mark.tvm

PAIRS = parse_target("llvm:mcpu=x86-64:num-cores=2")
"""Whatever x86 this runs on."""


def computed(
    directory: Path, model: onnx.ModelProto, x: np.ndarray
) -> tuple[Program, list[np.ndarray]]:
    """The program, and what it computes of `x`, lowered as candidates are."""
    path = directory / "m.onnx"
    directory.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, directory / "program", PAIRS))
    program = load_program(directory / "program")
    how = {"tir_pipeline": pipeline(PAIRS)}
    built = relax.build(load_program_module(program.module), replay.tvm_target(PAIRS), **how)
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x))
    return program, [one.numpy() for one in (got if len(model.graph.output) > 1 else [got])]


def product(one: Quantised, tensor: str, channels: int = 8) -> str:
    return one.add("Conv", tensor, one.weights(8, channels, 1, 1))


def types(program: Program) -> dict[str, list[str]]:
    """Of the kernels' arguments, by their names."""
    return {task.name: [arg.dtype for arg in task.args] for task in program.tasks}


def named(one: Quantised, name: str) -> str:
    one.nodes[-1].output[0] = name
    return name


SHAPE = (1, 8, 6, 6)
IMAGE = np.random.default_rng(2).uniform(-1, 1, SHAPE).astype(np.float32)


def test_it_computes_bit_for_bit_what_8_bits_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool, a sum, a concatenation and what reads single channels among what reads them."""
    model = onnx.load(network(tmp_path / "network.onnx"))
    x = np.random.default_rng(1).uniform(-1, 1, (1, 3, 14, 14)).astype(np.float32)
    program, wide = computed(tmp_path / "wide", model, x)
    monkeypatch.setattr(kept_wide, "keep_wide", lambda module, log: module)
    narrow_program, narrow = computed(tmp_path / "narrow", model, x)
    np.testing.assert_array_equal(wide[0], narrow[0])
    assert len(program.tasks) < len(narrow_program.tasks), "each wide copy is a kernel"
    passes = {entry["pass"]: entry["detail"] for entry in program.evidence["passes"]}
    assert passes["relax.keep_wide"].startswith("tensors of 8 bits in 16: ")


def test_an_input_of_8_bits_is_made_wider_once(tmp_path: Path) -> None:
    one = Quantised()
    scale, zero = one.constant(np.float32(1 / 50)), one.constant(np.uint8(120))
    x = one.add("DequantizeLinear", "x", scale, zero)
    one.add("Add", product(one, x), product(one, x))
    named(one, "y")
    model = one.model([("x", SHAPE)], [("y", SHAPE)])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    numbers = np.random.default_rng(0).integers(0, 256, SHAPE).astype(np.uint8)
    program, (found,) = computed(tmp_path, model, numbers)
    (wanted,) = outputs_of(model, {"x": numbers})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert program.inputs[0].dtype == "uint8"
    reading = [name for name, found in types(program).items() if found[0] == "uint8"]
    assert len(reading) == 1


def test_an_output_of_8_bits_stays_one(tmp_path: Path) -> None:
    one = Quantised()
    scale, zero = one.constant(np.float32(1 / 60)), one.constant(np.uint8(128))
    x = one.rounded("x", 1 / 100, 120)
    one.add("QuantizeLinear", product(one, x), scale, zero)
    named(one, "q")
    x = one.add("DequantizeLinear", "q", scale, zero)
    product(one, x)
    named(one, "y")
    model = one.model([("x", SHAPE)], [("q", SHAPE), ("y", SHAPE)])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    _, found = computed(tmp_path, model, IMAGE)
    wanted = outputs_of(model, {"x": IMAGE})
    assert [one.dtype.name for one in found] == ["uint8", "float32"]
    assert np.abs(found[0].astype(int) - wanted[0].astype(int)).max() <= 1
    np.testing.assert_allclose(found[1], wanted[1], atol=0.05)


def test_a_single_output_that_is_moved_stays_one(tmp_path: Path) -> None:
    """Together with what it is moved from, which a product reads as well."""
    one = Quantised()
    scale, zero = one.constant(np.float32(1 / 60)), one.constant(np.uint8(128))
    first = one.add("QuantizeLinear", "x", scale, zero)
    made = product(one, one.add("DequantizeLinear", first, scale, zero))
    one.add("Concat", first, one.add("QuantizeLinear", made, scale, zero), axis=1)
    named(one, "q")
    model = one.model([("x", SHAPE)], [("q", (1, 16, 6, 6))])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    _, (found,) = computed(tmp_path, model, IMAGE)
    (wanted,) = outputs_of(model, {"x": IMAGE})
    assert found.dtype.name == "uint8"
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


def test_what_may_lie_beyond_8_bits_is_narrowed_first(tmp_path: Path) -> None:
    """A conversion keeps the last 8 bits of a whole number: what it makes is stored in 8."""
    one = Quantised()
    scale, zero = one.constant(np.float32(1 / 50)), one.constant(np.uint8(0))
    large = one.add("Mul", "x", one.constant(np.float32(100)))
    whole = one.add("Cast", large, to=TensorProto.INT32)
    numbers = one.add("Cast", whole, to=TensorProto.UINT8)
    product(one, one.add("DequantizeLinear", numbers, scale, zero))
    named(one, "y")
    model = one.model([("x", SHAPE)], [("y", SHAPE)])
    program, (found,) = computed(tmp_path, model, 5 * IMAGE)
    (wanted,) = outputs_of(model, {"x": 5 * IMAGE})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert sum("pairs" in task.name for task in program.tasks) == 1
