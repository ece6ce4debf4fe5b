"""Reshapes that add or drop axes of one, moved out of the way: the same result, fewer of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.spelled import after
from tunefarm.frontend.onnx.unit_axes import sink_unit_axes

ROWS, WIDE = 6, 8


class Net:
    """A graph that is written line by line; shapes are ONNX's to infer."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shape = shape
        self.random = np.random.default_rng(7)

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def weights(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape).astype(np.float32))

    def shaped(self, name: str, *shape: int) -> str:
        return self.do("Reshape", name, self.constant(np.array(shape, np.int64)))

    def do(self, op: str, *inputs: str, **attributes: object) -> str:
        made = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], **attributes))
        return made

    def model(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        versions = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=8)
        return onnx.shape_inference.infer_shapes(model)


def sunk(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Counter[str]]:
    """A copy after the pass, with how many nodes of each kind it has; both compute the same."""
    made = after(sink_unit_axes, model)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feed = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    for want, got in zip(
        ReferenceEvaluator(model).run(None, feed),
        ReferenceEvaluator(made).run(None, feed),
        strict=True,
    ):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return made, Counter(node.op_type for node in made.graph.node)


def test_a_product_of_matrices_in_a_batch_of_one_has_no_reshapes_around_it() -> None:
    net = Net((1, ROWS, WIDE))
    rows = net.shaped("x", ROWS, WIDE)
    made = net.do("MatMul", rows, net.weights(WIDE, 5))
    made = net.do("Add", net.shaped(made, 1, ROWS, 5), net.weights(5))
    made = net.do("Relu", made)
    made = net.do("MatMul", net.shaped(made, ROWS, 5), net.weights(5, WIDE))
    made = net.do("Add", "x", net.shaped(made, 1, ROWS, WIDE))
    made = net.do("LayerNormalization", made, net.weights(WIDE), net.weights(WIDE), axis=-1)
    _, counts = sunk(net.model(made))
    assert counts["Reshape"] == 0
    assert counts["MatMul"] == 2


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5)])
def test_gemm_takes_more_axes_than_two(turned: int, bias: tuple[int, ...] | None) -> None:
    net = Net((1, ROWS, WIDE))
    weights = net.weights(5, WIDE) if turned else net.weights(WIDE, 5)
    more = (net.weights(*bias),) if bias else ()
    made = net.do("Gemm", net.shaped("x", ROWS, WIDE), weights, *more, transB=turned)
    _, counts = sunk(net.model(net.do("Tanh", net.shaped(made, 1, ROWS, 5))))
    assert counts["Reshape"] == counts["Gemm"] == 0


def test_who_needs_the_other_shape_gets_it() -> None:
    """An output of the graph, and one that folds an axis that would be another one."""
    net = Net((1, ROWS, WIDE))
    rows = net.shaped("x", ROWS, WIDE)
    total = net.do("ReduceSum", rows, net.constant(np.array([0])), keepdims=0)
    _, counts = sunk(net.model(net.do("Relu", rows), total))
    assert counts["Reshape"] == 1, "for both"
    heads = Net((1, ROWS, WIDE))
    made = heads.shaped(heads.do("Relu", heads.shaped("x", ROWS, WIDE)), 1, ROWS, 2, WIDE // 2)
    _, counts = sunk(heads.model(heads.do("Transpose", made, perm=[0, 2, 1, 3])))
    assert counts["Reshape"] == 1, "it reads what the other one was of"


def test_what_is_broadcast_over_it_stays_behind_it() -> None:
    net = Net((ROWS, WIDE))
    batch = net.do("Unsqueeze", "x", net.constant(np.array([0])))
    made = net.do("Add", batch, net.weights(3, ROWS, WIDE))
    _, counts = sunk(net.model(made))
    assert counts["Reshape"] == 1
    column = net.do("Add", net.do("Sqrt", net.do("Abs", batch)), net.weights(1, ROWS, 1))
    _, counts = sunk(net.model(column))
    assert counts["Reshape"] == 1, "of the result, and none of the column's: it is a constant"


def test_dynamic_quantisation_and_its_product_move_together() -> None:
    net = Net((1, ROWS, WIDE))
    rows = net.shaped("x", ROWS, WIDE)
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [rows], ["q", "s", "z"]))
    weights = net.constant(net.random.integers(-127, 128, (WIDE, 5), dtype=np.int8))
    zero = net.constant(np.zeros((), np.int8))
    made = net.do("Cast", net.do("MatMulInteger", "q", weights, "z", zero), to=1)
    made = net.do("Mul", made, net.do("Mul", "s", net.weights(1)))
    made = net.do("Add", net.shaped(made, 1, ROWS, 5), net.weights(5))
    _, counts = sunk(net.model(made))
    assert counts["Reshape"] == 0


