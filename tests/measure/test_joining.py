"""Concatenations: told from other kernels, and written in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests import models
from tests.bench import imported
from tunefarm.devices.probe import probe
from tunefarm.measure.assemble import AssembleRequest, assemble
from tunefarm.measure.facts import PART
from tunefarm.measure.gate import Array
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import PlaceRequest
from tunefarm.measure.runner import Runner

pytestmark = pytest.mark.tvm


def function(shapes: list[tuple[int, ...]], axis: int, *, relu: bool = False) -> Any:
    from tvm import te, topi

    parts = [te.placeholder(shape, name=f"p{i}") for i, shape in enumerate(shapes)]
    whole = topi.concatenate(parts, axis)
    return te.create_prim_func([*parts, topi.nn.relu(whole) if relu else whole])


@pytest.mark.parametrize(
    ("shapes", "axis", "starts"),
    [
        ([(1, 4, 4, 8), (1, 4, 4, 24)], 3, (0, 8)),
        ([(2, 3, 5), (2, 1, 5), (2, 7, 5)], 1, (0, 3, 4)),
        ([(3, 2), (3, 2)], 0, (0, 3)),
    ],
)
def test_it_knows_a_concatenation(
    shapes: list[tuple[int, ...]], axis: int, starts: tuple[int, ...]
) -> None:
    from tunefarm.measure.joining import concatenation_of

    found = concatenation_of(function(shapes, axis))
    assert found is not None
    assert (found.axis, found.starts) == (axis, starts)


def test_it_leaves_other_kernels_alone() -> None:
    from tvm import te

    from tunefarm.measure.joining import concatenation_of

    assert concatenation_of(function([(4, 8), (4, 8)], 1, relu=True)) is None
    a, b = te.placeholder((4, 8), name="a"), te.placeholder((4, 8), name="b")
    added = te.compute((4, 8), lambda i, j: a[i, j] + b[i, j])
    assert concatenation_of(te.create_prim_func([a, b, added])) is None
    chosen = te.compute((4, 8), lambda i, j: te.if_then_else(j < 4, a[i, j], b[i, j]))
    assert concatenation_of(te.create_prim_func([a, b, chosen])) is None
    turned = te.compute((8, 8), lambda i, j: te.if_then_else(i < 4, a[i, j], b[7 - i, j]))
    assert concatenation_of(te.create_prim_func([a, b, turned])) is None


def test_parts_that_nothing_else_reads_are_written_in_place(tmp_path: Path) -> None:
    from tunefarm.measure.model import CompiledModel
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    target = probe()[0].target
    path = models.branches(tmp_path / "m.onnx")
    program = imported(tmp_path, path, target)
    traces = []
    for task in program.tasks:
        if task.flops and len(traces) < 4:  # the others stay untuned
            space = design_space(replay.load_workload(program.workload(task.id)), target)
            proposal = space.realise(space.modelled()[0].point, 0)
            assert proposal is not None
            traces += [(name, proposal.trace) for name in task.functions]
    workloads = tuple((f, program.workload(t.id)) for t in program.tasks for f in t.functions)
    module = program.directory / "program.json"
    libraries = {
        name: assemble(
            AssembleRequest(module, workloads, chosen, target, tmp_path / name / "model.so")
        )
        for name, chosen in {"tuned": tuple(traces), "untuned": ()}.items()
    }
    assert libraries["tuned"].joined == 1
    assert libraries["untuned"].joined == 0
    assert libraries["tuned"].functions == libraries["untuned"].functions - 1
    placing = PlaceRequest(
        tuple(one.library for one in libraries.values()), program.inputs, Protocol(), 0
    )
    runner = Runner(2, Protocol().memory_bytes)
    tuned, untuned = runner.place(placing)
    runner.close()
    calls = {name for name in tuned if not name.startswith("vm.")}
    assert len(calls) == libraries["tuned"].functions - 1, "all but main"
    assert any(PART in name for name in calls)
    assert not any(PART in name for name in untuned)
    assert all(min(samples) > 0 for samples in tuned.values())
    assert len({len(samples) for samples in [*tuned.values(), *untuned.values()]}) == 1
    x = np.random.default_rng(0).normal(size=(1, 8, 9, 9)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    for one in libraries.values():
        got: Array = CompiledModel(one.library)([x])[0]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("narrow", "joined"), [(3, 0), (16, 1)])
def test_a_part_that_is_streamed_lies_at_multiples_of_its_vectors(narrow: int, joined: int) -> None:
    """Else it keeps an array of its own."""
    import tvm
    from tvm import relax, topi

    from tunefarm.measure.joining import concatenations, join
    from tunefarm.search import replay
    from tunefarm.search.kernels import streaming

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit_te(topi.nn.relu, x, primfunc_name_hint="relu")
            second = builder.emit_te(lambda a: topi.strided_slice(a, [0, 0], [4, narrow]), x)
            whole = builder.emit_te(lambda a, b: topi.concatenate([a, b], 1), second, first)
            output = builder.emit_output(whole)
        builder.emit_func_output(output)
    module = builder.get()
    known = concatenations(module)
    assert join(module, known)[1] == 1
    relu = module.get_global_var("relu")
    schedule = replay.new_schedule(tvm.IRModule({"main": module[relu]}), seed=1)
    lane = schedule.get_loops(schedule.get_sblock("compute"))[-1]
    schedule.vectorize(lane)
    streaming.stream_stores(schedule, lane)
    scheduled = streaming.streaming(schedule.mod["main"])
    module.update_func(relu, scheduled.with_attr("tirx.is_scheduled", True))
    module, count = join(module, known)
    assert count == joined
    target = replay.tvm_target(probe()[0].target)
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    given = np.random.default_rng(0).normal(size=(4, 16)).astype("float32")
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_array_equal(got, np.hstack([given[:, :narrow], np.maximum(given, 0)]))


def test_a_part_with_a_second_name_is_a_part() -> None:
    import tvm
    from tvm import relax, topi

    from tunefarm.measure.joining import concatenations, join

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(builder.emit_te(topi.nn.relu, x))
            second = builder.emit_te(topi.negative, x)
            whole = builder.emit_te(lambda a, b: topi.concatenate([a, b], 1), first, second)
            output = builder.emit_output(whole)
        builder.emit_func_output(output)
    module = builder.get()
    joined, count = join(module, concatenations(module))
    assert count == 1
    assert len(joined.get_global_vars()) == 3  # both parts and main
    machine = relax.VirtualMachine(relax.build(joined, "llvm"), tvm.cpu())
    given = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_array_equal(got, np.hstack([np.maximum(given, 0), -given]))
