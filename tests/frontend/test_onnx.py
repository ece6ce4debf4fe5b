"""Reading hostile files, and graph passes that change nothing but the cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunefarm.errors import InvalidModel, UnsupportedModel, UsageError
from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.frontend.onnx.file import (
    ImportLimits,
    bind_shapes,
    input_specs,
    name_plainly,
    read_model,
)
from tunefarm.frontend.onnx.padding import fold_padding
from tunefarm.frontend.onnx.passes import PASSES, Graph, attribute, fold_affine, fold_constants
from tunefarm.frontend.zoo.networks import zoo_model, zoo_names

LIMITS = ImportLimits(nodes=1000, elements=2**26, model_bytes=2**24)


def model(nodes, inputs, outputs, constants=(), opset: int = 13) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def relu() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"])], [("x", [2, 3])], [("y", [2, 3])])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        (b"", "is empty"),
        (b"hello, this is no protobuf", "not an ONNX model"),
        (b"\x00" * 100, "not an ONNX model|no ONNX graph"),
        ("truncated", "not an ONNX model|not a valid"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: object, words: str) -> None:
    path = tmp_path / "m.onnx"
    if content == "truncated":
        whole = zoo_model("squeezenet").SerializeToString()
        content = whole[: len(whole) // 2]
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(InvalidModel, match=words) as caught:
        read_model(path, LIMITS)
    assert caught.value.exit_code == 3


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel):
        read_model(tmp_path, LIMITS)


def test_a_constant_of_two_to_the_forty_is_refused(tmp_path: Path) -> None:
    huge = model(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])],
        [],
        [("y", [2**20, 2**20])],
        [("s", np.array([2**20, 2**20]))],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(huge.SerializeToString())
    with pytest.raises(InvalidModel, match="more than"):
        read_model(path, LIMITS)


def test_a_huge_input_and_too_many_nodes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    wide = model([helper.make_node("Relu", ["x"], ["y"])], [("x", [2**40])], [("y", [2**40])])
    path.write_bytes(wide.SerializeToString())
    with pytest.raises(InvalidModel, match="input 'x'"):
        read_model(path, LIMITS)
    path.write_bytes(relu().SerializeToString())
    with pytest.raises(InvalidModel, match="nodes"):
        read_model(path, ImportLimits(nodes=0))


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    one = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", [2048])],
        [("y", [2048])],
        [("w", np.ones(2048, np.float32))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(one, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert len(read_model(path, LIMITS).graph.initializer) == 1
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InvalidModel, match=r"w\.bin"):
        read_model(path, LIMITS)


def test_shapes_are_bound_or_asked_for() -> None:
    open_ = model([helper.make_node("Relu", ["x"], ["y"])], [("x", ["n", 3])], [("y", ["n", 3])])
    with pytest.raises(UnsupportedModel, match="n") as caught:
        bind_shapes(open_, {})
    assert "--shape x=1,3" in caught.value.hint
    with pytest.raises(UsageError, match="no such input"):
        bind_shapes(open_, {"z": (1, 3)})
    with pytest.raises(UsageError, match="dimensions given"):
        bind_shapes(open_, {"x": (1,)})
    bind_shapes(open_, {"x": (4, 3)})
    assert input_specs(open_)[0].shape == (4, 3)


def run(one: onnx.ModelProto, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(one.SerializeToString())
    return session.run(None, feed)


def test_affine_chains_fold_into_convolutions() -> None:
    rng = np.random.default_rng(0)

    def constant(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
        helper.make_node("Mul", ["n", "s"], ["p"]),
        helper.make_node("Add", ["t", "p"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("BatchNormalization", ["r", "g", "b", "m", "v"], ["y"]),
    ]
    constants = [("w", constant(4, 3, 3, 3)), ("s", constant(1, 4, 1, 1)), ("t", constant(4, 1, 1))]
    constants += [(name, constant(4)) for name in "gbmv"]
    one = model(nodes, [("x", [1, 3, 8, 8])], [("y", [1, 4, 8, 8])], constants)
    feed = {"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    want = run(one, feed)
    graph = Graph(one)
    fold_affine(graph)
    folded = graph.store()
    assert [n.op_type for n in folded.graph.node] == ["Conv", "Relu", "Mul", "Add"]
    np.testing.assert_allclose(run(folded, feed)[0], want[0], rtol=1e-5, atol=1e-5)


def test_a_convolution_read_twice_is_not_folded_into() -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3, 1, 1)).astype(np.float32)
    scale = rng.normal(size=(1, 4, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Mul", ["c", "s"], ["p"]),
        helper.make_node("Add", ["c", "p"], ["y"]),
    ]
    shapes = [("x", [1, 3, 4, 4])], [("y", [1, 4, 4, 4])]
    one = model(nodes, *shapes, [("w", weights), ("s", scale)])
    feed = {"x": rng.normal(size=(1, 3, 4, 4)).astype(np.float32)}
    want = run(one, feed)
    graph = Graph(one)
    fold_affine(graph)
    np.testing.assert_allclose(run(graph.store(), feed)[0], want[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("pad", "pads", "folded"),
    [
        ({"pads": [0, 0, 0, 1, 0, 0, 2, 1]}, None, True),
        ({"pads": [0, 0, 0, 1, 0, 0, 2, 1], "value": 0.0}, [1, 1, 0, 0], True),
        ({"pads": [0, 0, 0, 1, 0, 0, 2, 1], "value": 1.0}, None, False),
        ({"pads": [0, 0, 0, 1, 0, 0, 2, 1], "mode": "edge"}, None, False),
        ({"pads": [0, 0, 0, -1, 0, 0, 2, 1]}, None, False),
        ({"pads": [0, 1, 0, 0, 0, 0, 0, 0]}, None, False),
    ],
)
@pytest.mark.parametrize("opset", [10, 13])
@pytest.mark.parametrize("alone", [True, False])
def test_zeros_around_an_image_become_padding(
    pad: dict[str, Any], pads: list[int] | None, folded: bool, opset: int, alone: bool
) -> None:
    attributes, inputs, constants = dict(pad), ["x"], []
    if opset >= 11:  # the sizes and the value are inputs
        constants = [("pads", np.array(attributes.pop("pads")))]
        inputs.append("pads")
        if "value" in attributes:
            constants.append(("value", np.float32(attributes.pop("value"))))
            inputs.append("value")
    own = {"pads": pads} if pads else {"auto_pad": "VALID"}
    channels = 4 if folded or sum(pad["pads"][:2]) == 0 else 5
    weights = np.random.default_rng(0).normal(size=(2, channels, 3, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Pad", inputs, ["p"], **attributes),
        helper.make_node("Conv", ["p", "w"], ["y"], **own),
        helper.make_node("Conv" if alone else "ReduceSum", ["p", "w"] if alone else ["p"], ["z"]),
    ]
    outputs = [("y", [None] * 4), ("z", [None] * 4)]
    one = model(nodes, [("x", [1, 4, 8, 8])], outputs, [("w", weights), *constants], opset)
    feed = {"x": np.random.default_rng(1).normal(size=(1, 4, 8, 8)).astype(np.float32)}
    want = run(one, feed)
    graph = Graph(one)
    fold_padding(graph)
    after = graph.store()
    onnx.checker.check_model(after)
    assert ("Pad" not in {node.op_type for node in after.graph.node}) == (folded and alone)
    for got, wanted in zip(run(after, feed), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_shape_arithmetic_is_folded() -> None:
    nodes = [
        helper.make_node("Shape", ["w"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Add", ["x", "z"], ["y"]),
    ]
    one = model(nodes, [("x", [2, 3])], [("y", [2, 3])], [("w", np.ones((2, 3), np.float32))])
    graph = Graph(one)
    fold_constants(graph)
    assert [n.op_type for n in graph.nodes] == ["Add"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["squeezenet", "shufflenet", "inception_v1", "mobilenet_v2", "efficientnet_b0"]
)
def test_real_networks_compute_the_same_after_the_passes(name: str) -> None:
    one = zoo_model(name)
    spec = input_specs(one)[0]
    feed = {spec.name: np.random.default_rng(0).normal(size=spec.shape).astype(np.float32)}
    want = run(one, feed)
    graph = Graph(one)
    for graph_pass in PASSES:
        graph_pass(graph)
    after = graph.store()
    onnx.checker.check_model(after)
    np.testing.assert_allclose(run(after, feed)[0], want[0], rtol=1e-3, atol=1e-7)
    assert "BatchNormalization" not in {n.op_type for n in after.graph.node}


def test_the_zoo_is_seeded() -> None:
    assert "squeezenet" in zoo_names()
    first, again, other = (zoo_model("squeezenet", s).SerializeToString() for s in (0, 0, 1))
    assert first == again != other
    with pytest.raises(UsageError, match="no network"):
        zoo_model("nonet")


def test_inputs_get_names_that_a_compiler_takes() -> None:
    nodes = [
        helper.make_node("Add", ["a/b:0", "plain"], ["input_a_b_0"]),
        helper.make_node("Mul", ["a/b:0", "input_a_b_0"], ["out/put"]),
    ]
    names = ("a/b:0", "plain", "1")
    proto = model(nodes, [(n, [2]) for n in names], [("out/put", [2]), ("1", [2])])
    given = {name: np.full(2, n + 1, np.float32) for n, name in enumerate(names)}

    def computed(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)

    before = computed(given)
    name_plainly(proto)
    onnx.checker.check_model(proto)
    assert [one.name for one in proto.graph.input] == ["input_a_b_0_", "plain", "input_1"]
    assert [one.name for one in proto.graph.output] == ["out/put", "1"]
    now = [one.name for one in proto.graph.input]
    after = computed(dict(zip(now, given.values(), strict=True)))
    assert all((one == other).all() for one, other in zip(before, after, strict=True))


def asked_for_its_size(opset: int = 13) -> onnx.ModelProto:
    """As exporters write `x.view(x.size(0), -1)`, `.expand(...)` and a division by a size."""
    node = helper.make_node
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Shape", ["r"], ["s"]),
        *(node("Gather", ["s", "zero"], ["rows"]), node("Unsqueeze", ["rows", "first"], ["one"])),
        *(node("Concat", ["one", "rest"], ["to"], axis=0), node("Reshape", ["r", "to"], ["flat"])),
        # Known only once the first is folded:
        *(node("Shape", ["flat"], ["t"]), node("Equal", ["t", "eight"], ["is"])),
        *(node("Where", ["is", "ones", "t"], ["w"]), node("Expand", ["column", "w"], ["wide"])),
        *(node("Add", ["flat", "wide"], ["sum"]), node("Size", ["sum"], ["n"])),
        *(
            node("Cast", ["n"], ["count"], to=TensorProto.FLOAT),
            node("Div", ["sum", "count"], ["y"]),
        ),
        node("Shape", ["y"], ["shape"], **({"start": 1} if opset >= 15 else {})),
    ]
    constants = {
        "zero": np.array(0, np.int64),
        "first": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
        "eight": np.array([8, 8], np.int64),
        "ones": np.array([1, 1], np.int64),
        "column": np.array([[1.0], [2.0]], np.float32),
    }
    outputs = [("y", [2, 12]), ("shape", [1 if opset >= 15 else 2])]
    one = model(nodes, [("x", [2, 3, 4])], outputs, list(constants.items()))
    one.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
    one.opset_import[0].version = opset
    return one


@pytest.mark.parametrize("opset", [13, 15])
def test_shapes_that_are_known_before_the_run_are_constants(opset: int) -> None:
    one = asked_for_its_size(opset)
    onnx.checker.check_model(one)
    feed = {"x": np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)}
    want = run(one, feed)
    graph = Graph(one)
    fold_constants(graph)
    assert [n.op_type for n in graph.nodes] == ["Relu", "Reshape", "Add", "Div", "Constant"]
    after = graph.store()
    onnx.checker.check_model(after)
    for got, wanted in zip(run(after, feed), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_outputs_shape_from_before_the_inputs_were_bound_is_not_believed() -> None:
    one = asked_for_its_size()
    bind_shapes(one, {"x": (5, 3, 4)})  # the outputs still say two rows
    graph = Graph(one)
    graph.constants["column"] = np.ones((5, 1), np.float32)
    fold_constants(graph)
    (shape,) = (node for node in graph.nodes if node.op_type == "Constant")
    assert numpy_helper.to_array(attribute(shape, "value", None)).tolist() == [5, 12]


def test_shapes_that_depend_on_values_stay() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Shape", ["at"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = Graph(model(nodes, [("x", [2, 3])], [("y", [2])], []))
    fold_constants(graph)
    assert [n.op_type for n in graph.nodes] == ["NonZero", "Shape", "Cast"]


def _of_constants(node: onnx.NodeProto, **constants: np.ndarray) -> Graph:
    """A graph in which `node` makes `made` of constants, and that is added to an input."""
    nodes = [node, helper.make_node("Add", ["x", node.output[0]], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_empty_tensor_value_info("x")],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return Graph(helper.make_model(graph, opset_imports=opsets))


def test_sums_in_half_precision_are_not_folded_in_it() -> None:
    ones = np.ones(1000, numpy_dtype("bfloat16"))
    graph = _of_constants(helper.make_node("ReduceSum", ["a"], ["made"], keepdims=0), a=ones)
    fold_constants(graph)
    assert "made" not in graph.constants, "it would be 256"
    graph = _of_constants(
        helper.make_node("ReduceSum", ["a"], ["made"], keepdims=0), a=ones.astype(np.float32)
    )
    fold_constants(graph)
    assert graph.constants["made"] == 1000


def test_operators_of_others_are_not_folded() -> None:
    node = helper.make_node("Trilu", ["a"], ["made"], domain="com.microsoft")
    graph = _of_constants(node, a=np.ones((2, 2), np.float32))
    fold_constants(graph)
    assert "made" not in graph.constants


def test_what_a_branch_keeps_beside_the_file_is_missed(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(3, np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="gone.bin")
    output = helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [3])
    node = helper.make_node("Add", ["x", "w"], ["a"])
    branch = helper.make_graph([node], "branch", [], [output], [weight])
    choice = helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=branch)
    graph = helper.make_graph(
        [choice],
        "g",
        [
            helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3]),
            helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(InvalidModel, match=r"external data of 'w', 'gone.bin', is missing"):
        read_model(path, ImportLimits())


@pytest.mark.parametrize(("name", "millions"), [("regnety_800mf", 6.2), ("resnext50", 25.0)])
def test_networks_of_groups_are_of_the_size_they_are_known_for(name: str, millions: float) -> None:
    model = zoo_model(name)
    onnx.checker.check_model(model, full_check=True)
    weights = sum(int(np.prod(one.dims)) for one in model.graph.initializer)
    assert round(weights / 1e6, 1) == millions
    groups = [a.i for n in model.graph.node for a in n.attribute if a.name == "group"]
    assert sum(one > 1 for one in groups) == {"regnety_800mf": 14, "resnext50": 16}[name]
