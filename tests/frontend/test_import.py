"""Imports in a child, with the compiler."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models, refused
from tests.bench import program_of
from tunefarm.devices.target import parse_target
from tunefarm.errors import InvalidModel, UnsupportedModel
from tunefarm.frontend.importer import ImportRequest, import_model, out_of_memory
from tunefarm.frontend.onnx.file import ImportLimits
from tunefarm.frontend.program import load_program
from tunefarm.frontend.zoo.networks import write_zoo_model
from tunefarm.process import ChildError

pytestmark = pytest.mark.tvm
TARGET = parse_target("llvm:mcpu=x86-64-v3:num-cores=2")


def test_a_real_network(tmp_path: Path) -> None:
    model = write_zoo_model("squeezenet", tmp_path / "squeezenet.onnx")
    program = import_model(ImportRequest(model, tmp_path / "program", TARGET))
    evidence = program.evidence
    assert evidence["layout"] == "NHWC"
    assert evidence["operators"]["Conv"] == {"count": 26, "taken": 26}
    assert evidence["distinct_kernels"] == len(program.tasks) < evidence["kernels"]
    assert [p["order"] for p in evidence["passes"]] == list(range(len(evidence["passes"])))
    assert {"onnx.fold_affine", "relax.FuseTIR"} <= {p["pass"] for p in evidence["passes"]}
    assert [(s.name, s.shape) for s in program.inputs] == [("data_0", (1, 3, 224, 224))]
    assert program.outputs[0].shape == (1, 1000, 1, 1)
    total = sum(t.weight * t.flops for t in program.tasks)
    assert 0.6e9 < total < 0.9e9  # 0.35 G multiply-adds
    assert len({t.id for t in program.tasks}) == len(program.tasks)
    assert all(program.workload(t.id).exists() for t in program.tasks)
    assert load_program(tmp_path / "program") == program


def test_an_unsupported_operator_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"Det.*my_volume"):
        import_model(
            ImportRequest(refused.unsupported(tmp_path / "m.onnx"), tmp_path / "program", TARGET)
        )
    assert not (tmp_path / "program").exists()
    assert not list(tmp_path.glob(".program*"))


def test_limits_of_time_and_memory_hold(tmp_path: Path) -> None:
    model = models.cnn(tmp_path / "m.onnx")
    with pytest.raises(InvalidModel, match="more than"):
        import_model(
            ImportRequest(model, tmp_path / "program", TARGET, limits=ImportLimits(seconds=0.05))
        )
    for least in (2**20, 2**24, 2**27):  # for Python, for what TVM is made of, for its compiler
        limits = ImportLimits(memory_bytes=least)
        with pytest.raises(InvalidModel, match=r"needs more than|too much memory"):
            import_model(ImportRequest(model, tmp_path / "program", TARGET, limits=limits))
    assert not (tmp_path / "program").exists()


@pytest.mark.parametrize(
    ("kind", "words", "is_it"),
    [
        ("MemoryError", "", True),
        ("RuntimeError", "std::bad_alloc", True),
        ("OSError", "[Errno 12] Cannot allocate memory: 'tvm/ir'", True),
        ("ImportError", "libtvm.so: failed to map segment from shared object", True),
        ("OSError", "[Errno 2] No such file or directory: 'x'", False),
        ("InternalError", "Check failed: memory scope", False),
    ],
)
def test_a_limit_of_memory_is_told_by_its_words(kind: str, words: str, is_it: bool) -> None:
    assert out_of_memory(ChildError(words, kind, "")) == is_it


def test_equal_kernels_are_one_task(tmp_path: Path) -> None:
    model = models.matmul(tmp_path / "m.onnx")
    first = import_model(ImportRequest(model, tmp_path / "one", TARGET))
    second = import_model(ImportRequest(model, tmp_path / "two", TARGET))
    assert [t.id for t in first.tasks] == [t.id for t in second.tasks]
    assert first.tasks[0].flops == 2 * 16**3
    assert json.loads((tmp_path / "one" / "evidence.json").read_text())["inputs"]


def test_the_steps_of_a_recurrence_are_one_task(tmp_path: Path) -> None:
    for steps in (6, 9):
        model = models.recurrent(tmp_path / "m.onnx", steps)
        program = import_model(ImportRequest(model, tmp_path / f"in {steps}", TARGET))
        products = {t.weight for t in program.tasks if t.name.startswith("matmul")}
        assert products == {1, steps - 1}  # the first state is all zeros, its product known
        (step,) = (t for t in program.tasks if t.name.startswith("matmul") and t.weight > 1)
        assert program.again == {step.id: step.constant_bytes}, "read again in the next step"
        assert step.constant_bytes == 4 * 16 * 64
        assert load_program(program.directory) == program
        assert program.evidence["operators"]["LSTM"] == {"count": 1, "taken": 1}
        assert program.evidence["passes"][0]["pass"] == "onnx.expand"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (refused.to_eight_bits, "Cast.*FLOAT8E4M3FN"),
        (refused.empty, "input 'x' has no elements"),
        (refused.chosen, "sizes in kernel .* depend on what"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        import_model(ImportRequest(make(tmp_path / "m.onnx"), tmp_path / "program", TARGET))
    assert not (tmp_path / "program").exists()


def test_a_row_is_divided_once(tmp_path: Path) -> None:
    """By a quotient that the whole row shares: softmax, and three averages by a number."""
    program = program_of(
        ImportRequest(models.kernels(tmp_path / "k.onnx"), tmp_path / "program", TARGET)
    )
    passes = {one["pass"]: one["detail"] for one in program.evidence["passes"]}
    assert passes["tir.shared_divisors"] == "divisions rewritten: 4"


@pytest.mark.parametrize(("target", "left"), [("llvm", False), ("cuda:arch=sm_80", True)])
def test_no_processor_calls_a_library_for_each_element(
    tmp_path: Path, target: str, left: bool
) -> None:
    """A GPU has functions of its own, and keeps them. One of each is counted as one operation."""
    from tunefarm.devices.gpu import completed
    from tunefarm.search.replay import load_workload

    model = models.transcendent(tmp_path / "m.onnx")
    wanted = completed(parse_target(target)) if left else TARGET
    program = program_of(ImportRequest(model, tmp_path / "program", wanted))
    texts = [load_workload(program.workload(task.id)).script() for task in program.tasks]
    for name in ("T.exp(", "T.sigmoid(", "T.tanh(", "T.erf("):
        assert any(name in text for text in texts) == left, name
    kinds = ("exp", "sigmoid", "softmax")
    rewritten = [task for task in program.tasks if any(kind in task.name for kind in kinds)]
    assert len(rewritten) == 3
    assert max(task.flops for task in rewritten) < 8 * 8 * 32
    passes = {one["pass"]: one["detail"] for one in program.evidence["passes"]}
    assert passes.get("tir.exponentials") == (None if left else "exponentials rewritten: 3")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_an_operator_that_is_an_error_function_calls_no_library_either(
    tmp_path: Path, approximate: str
) -> None:
    """`Gelu`, as newer exporters write it; with the product before it, one kernel."""
    from tunefarm.search.replay import load_workload

    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(0, 1, (32, 48)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Gelu", ["p"], ["y"], approximate=approximate),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 48])
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    program = program_of(ImportRequest(tmp_path / "m.onnx", tmp_path / "program", TARGET))
    (task,) = program.tasks
    text = load_workload(program.workload(task.id)).script()
    assert not any(name in text for name in ("T.erf(", "T.tanh(", "T.pow(", "T.exp("))


def test_what_stands_for_an_error_function_is_near_it() -> None:
    """From where nothing is left of it to where it is its argument."""
    import tvm
    from tvm import te

    from tunefarm.frontend.relax.passes import gelu, gelu_tanh

    x = np.linspace(-12, 12, 4801, dtype=np.float32)
    placed = te.placeholder(x.shape, name="x")
    exact = x * 0.5 * (1 + np.array([math.erf(one / math.sqrt(2)) for one in x.astype(float)]))
    inner = math.sqrt(2 / math.pi) * (x.astype(float) + 0.044715 * x.astype(float) ** 3)
    near = x * 0.5 * (1 + np.tanh(inner))
    for make, wanted in ((gelu, exact), (gelu_tanh, near)):
        built = tvm.compile(te.create_prim_func([placed, make(placed)]), target="llvm")
        made = tvm.runtime.tensor(np.empty_like(x))
        built(tvm.runtime.tensor(x), made)
        np.testing.assert_allclose(made.numpy(), wanted, rtol=2e-6, atol=2e-6)


def test_what_is_not_read_of_a_table_is_not_on_a_kernels_roof(tmp_path: Path) -> None:
    """Or a job would take its times for impossible ones, and not begin."""
    program = program_of(
        ImportRequest(models.embedded(tmp_path / "m.onnx"), tmp_path / "program", TARGET)
    )
    table = next(task for task in program.tasks if "take" in task.name)
    assert table.args[0].nbytes == 30_000 * 384 * 4
    taken = table.args[-1].nbytes
    assert 128 * 8 < table.bytes <= 2 * taken + 128 * 8
    cut = next(task for task in program.tasks if "slice" in task.name)
    assert cut.bytes == 2 * 384 * 4, "of 128 rows one, whatever is done to all of them"
    assert cut.flops < 384 * 100
    product = next(task for task in program.tasks if "matmul" in task.name)
    most = sum(one.nbytes for one in product.args)
    assert 384 * 256 * 4 < product.bytes <= most, "all of its weights"


def test_of_a_result_all_is_needed_and_of_a_stage_what_is_asked_for() -> None:
    from tvm import te

    from tunefarm.frontend.relax.tir import Needed, argument_specs, needed

    x = te.placeholder((128, 64), "float32", name="x")
    table = te.placeholder((1000, 64), "float32", name="table")
    chosen = te.placeholder((8,), "int64", name="chosen")
    more = te.compute((128, 64), lambda i, j: x[i, j] + 1.0, name="more")
    cut = te.compute((1, 64), lambda i, j: more[2 * i, j] * more[2 * i, j], name="cut")
    taken = te.compute((8, 64), lambda i, j: table[chosen[i], j], name="taken")
    column = te.reduce_axis((0, 128), name="k")
    sums = te.compute((64,), lambda j: te.sum(more[column, j], column), name="sums")
    for arguments, wanted in (
        ([x, cut], Needed(2 * 64 * 4, 1 / 128)),
        ([x, more, cut], Needed(2 * 128 * 64 * 4 + 64 * 4, 1.0)),
        ([x, sums], Needed(128 * 64 * 4 + 64 * 4, 1.0)),
        ([table, chosen, taken], Needed(2 * 8 * 64 * 4 + 8 * 8, 1.0)),
    ):
        function = te.create_prim_func(arguments)
        assert needed(function, argument_specs(function)) == wanted


def test_a_power_that_roots_make_is_none(tmp_path: Path) -> None:
    program = program_of(
        ImportRequest(models.normalised(tmp_path / "m.onnx"), tmp_path / "program", TARGET)
    )
    passes = {one["pass"]: one["detail"] for one in program.evidence["passes"]}
    assert passes["tir.roots"] == "powers rewritten: 1"
    texts = [program.workload(task.id).read_text() for task in program.tasks]
    assert any("sqrt" in text for text in texts)
    assert not any(".pow" in text for text in texts)


def test_a_channel_shuffle_is_read_where_it_lies(tmp_path: Path) -> None:
    """By the grouped convolution after it: channels last, without a kernel of its own."""
    import onnxruntime
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module

    path = models.shuffled(tmp_path / "m.onnx")
    program = program_of(ImportRequest(path, tmp_path / "program", TARGET))
    passes = {one["pass"]: one["detail"] for one in program.evidence["passes"]}
    assert program.evidence["layout"] == "NHWC"
    assert passes["relax.absorb_shuffles"] == "channel shuffles absorbed: 1"
    assert sorted(task.name for task in program.tasks) == [
        *("conv2d_add", "conv2d_add_relu", "conv2d_add_relu"),
        *("shuffle_conv2d", "transpose", "transpose"),
    ]
    x = np.random.default_rng(0).normal(size=(1, 16, 9, 9)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    module = load_program_module(tmp_path / "program" / "program.json")
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_absorbed_shuffle_is_no_credit_for_another(tmp_path: Path) -> None:
    """Two that grouped convolutions read, and one that a dense one reads: channels stay first."""
    model = onnx.load(models.shuffled(tmp_path / "m.onnx"))
    new = onnx.helper.make_node
    for source, result in (("y", "s5"), ("c5", "s6")):
        model.graph.node.extend(
            [
                new("Reshape", [source, "apart5"], [f"{result}a"]),
                new("Transpose", [f"{result}a"], [f"{result}b"], perm=[0, 2, 1, 3, 4]),
                new("Reshape", [f"{result}b", "together5"], [result]),
                new("Conv", [result, f"w{result}"], ["c5"], group=2)
                if result == "s5"
                else new("Conv", [result, f"w{result}"], ["z"]),
            ]
        )
    constants = {
        "apart5": np.array([1, 2, 18, 5, 5]),
        "together5": np.array([1, 36, 5, 5]),
        "ws5": np.ones((36, 18, 1, 1), np.float32),
        "ws6": np.ones((8, 36, 1, 1), np.float32),
    }
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 8, 5, 5])
    )
    onnx.save(model, tmp_path / "three.onnx")
    program = program_of(ImportRequest(tmp_path / "three.onnx", tmp_path / "program", TARGET))
    assert program.evidence["layout"] == "NCHW"


def test_a_layout_that_would_leave_transposes_inside_is_another_one(tmp_path: Path) -> None:
    """It can be had when it is asked for; what nobody needs to compare has no other."""
    import onnxruntime
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module

    path = models.rows_inside(tmp_path / "m.onnx")
    programs = {
        layout: program_of(
            ImportRequest(path, tmp_path / f"program-{layout}", TARGET, layout=layout)
        )
        for layout in (None, "NCHW", "NHWC")
    }
    layouts = {
        wanted: (program.evidence["layout"], program.evidence["other_layout"])
        for wanted, program in programs.items()
    }
    assert layouts == {
        None: ("NCHW", "NHWC"),
        "NCHW": ("NCHW", None),
        "NHWC": ("NHWC", None),
    }
    x = np.random.default_rng(0).normal(size=(1, 16, 12, 10)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    for program in programs.values():
        module = load_program_module(program.module)
        machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
