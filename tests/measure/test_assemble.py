"""Whole models whose constants lie beside their library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import imported
from tunefarm.measure import weights

pytestmark = pytest.mark.tvm


def module(constants: int) -> Any:
    """Two results of one input, with a constant that both use, and one of integers that is a result
    itself; without constants the input twice."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results: list[Any] = [builder.emit(relax.op.add(x, x))]
            if constants:
                shared = relax.const(np.arange(8, dtype="float32"))
                results = [
                    builder.emit(relax.op.add(x, shared)),
                    builder.emit(relax.op.multiply(x, shared)),
                    relax.const(np.array([1, 2, 3], "int32")),
                ]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    return builder.get()


def built(found: Any, library: Path) -> Path:
    from tvm import relax

    from tunefarm.measure.assemble import _link

    relax.build(found, "llvm").export_library(str(library), fcompile=_link)
    return library


X = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")


def test_constants_are_lifted_once_each_and_given_back(tmp_path: Path) -> None:
    from tunefarm.measure.assemble import lift_constants
    from tunefarm.measure.model import CompiledModel

    lifted, constants = lift_constants(module(constants=2))
    assert sorted(str(c.dtype) for c in constants) == ["float32", "int32"], "one is used twice"
    library = built(lifted, tmp_path / "model.so")
    weights.write(weights.beside(library), constants)
    total, product, numbers = CompiledModel(library)([X])
    row = np.arange(8, dtype="float32")
    np.testing.assert_array_equal(total, X + row)
    np.testing.assert_array_equal(product, X * row)
    np.testing.assert_array_equal(numbers, [1, 2, 3])


def test_a_model_without_constants_takes_none(tmp_path: Path) -> None:
    from tunefarm.measure.assemble import lift_constants
    from tunefarm.measure.model import CompiledModel

    lifted, constants = lift_constants(module(constants=0))
    assert constants == []
    library = built(lifted, tmp_path / "model.so")
    weights.write(weights.beside(library), constants)
    (doubled,) = CompiledModel(library)([X])
    np.testing.assert_array_equal(doubled, X + X)


def test_a_library_with_its_constants_inside_still_runs(tmp_path: Path) -> None:
    """As artifacts had them before manifests of schema 2."""
    from tunefarm.measure.model import CompiledModel

    library = built(module(constants=2), tmp_path / "model.so")
    total, *_ = CompiledModel(library, [])([X])
    np.testing.assert_array_equal(total, X + np.arange(8, dtype="float32"))


def _tuned(program: Any, target: Any, library: Path) -> None:
    """With the schedule that its hardware model expects most of, where a kernel has one."""
    from tunefarm.measure.assemble import AssembleRequest, assemble
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    traces, workloads = [], []
    for task in program.tasks:
        space = design_space(replay.load_workload(program.workload(task.id)), target)
        proposal = space.realise(space.modelled()[0].point, 0) if task.flops > 1e4 else None
        for function in task.functions if proposal is not None else ():
            traces.append((function, proposal.trace))
            workloads.append((function, program.workload(task.id)))
    assert traces
    request = AssembleRequest(program.module, tuple(workloads), tuple(traces), target, library)
    assemble(request)


def test_weights_that_all_steps_read_are_packed_once(tmp_path: Path) -> None:
    import onnxruntime

    from tests import models
    from tunefarm.devices.probe import probe
    from tunefarm.measure.model import CompiledModel

    target = probe()[0].target
    path = models.recurrent(tmp_path / "m.onnx", steps=12, units=64)
    program = imported(tmp_path, path, target)
    library = tmp_path / "model.so"
    _tuned(program, target, library)
    held = sum(array.nbytes for array in weights.load(weights.beside(library)))
    assert held < 2 * 4 * (256 * 8 + 256 * 64), "twelve copies would be more"
    x = np.random.default_rng(0).normal(size=(12, 1, 8)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    (found,) = CompiledModel(library)([x])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_images_with_zeros_around_them_pass_from_kernel_to_kernel(tmp_path: Path) -> None:
    """Twice, as what lies between kernels is what others had before; beside a concatenation, whose
    parts are stored in their places as well."""
    import onnxruntime
    from onnx import helper

    from tests.spelled import model_of, random
    from tunefarm.devices.probe import probe
    from tunefarm.measure.model import CompiledModel

    target = probe()[0].target
    nodes = [
        helper.make_node("Conv", ["x", "grow"], ["g"]),
        helper.make_node("Relu", ["g"], ["i"]),
        helper.make_node("Conv", ["i", "each"], ["a"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "left"], ["l"]),
        helper.make_node("Conv", ["a", "right"], ["r"]),
        helper.make_node("Concat", ["l", "r"], ["c"], axis=1),
        helper.make_node("Conv", ["c", "last"], ["k"]),
        helper.make_node("Conv", ["k", "steps"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    constants = {
        "grow": random(16, 8, 1, 1),
        "each": random(16, 1, 3, 3),
        "left": random(16, 16, 1, 1),
        "right": random(16, 16, 1, 1),
        "last": random(16, 32, 1, 1),
        "steps": random(16, 16, 3, 3),
    }
    x = np.random.default_rng(0).normal(size=(1, 8, 24, 24)).astype(np.float32)
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(nodes, {"x": x}, ["y"], constants).SerializeToString())
    program = imported(tmp_path, path, target)
    assert sum(task.name.endswith("halo") for task in program.tasks) == 2
    library = tmp_path / "model.so"
    _tuned(program, target, library)
    model = CompiledModel(library)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    for _ in range(2):
        (found,) = model([x])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * abs(wanted).max())


def test_kernels_without_blocks_are_built(tmp_path: Path) -> None:
    import onnxruntime

    from tests import models
    from tunefarm.devices.target import parse_target
    from tunefarm.measure.assemble import AssembleRequest, assemble
    from tunefarm.measure.model import CompiledModel

    target = parse_target("llvm")
    path = models.scattered(tmp_path / "m.onnx")
    program = imported(tmp_path, path, target)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    for name, module in (("untuned", program.baseline), ("tuned", program.module)):
        library = tmp_path / name / "model.so"
        assemble(AssembleRequest(module, (), (), target, library))
        (found,) = CompiledModel(library)([x])
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
