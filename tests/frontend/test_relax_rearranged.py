"""Turns and reshapes put off: fewer of them, and the same result."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.frontend.test_relax_operators import TARGET, computes_the_same
from tests.spelled import model_of, random
from tunefarm.devices.target import parse_target
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, load_program

pytestmark = pytest.mark.tvm
INTEGERS = parse_target("llvm:mcpu=icelake-server:num-cores=2")
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


def imported(directory: Path, nodes, shape, constants, least=0.01) -> tuple[Program, Counter[str]]:
    """The network, once it was seen to compute the same, and how often it calls which kernel."""
    path = directory / "m.onnx"
    model = model_of(nodes, {"x": np.zeros(shape, np.float32)}, ["y"], constants)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, directory / "program", TARGET))
    program = load_program(directory / "program")
    computes_the_same(program, path, shape, least)
    return program, Counter(task.name for task in program.tasks for _ in range(task.weight))


def _normalising_blocks():
    """ConvNeXt's, two of them: their nodes, and constants."""
    nodes = [
        node("Conv", ["x", "stem"], "s", kernel_shape=[2, 2], strides=[2, 2]),
        node("Transpose", ["s"], "sl", perm=TO_LAST),
        node("LayerNormalization", ["sl", "scale"], "sn", axis=-1),
        node("Transpose", ["sn"], "sf", perm=TO_FIRST),
    ]
    before = "sf"
    for block in "ab":
        nodes += [
            node("Conv", [before, "depthwise"], f"{block}c", group=16, pads=[1, 1, 1, 1]),
            node("Transpose", [f"{block}c"], f"{block}l", perm=TO_LAST),
            node("LayerNormalization", [f"{block}l", "scale"], f"{block}n", axis=-1),
            node("MatMul", [f"{block}n", "up"], f"{block}u"),
            node("Relu", [f"{block}u"], f"{block}r"),
            node("MatMul", [f"{block}r", "down"], f"{block}d"),
            node("Transpose", [f"{block}d"], f"{block}f", perm=TO_FIRST),
            node("Mul", [f"{block}f", "gamma"], f"{block}g"),
            node("Add", [f"{block}g", before], f"{block}y"),
        ]
        before = f"{block}y"
    nodes += [
        node("ReduceMean", [before], "m", axes=[2, 3]),
        node("Reshape", ["m", "flat"], "y"),
    ]
    constants = {
        "stem": random(16, 3, 2, 2),
        "depthwise": random(16, 1, 3, 3),
        "scale": random(16),
        "up": random(16, 32),
        "down": random(32, 16),
        "gamma": random(16, 1, 1),
        "flat": np.array([1, 16]),
    }
    return nodes, constants


def test_a_block_that_normalises_channels_stays_channels_last(tmp_path: Path) -> None:
    """ConvNeXt's: turned for a product, back for the sum; the sum is in the product's kernel."""
    nodes, constants = _normalising_blocks()
    program, kernels = imported(tmp_path, nodes, (1, 3, 12, 14), constants)
    assert program.evidence["layout"] == "NHWC"
    assert kernels == {
        "transpose": 1,  # of the image that is given
        "conv2d": 3,
        "layer_norm": 3,
        "matmul_relu": 2,
        "matmul_multiply_add": 2,
        "mean": 1,
        "reshape": 1,  # what is returned is no view
    }


def test_quantised_blocks_stay_channels_last(tmp_path: Path) -> None:
    """Turns meet their contraries though what is turned becomes 8 bits in between, and back."""
    import tvm
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module
    from tunefarm.frontend.zoo.quantiser import quantised

    nodes, constants = _normalising_blocks()
    shape, path = (1, 3, 12, 14), tmp_path / "m.onnx"
    model = model_of(nodes, {"x": np.zeros(shape, np.float32)}, ["y"], constants)
    onnx.save(quantised(model, "uint8"), path)
    run_import(ImportRequest(path, tmp_path / "program", INTEGERS))
    program = load_program(tmp_path / "program")
    assert program.evidence["layout"] == "NHWC"
    names = [task.name for task in program.tasks for _ in range(task.weight)]
    assert sum("transpose" in name for name in names) == 1  # of the image that is given
    assert sum("matmul_fours" in name for name in names) == 4
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = onnxruntime.InferenceSession(path, options).run(None, {"x": x})
    module = load_program_module(program.directory / "program.json")
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    made = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert len(np.unique(wanted)) > 8
    apart = np.abs(made - wanted) / np.abs(wanted).max()
    assert np.mean(apart < 1e-5) > 0.9, "else more than sums by half a step are apart"
    assert apart.max() < 0.03


