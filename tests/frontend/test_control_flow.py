"""Branches and loops whose course is known."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.spelled import BOOL, FLOAT, INT64, KNOWN, MOST, check, model_of, operators, random
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import expand


def body(nodes, inputs, outputs, constants=None):
    """Of a branch or a loop: inputs as (name, type, shape)."""
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )


def either(shape=(2, 3)):
    """Two branches, which read what lies around them."""
    then = body([helper.make_node("Exp", ["x"], ["a"])], [], [("a", FLOAT, [2, 3])])
    nodes = [helper.make_node("Reshape", ["x", "to"], ["b"])]
    other = body(nodes, [], [("b", FLOAT, shape)], {"to": np.array(shape)})
    return helper.make_node("If", ["which"], ["y"], then_branch=then, else_branch=other)


@pytest.mark.parametrize("which", [True, False])
def test_a_branch_that_is_known_is_taken(which):
    inputs = {"x": random(2, 3)}
    model = model_of([either((6, 1))], inputs, ["y"], {"which": np.array(which)})
    assert operators(check(model, inputs)) <= {"Exp", "Reshape", "Identity"}


def test_a_branch_by_a_size_is_known():
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["size"]),
        helper.make_node("Equal", ["size", "three"], ["which"]),
        either((6, 1)),
    ]
    inputs = {"x": random(2, 3)}
    constants = {"one": np.array(1), "three": np.array(3)}
    spelled = check(model_of(nodes, inputs, ["y"], constants), inputs)
    assert "If" not in operators(spelled)


@pytest.mark.parametrize("which", [True, False])
def test_of_branches_with_one_shape_both_are_computed(which):
    inputs = {"x": random(2, 3), "which": np.array(which)}
    assert "Where" in operators(check(model_of([either()], inputs, ["y"]), inputs))


def test_branches_of_two_shapes_stay():
    inputs = {"x": random(2, 3), "which": np.array(True)}
    model = model_of([either((6, 1))], inputs, ["y"])
    assert expand(model, KNOWN, MOST) is model


def looped(rounds, goes_on, scanned=True):
    """y += x * the round's number; each y is kept, too. The round reads x of around."""
    nodes = [
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Mul", ["x", "number"], ["part"]),
        helper.make_node("Add", ["before", "part"], ["after"]),
        helper.make_node("Identity", ["after"], ["kept"]),
        *goes_on,
    ]
    inputs = [("i", INT64, []), ("going", BOOL, []), ("before", FLOAT, [2])]
    outputs = [("still", BOOL, []), ("after", FLOAT, [2])]
    outputs += [("kept", FLOAT, [2])] if scanned else []
    node = helper.make_node(
        "Loop", [rounds, "", "start"], ["y", *(["all"] if scanned else [])],
        body=body(nodes, inputs, outputs),
    )  # fmt: skip
    return node


SAME = [helper.make_node("Identity", ["going"], ["still"])]


@pytest.mark.parametrize("scanned", [True, False])
def test_a_loop_is_its_rounds(scanned):
    inputs = {"x": random(2), "start": random(2, seed=1)}
    node = looped("rounds", SAME, scanned)
    model = model_of([node], inputs, list(node.output), {"rounds": np.array(4)})
    assert "Loop" not in operators(check(model, inputs))


def test_a_loop_that_may_end_early_stays():
    ends = [
        helper.make_node("ReduceSum", ["after"], ["sum"], keepdims=0),
        helper.make_node("Less", ["sum", "sum"], ["still"]),
    ]
    inputs = {"x": random(2), "start": random(2)}
    node = looped("rounds", ends)
    model = model_of([node], inputs, ["y"], {"rounds": np.array(4)})
    assert "Loop" in operators(expand(model, KNOWN, MOST))


def test_a_loop_of_endless_rounds_is_refused():
    inputs = {"x": random(2), "start": random(2)}
    model = model_of([looped("rounds", SAME)], inputs, ["y"], {"rounds": np.array(2**60)})
    with pytest.raises(UnsupportedModel, match=r"Loop.* more than 10000 nodes"):
        expand(model, KNOWN, MOST)


def test_a_loop_of_unknown_length_stays():
    inputs = {"x": random(2), "start": random(2), "rounds": np.array(4)}
    model = model_of([looped("rounds", SAME)], inputs, ["y"])
    assert "Loop" in operators(expand(model, KNOWN, MOST))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_scan_is_its_steps(backwards):
    nodes = [
        helper.make_node("Add", ["sum", "row"], ["moved"]),
        helper.make_node("Identity", ["moved"], ["kept"]),
    ]
    inner = body(
        nodes,
        [("sum", FLOAT, [2]), ("row", FLOAT, [2])],
        [("moved", FLOAT, [2]), ("kept", FLOAT, [2])],
    )
    direction = {"scan_input_directions": [1], "scan_output_directions": [1]} if backwards else {}
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=inner, num_scan_inputs=1,
        scan_input_axes=[1], scan_output_axes=[-1], **direction,
    )  # fmt: skip
    inputs = {"start": random(2), "x": random(2, 4)}
    assert "Scan" not in operators(check(model_of([node], inputs, ["last", "all"]), inputs))


