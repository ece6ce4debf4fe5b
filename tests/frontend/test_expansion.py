"""Functions, of a model's own and of the standard's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.spelled import KNOWN, MOST, check, model_of, operators, random, run
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import RULES, expand, inline_functions


def test_a_models_own_functions_are_inlined():
    double = helper.make_function(
        "local", "Twice", ["a"], ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="local"),
        helper.make_node("Exp", ["t"], ["y"]),
    ]
    inputs = {"x": random(3)}
    model = model_of(nodes, inputs, ["y"], functions=[double])
    assert operators(check(model, inputs)) == {"Add", "Exp"}


def test_what_the_importer_lacks_is_what_the_standard_defines_it_by():
    inputs = {"x": random(3, 4)}
    model = model_of([helper.make_node("Celu", ["x"], ["y"], alpha=0.7)], inputs, ["y"])
    assert "Celu" not in operators(check(model, inputs))


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_by_its_definition(causal):
    """Four heads read by two of keys, with a mask."""
    inputs = {
        "q": random(2, 4, 5, 8),
        "k": random(2, 2, 6, 8, seed=1),
        "v": random(2, 2, 6, 8, seed=2),
        "mask": random(5, 6, seed=3),
    }
    node = helper.make_node("Attention", list(inputs), ["y"], is_causal=causal)
    assert "Attention" not in operators(check(model_of([node], inputs, ["y"], opset=23), inputs))


def test_a_row_that_a_mask_leaves_nothing_of():
    """Is all zeros, whatever a compiler takes for the largest of nothing."""
    inputs = {name: random(1, 2, 3, 4, seed=k) for k, name in enumerate("qkv")}
    inputs["mask"] = np.array([[True, True, False], [False, False, False], [True, False, True]])
    node = helper.make_node("Attention", list(inputs), ["y"])
    model = model_of([node], inputs, ["y"], opset=23)
    spelled = expand(model, KNOWN, MOST)
    read = {name for node in spelled.graph.node for name in node.input}
    largest = [node for node in spelled.graph.node if node.op_type == "ReduceMax"]
    assert not [node for node in largest if node.output[0] in read]
    (found,) = run(spelled, inputs)
    assert not found[:, :, 1].any()
    assert np.isfinite(found).all()


def test_a_normalisation_whose_mean_is_read():
    inputs = {"x": random(2, 3, 8), "scale": random(8), "bias": random(8)}
    node = helper.make_node("LayerNormalization", list(inputs), ["y", "mean", "spread"])
    spelled = check(model_of([node], inputs, ["y", "mean", "spread"]), inputs)
    assert "LayerNormalization" not in operators(spelled)
    plain = model_of([helper.make_node("LayerNormalization", list(inputs), ["y"])], inputs, ["y"])
    assert expand(plain, KNOWN, MOST) is plain


def test_nothing_to_spell_is_the_model_itself():
    inputs = {"x": random(2, 3)}
    model = model_of([helper.make_node("Exp", ["x"], ["y"])], inputs, ["y"])
    assert expand(inline_functions(model, MOST), KNOWN, MOST) is model


def test_every_rule_is_of_an_operator_of_the_standard():
    assert set(RULES) <= {schema.name for schema in onnx.defs.get_all_schemas()}


def test_functions_that_grow_without_end_are_refused():
    """Each calls the one before it twice: two to the fortieth nodes in a few kilobytes."""
    functions = []
    for number in range(40):
        name = f"f{number - 1}"
        nodes = [
            helper.make_node(name, ["a"], ["m"], domain="local"),
            helper.make_node(name, ["m"], ["b"], domain="local"),
        ]
        if number == 0:
            nodes = [helper.make_node("Exp", ["a"], ["b"])]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{number}", ["a"], ["b"], nodes, opsets))
    last = helper.make_node("f39", ["x"], ["y"], domain="local")
    graph = helper.make_graph(
        [last], "g", [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions)
    with pytest.raises(UnsupportedModel, match="functions inlined"):
        inline_functions(model, MOST)


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_a_loss_is_its_definition(opset):
    inputs = {"x": random(4, 5), "of": np.array([0, 2, 4, 1])}
    node = helper.make_node("SoftmaxCrossEntropyLoss", list(inputs), ["y"], reduction="mean")
    model = model_of([node], inputs, ["y"], opset=opset)
    spelled = expand(model, KNOWN - {"SoftmaxCrossEntropyLoss"}, MOST)
    np.testing.assert_allclose(run(spelled, inputs)[0], run(model, inputs)[0], rtol=1e-5)
    assert "SoftmaxCrossEntropyLoss" not in operators(spelled)