def test_what_follows_a_reshaped_image_is_in_its_kernel(tmp_path: Path) -> None:
    """Segformer's: rows of channels as an image for a convolution, and rows again."""
    nodes = [
        node("MatMul", ["x", "up"], "u"),
        node("Transpose", ["u"], "t", perm=[0, 2, 1]),
        node("Reshape", ["t", "image"], "i"),
        node("Conv", ["i", "depthwise"], "c", group=32, pads=[1, 1, 1, 1]),
        node("Reshape", ["c", "rows"], "r"),
        node("Transpose", ["r"], "l", perm=[0, 2, 1]),
        node("Mul", ["l", "scale"], "m"),
        node("Sigmoid", ["m"], "s"),
        node("Mul", ["m", "s"], "g"),
        node("MatMul", ["g", "down"], "y"),
    ]
    constants = {
        "up": random(8, 32),
        "depthwise": random(32, 1, 3, 3),
        "image": np.array([1, 32, 5, 7]),
        "rows": np.array([1, 32, 35]),
        "scale": random(32),
        "down": random(32, 8),
    }
    _, kernels = imported(tmp_path, nodes, (1, 35, 8), constants)
    assert kernels == {
        "matmul": 2,
        "conv2d_multiply_tir_sigmoid_multiply": 1,
    }


@pytest.mark.parametrize(
    ("bias", "wanted"),
    [
        ((3, 1), {"matmul": 1, "reshape_add_relu": 1}),  # of some of the axes that were one
        ((3, 4), {"matmul_add_relu": 1, "reshape": 1}),  # of all of them
    ],
)
def test_a_bias_is_added_before_a_reshape_where_it_can_be_reshaped_back(
    tmp_path: Path, bias: tuple[int, ...], wanted: dict[str, int]
) -> None:
    nodes = [
        node("MatMul", ["x", "weights"], "p"),
        node("Reshape", ["p", "heads"], "h"),
        node("Add", ["h", "each"], "a"),
        node("Relu", ["a"], "y"),
    ]
    constants = {
        "weights": random(8, 12),
        "heads": np.array([5, 3, 4]),
        "each": random(*bias, seed=1),
    }
    _, kernels = imported(tmp_path, nodes, (5, 8), constants)
    assert kernels == wanted


def test_what_was_turned_and_is_needed_as_it_was_is_turned_once(tmp_path: Path) -> None:
    """Nothing is gained by putting it off: two would need it."""
    nodes = [
        node("Transpose", ["x"], "t", perm=[1, 0]),
        node("Relu", ["t"], "r"),
        node("MatMul", ["r", "weights"], "p"),
        node("Softmax", ["r"], "s", axis=1),
        node("Add", ["p", "s"], "y"),
    ]
    constants = {"weights": random(6, 6)}
    _, kernels = imported(tmp_path, nodes, (6, 9), constants)
    assert sum("transpose" in name for name in kernels.elements()) == 1


def test_a_network_of_a_reshape_alone_has_a_kernel(tmp_path: Path) -> None:
    """There is no library without one."""
    nodes = [node("Reshape", ["x", "shape"], "y")]
    _, kernels = imported(tmp_path, nodes, (4, 6), {"shape": np.array([3, 8])})
    assert kernels == {"reshape": 1}


def test_a_constant_may_have_more_axes_than_what_is_turned(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], "t", perm=[1, 0]),
        node("Add", ["t", "each"], "a"),
        node("Tanh", ["a"], "y"),
    ]
    imported(tmp_path, nodes, (4, 6), {"each": random(3, 6, 4)})