def test_a_loop_inside_a_branch():
    inner = looped("rounds", SAME)
    then = body([inner], [], [("y", FLOAT, [2]), ("all", FLOAT, [4, 2])])
    nothing = [
        helper.make_node("Identity", ["x"], ["n"]),
        helper.make_node("Identity", ["table"], ["t"]),
    ]
    other = body(nothing, [], [("n", FLOAT, [2]), ("t", FLOAT, [4, 2])])
    node = helper.make_node("If", ["which"], ["p", "q"], then_branch=then, else_branch=other)
    inputs = {"x": random(2), "start": random(2), "table": random(4, 2)}
    constants = {"which": np.array(True), "rounds": np.array(4)}
    spelled = check(model_of([node], inputs, ["p", "q"], constants), inputs)
    assert not operators(spelled) & {"If", "Loop"}


@pytest.mark.parametrize("which", [True, False])
def test_what_only_branches_read(which):
    """A weight that stands outside; and a condition with an axis."""
    then = body([helper.make_node("Mul", ["x", "w"], ["a"])], [], [("a", FLOAT, None)])
    other = body([helper.make_node("Add", ["x", "w"], ["b"])], [], [("b", FLOAT, None)])
    node = helper.make_node("If", ["which"], ["y"], then_branch=then, else_branch=other)
    for axes in ((), (1,)):
        inputs = {"x": random(2, 3), "which": np.full(axes, which)}
        model = model_of([node], inputs, ["y"], {"w": random(3, seed=1)})
        assert "Where" in operators(check(model, inputs))
    inputs = {"x": random(), "which": np.array([which])}
    check(model_of([node], inputs, ["y"], {"w": random(seed=1)}), inputs)


def test_rows_that_nobody_says_the_shape_of():
    inner = body(
        [helper.make_node("Add", ["sum", "row"], ["moved"])],
        [("sum", FLOAT, [2]), ("row", FLOAT, [2])],
        [("moved", FLOAT, None)],
    )
    inner.node.append(helper.make_node("Identity", ["moved"], ["kept"]))
    inner.output.append(helper.make_empty_tensor_value_info("kept"))
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=inner, num_scan_inputs=1,
        scan_output_axes=[-1],
    )  # fmt: skip
    inputs = {"start": random(2), "x": random(4, 2)}
    check(model_of([node], inputs, ["last", "all"]), inputs)


def test_endless_rounds_of_nothing_are_refused():
    nothing = body(
        [],
        [("i", INT64, []), ("going", BOOL, []), ("v", FLOAT, [2])],
        [("going", BOOL, []), ("v", FLOAT, [2])],
    )
    node = helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=nothing)
    inputs = {"x": random(2)}
    model = model_of([node, helper.make_node("Exp", ["y"], ["z"])], inputs, ["z"],
                     {"rounds": np.array(2**60)})  # fmt: skip
    with pytest.raises(UnsupportedModel, match="Loop"):
        expand(model, KNOWN, MOST)


def test_a_constant_of_a_body_is_one_for_all_rounds():
    weight = numpy_helper.from_array(random(64, 64))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("MatMul", ["before", "w"], ["after"]),
        *SAME,
    ]
    inner = body(
        nodes,
        [("i", INT64, []), ("going", BOOL, []), ("before", FLOAT, [2, 64])],
        [("still", BOOL, []), ("after", FLOAT, [2, 64])],
    )
    node = helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=inner)
    inputs = {"x": random(2, 64) / 64}
    spelled = expand(model_of([node], inputs, ["y"], {"rounds": np.array(30)}), KNOWN, MOST)
    assert sum(1 for one in spelled.graph.initializer if list(one.dims) == [64, 64]) == 1


def test_a_condition_that_is_spelled_otherwise_stays():
    nodes = [
        helper.make_node("Constant", [], ["one"], value_int=1),
        helper.make_node("Cast", ["one"], ["still"], to=BOOL),
    ]
    inputs = {"x": random(2), "start": random(2)}
    model = model_of([looped("rounds", nodes)], inputs, ["y"], {"rounds": np.array(2)})
    assert "Loop" in operators(expand(model, KNOWN, MOST))
