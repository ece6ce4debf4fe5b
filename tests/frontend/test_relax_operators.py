"""Operators at which the compiler's change of layout would stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests import models
from tests.bench import imported
from tests.frontend.test_onnx import asked_for_its_size
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm
TARGET = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")


@pytest.mark.parametrize("opset", [10, 14])
def test_activations_leave_channels_last(tmp_path: Path, opset: int) -> None:
    """The image is turned at either end of the network, and nowhere between; and every activation
    is in the kernel of the convolution before it."""
    path = models.rectified(tmp_path / "m.onnx", opset)
    program = imported(tmp_path, path, TARGET)
    assert program.evidence["layout"] == "NHWC"
    others = [task.name for task in program.tasks if not task.name.startswith("conv2d")]
    assert others == ["transpose", "transpose"]
    computes_the_same(program, path, (1, 8, 9, 9))


def test_normalised_instances_leave_channels_last(tmp_path: Path) -> None:
    """No kernel reduces twice, and each has a family of its own."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    path = models.instances(tmp_path / "m.onnx")
    program = imported(tmp_path, path, TARGET)
    assert program.evidence["layout"] == "NHWC"
    for task in program.tasks:
        workload = replay.load_workload(program.workload(task.id))
        assert design_space(workload, TARGET).modelled(), task.name
    assert sum("mean" in task.name for task in program.tasks) == 2
    computes_the_same(program, path, (1, 16, 6, 7))


def test_a_model_may_ask_for_its_own_size(tmp_path: Path) -> None:
    """And say it: one of its outputs is a shape."""
    path = tmp_path / "m.onnx"
    path.write_bytes(asked_for_its_size().SerializeToString())
    program = imported(tmp_path, path, TARGET)
    assert [(one.shape, one.dtype) for one in program.outputs] == [
        ((2, 12), "float32"),
        ((2,), "int64"),
    ]
    computes_the_same(program, path, (2, 3, 4))


def computes_the_same(
    program: Program, model: Path, shape: tuple[int, ...], least: float = 0.01
) -> None:
    """As ONNX Runtime does, of which results differ among themselves by more than `least`."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module

    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    wanted = onnxruntime.InferenceSession(model).run(None, {"x": x})
    module = load_program_module(program.directory / "program.json")
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    made = machine["main"](tvm.runtime.tensor(x))
    for got, want in zip([made] if len(wanted) == 1 else made, wanted, strict=True):
        assert np.isfinite(want).all()
        assert want.std() > least or want.dtype == np.int64
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5 * abs(want).max())