def test_what_becomes_larger_is_not_turned_then(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], "t", perm=[1, 0, 2]),
        node("Mul", ["t", "many"], "m"),
        node("MatMul", ["m", "weights"], "y"),
    ]
    constants = {"many": random(3, 2, 40), "weights": random(40, 8)}
    program, _ = imported(tmp_path, nodes, (2, 3, 1), constants)
    turned = [task for task in program.tasks if "transpose" in task.name]
    assert all(task.args[0].nbytes == 4 * 6 for task in turned), "not what it is broadcast to"


def test_a_product_that_ends_the_network_has_the_rows_that_it_has(tmp_path: Path) -> None:
    """A result is no view: its reshape would copy it."""
    nodes = [
        node("Conv", ["x", "w"], "c", kernel_shape=[1, 1]),
        node("Transpose", ["c"], "t", perm=TO_LAST),
        node("MatMul", ["t", "up"], "u"),
        node("Relu", ["u"], "r"),
        node("MatMul", ["r", "down"], "d"),
        node("Tanh", ["d"], "y"),
    ]
    constants = {"w": random(8, 4, 1, 1), "up": random(8, 16), "down": random(16, 24)}
    program, kernels = imported(tmp_path, nodes, (1, 4, 5, 7), constants)
    assert not any("reshape" in name for name in kernels), kernels
    shapes = {task.name: task.args[-1].shape for task in program.tasks}
    assert shapes["matmul_relu"] == (35, 16)
    assert shapes["matmul_fast_tanh"] == (1, 5, 7, 24)


def test_two_reshapes_alone_have_kernels(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [node("Reshape", ["x", "a"], "y"), node("Reshape", ["x", "b"], "z")]
    constants = {"a": np.array([3, 8]), "b": np.array([8, 3])}
    model = model_of(nodes, {"x": np.zeros((4, 6), np.float32)}, ["y", "z"], constants)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, tmp_path / "program", TARGET))
    program = load_program(tmp_path / "program")
    assert {task.name for task in program.tasks} == {"reshape"}
    computes_the_same(program, path, (4, 6))


def test_sizes_that_an_input_decides_are_refused_as_such(tmp_path: Path) -> None:
    """Whatever is done to such a tensor."""
    nodes = [
        node("NonZero", ["x"], "n"),
        node("Transpose", ["n"], "t"),
        node("Cast", ["t"], "c", to=1),
        helper.make_node("Split", ["c"], ["p", "q"], axis=1),
        node("ReduceMax", ["p"], "m", axes=[0], keepdims=1),
        node("Transpose", ["x"], "u"),
        node("Add", ["m", "u"], "y"),
    ]
    path = tmp_path / "m.onnx"
    model = model_of(nodes, {"x": np.zeros((2, 5), np.float32)}, ["y"], {})
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedModel, match="depend on what"):
        run_import(ImportRequest(path, tmp_path / "program", TARGET))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", None])
def test_rows_are_flat_in_every_layout(tmp_path: Path, layout: str | None) -> None:
    nodes = [
        node("Conv", ["x", "w"], "c", kernel_shape=[1, 1]),
        node("Transpose", ["c"], "t", perm=TO_LAST),
        node("MatMul", ["t", "up"], "u"),
        node("Transpose", ["u"], "f", perm=TO_FIRST),
        node("Conv", ["f", "v"], "y", kernel_shape=[1, 1]),
    ]
    constants = {"w": random(8, 4, 1, 1), "up": random(8, 16), "v": random(4, 16, 1, 1)}
    path = tmp_path / "m.onnx"
    model = model_of(nodes, {"x": np.zeros((1, 4, 5, 7), np.float32)}, ["y"], constants)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, tmp_path / "program", TARGET, layout=layout))
    program = load_program(tmp_path / "program")
    (product,) = (task for task in program.tasks if task.name == "matmul")
    assert product.args[-1].shape == (35, 16)
    computes_the_same(program, path, (1, 4, 5, 7))