@pytest.mark.parametrize(("opset", "first"), [(11, "Reshape"), (13, "Softmax")])
def test_softmax_of_old_was_of_all_axes_from_its_own_on(opset: int, first: str) -> None:
    """Its own being the second, where none is named: there nothing is moved."""
    net = Net((ROWS, WIDE))
    made = net.do("Softmax", net.shaped("x", 1, ROWS, WIDE))
    model, _ = sunk(net.model(made, opset=opset))
    assert model.graph.node[0].op_type == first


def test_a_branch_may_read_anything() -> None:
    """Of such a graph nothing is moved."""
    net = Net((1, ROWS, WIDE))
    rows = net.shaped("x", ROWS, WIDE)
    branches = [
        helper.make_graph(
            [helper.make_node(op, [rows], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, TensorProto.FLOAT, (ROWS, WIDE))],
        )
        for op in ("Relu", "Tanh")
    ]
    net.nodes.append(
        helper.make_node(
            *("If", [net.constant(np.array(True))], ["y"]),
            then_branch=branches[0],
            else_branch=branches[1],
        )
    )
    _, counts = sunk(net.model("y"))
    assert counts["Reshape"] == 1


STEPS = (
    *("relu", "bias", "scale", "row", "column", "skip", "product", "gemm", "norm", "softmax"),
    *("reshape", "squeeze", "unsqueeze", "heads", "transpose", "reduce"),
)


@given(steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=12), data=st.data())
@settings(max_examples=60)
def test_any_chain_computes_the_same(steps: list[str], data: st.DataObject) -> None:
    net = Net((1, ROWS, WIDE))
    now, shape = "x", (1, ROWS, WIDE)
    seen = {shape: [now]}
    for step in steps:
        rank = len(shape)
        match step:
            case "relu":
                now = net.do("Relu", now)
            case "bias":
                now = net.do("Add", now, net.weights(shape[-1]))
            case "scale":
                now = net.do("Mul", net.weights(), now)
            case "row":
                now = net.do("Sub", net.weights(1, 1, 1, shape[-1]), now)
                shape = (1,) * (4 - rank) + shape
            case "column" if rank >= 2:
                now = net.do("Add", now, net.weights(shape[-2], 1))
            case "skip":
                now = net.do("Add", now, data.draw(st.sampled_from(seen[shape])))
            case "product" if rank >= 2:
                now = net.do("MatMul", now, net.weights(shape[-1], WIDE))
                shape = (*shape[:-1], WIDE)
            case "gemm" if rank == 2:
                now = net.do("Gemm", now, net.weights(WIDE, shape[-1]), net.weights(WIDE), transB=1)
                shape = (shape[0], WIDE)
            case "norm":
                now = net.do("LayerNormalization", now, net.weights(shape[-1]), axis=rank - 1)
            case "softmax":
                now = net.do("Softmax", now, axis=-1)
            case "reshape":
                core = shape[next((n for n, s in enumerate(shape) if s != 1), rank - 1) :]
                shape = (1,) * data.draw(st.integers(0, 4 - len(core))) + core
                now = net.shaped(now, *shape)
            case "squeeze" if rank > 1 and shape[0] == 1:
                now = net.do("Squeeze", now, net.constant(np.array([0])))
                shape = shape[1:]
            case "unsqueeze" if rank < 4:
                now = net.do("Unsqueeze", now, net.constant(np.array([0])))
                shape = (1, *shape)
            case "heads" if rank == 3 and shape[-1] % 2 == 0:
                shape = (*shape[:-1], 2, shape[-1] // 2)
                now = net.shaped(now, *shape)
            case "transpose" if rank >= 2:
                now = net.do("Transpose", now, perm=[*range(rank - 2), rank - 1, rank - 2])
                shape = (*shape[:-2], shape[-1], shape[-2])
            case "reduce" if rank >= 2:
                axis = data.draw(st.integers(0, rank - 1))
                now = net.do("ReduceMean", now, axes=[axis], keepdims=1)
                shape = (*shape[:axis], 1, *shape[axis + 1 :])
        seen.setdefault(shape, []).append(now)
    if now != "x":
        sunk(net.model(now))


@pytest.mark.tvm
def test_what_follows_a_product_is_in_its_kernel(tmp_path: Path, target) -> None:
    from tests.bench import imported

    def kernels(around: bool) -> int:
        net = Net((1, ROWS, WIDE))
        made = net.do(
            "MatMul", net.shaped("x", ROWS, WIDE) if around else "x", net.weights(WIDE, 5)
        )
        made = net.do("Add", net.shaped(made, 1, ROWS, 5) if around else made, net.weights(5))
        model = tmp_path / f"{around}.onnx"
        onnx.save(net.model(net.do("Relu", made)), model)
        return len(imported(tmp_path / str(around), model, target).tasks)

    assert kernels(around=True) == kernels(around=False) == 1
