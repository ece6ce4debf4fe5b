"""Recurrences, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.spelled import KNOWN, MOST, check, model_of, operators, random
from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import expand

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6


def recurrent(kind, ways, parts, **attributes):
    """A model of one recurrence; `parts` of its optional inputs are given."""
    gates = GATES[kind]
    shapes = {
        "W": (ways, gates * HIDDEN, WIDTH),
        "R": (ways, gates * HIDDEN, HIDDEN),
        "B": (ways, 2 * gates * HIDDEN),
        "lengths": (BATCH,),
        "h": (ways, BATCH, HIDDEN),
        "c": (ways, BATCH, HIDDEN),
        "P": (ways, 3 * HIDDEN),
    }
    places = ["W", "R", "B", "lengths", "h", *(["c", "P"] if kind == "LSTM" else [])]
    given = [name if name in ("W", "R", *parts) else "" for name in places]
    constants = {n: 0.5 * random(*shapes[n], seed=k) for k, n in enumerate(given, 1) if n}
    inputs = {"x": random(STEPS, BATCH, WIDTH)}
    if "lengths" in parts:
        del constants["lengths"]
        inputs["lengths"] = np.array([2, 5, 4], np.int32)
    outputs = ["y", "last", *(["cell"] if kind == "LSTM" else [])]
    node = helper.make_node(kind, ["x", *given], outputs, hidden_size=HIDDEN, **attributes)
    return model_of([node], inputs, outputs, constants), inputs


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("parts", [(), ("B",), ("B", "h", "c"), ("B", "lengths")])
@pytest.mark.parametrize("kind", GATES)
def test_a_recurrence_is_its_steps(kind, parts, direction):
    ways = 2 if direction == "bidirectional" else 1
    model, inputs = recurrent(kind, ways, parts, direction=direction)
    assert not operators(check(model, inputs)) & set(GATES)


@pytest.mark.parametrize(
    ("kind", "parts", "attributes"),
    [
        ("GRU", ("B",), {"linear_before_reset": 1}),
        ("GRU", (), {"linear_before_reset": 1}),
        ("GRU", ("B", "h"), {"activations": ["HardSigmoid", "Relu"], "clip": 0.4}),
        ("LSTM", ("B", "c", "P"), {}),
        ("LSTM", ("B", "P"), {"clip": 0.3}),
        ("LSTM", ("B",), {"input_forget": 1}),
        ("RNN", ("B",), {"activations": ["Affine"], "activation_alpha": [0.5]}),
        ("RNN", ("B",), {"activations": ["ScaledTanh"], "activation_beta": [0.5]}),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_a_recurrence_with_settings(kind, parts, attributes):
    settings = {"activation_alpha": [0.5], "activation_beta": [0.5]} | attributes
    if "activations" not in attributes or kind != "RNN":
        settings = attributes
    check(*recurrent(kind, 1, parts, **settings))


def test_steps_share_their_weights():
    model, inputs = recurrent("LSTM", 1, ("B",))
    spelled = check(model, inputs)
    products = [node for node in spelled.graph.node if node.op_type == "MatMul"]
    assert len(products) == 1 + STEPS
    assert len({node.input[1] for node in products}) == 2


def test_a_long_recurrence_is_cut_in_two_steps():
    inputs = {"x": random(150, 1, 2)}
    constants = {"W": random(1, 3, 2), "R": 0.3 * random(1, 3, 3)}
    node = helper.make_node("RNN", ["x", "W", "R"], ["y"], hidden_size=3)
    spelled = check(model_of([node], inputs, ["y"], constants), inputs)
    most = max(len(node.output) for node in spelled.graph.node)
    assert most < 64


def test_too_many_steps_are_refused():
    model, _ = recurrent("LSTM", 1, ())
    with pytest.raises(UnsupportedModel, match=r"LSTM.* more than 40 nodes"):
        expand(model, KNOWN, 40)


def test_an_unknown_activation_is_refused():
    model, _ = recurrent("RNN", 1, ())
    model.graph.node[0].attribute.append(helper.make_attribute("activations", ["Foo"]))
    with pytest.raises(UnsupportedModel, match="activation 'Foo'"):
        expand(model, KNOWN, MOST)