@st.composite
def rearrangements(draw):
    """A shape, how it is turned, and what it is reshaped to then."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    turned = [shape[axis] for axis in order]
    wanted = []
    for size in turned:
        parts = draw(st.sampled_from([[size], [1, size], [size, 1]]))
        if size in (4, 6):
            parts = draw(st.sampled_from([parts, [2, size // 2], [size // 2, 2]]))
        wanted += parts
    while len(wanted) > 1 and draw(st.booleans()):
        place = draw(st.integers(0, len(wanted) - 2))
        wanted[place : place + 2] = [prod(wanted[place : place + 2])]
    return tuple(shape), tuple(order), tuple(wanted)


@given(rearrangements())
@settings(max_examples=500, deadline=None)
def test_a_reshape_before_a_turn_is_the_same(case) -> None:
    from tunefarm.frontend.relax.rearranged import reshaped

    shape, order, wanted = case
    x = np.arange(prod(shape)).reshape(shape)
    turned = x.transpose(order)
    found = reshaped(turned.shape, order, wanted)
    if found is not None:
        before, turn = found
        np.testing.assert_array_equal(x.reshape(before).transpose(turn), turned.reshape(wanted))
        return
    assume(len(wanted) < 6)
    for turn in permutations(range(len(wanted))):  # none of them is the same either
        before = [wanted[turn.index(axis)] for axis in range(len(wanted))]
        other = x.reshape(before).transpose(turn)
        assert not np.array_equal(other, turned.reshape(wanted))


OPERATIONS = ("relu", "turn", "split", "join", "scale", "bias", "sum", "mean")


@given(st.lists(st.sampled_from(OPERATIONS), min_size=2, max_size=9), st.randoms())
@settings(max_examples=20, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_rearranged_computes_the_same(tmp_path_factory, operations, chance) -> None:
    name, nodes, constants = "x", [], {}
    shape = chance.choice([(2, 3, 4, 5), (1, 6, 1, 4), (3, 1, 8)])
    shapes = {name: shape}
    for place, what in enumerate(operations):
        made, value = f"t{place}", f"c{place}"
        rank = len(shape)
        if what == "relu":
            nodes.append(node("Tanh", [name], made))
        elif what == "turn":
            order = list(range(rank))[::-1]
            if chance.random() < 0.2:
                nodes.append(node("Transpose", [name], made))
            else:
                chance.shuffle(order)
                nodes.append(node("Transpose", [name], made, perm=order))
            shape = tuple(shape[axis] for axis in order)
        elif what in ("split", "join"):
            axis = chance.randrange(rank)
            half = 2 if shape[axis] % 2 == 0 else 1
            if what == "split" and rank < 5:
                shape = (*shape[:axis], half, shape[axis] // half, *shape[axis + 1 :])
            else:
                axis = min(axis, rank - 2)
                shape = (*shape[:axis], prod(shape[axis : axis + 2]), *shape[axis + 2 :])
            constants[value] = np.array(shape)
            nodes.append(node("Reshape", [name, value], made))
        elif what == "sum":
            others = [other for other, size in shapes.items() if size == shape]
            nodes.append(node("Add", [name, chance.choice([name, *others])], made))
        elif what == "mean":
            axis = chance.randrange(rank)
            nodes.append(node("ReduceMean", [name], made, axes=[axis]))
            shape = tuple(1 if a == axis else size for a, size in enumerate(shape))
        else:
            kept = [size if chance.random() < 0.5 else 1 for size in shape]
            kept = kept[chance.randrange(rank + 1) :]
            if chance.random() < 0.2 and len(kept) == rank < 5:
                kept = [2, *kept]
                shape = (2, *shape)
            constants[value] = random(*kept, seed=place)
            nodes.append(node("Mul" if what == "scale" else "Add", [name, value], made))
        shapes[made] = shape
        name = made
    nodes.append(node("Sigmoid", [name], "y"))
    directory = tmp_path_factory.mktemp("rearranged")
    imported(directory, nodes, shapes["x"], constants, least=-1.0)  # means are all the same
