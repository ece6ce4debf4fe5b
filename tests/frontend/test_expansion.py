"""Operators spelled as others: the model computes the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.spelled.expansion import RULES, expand, inline_functions

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
KNOWN = frozenset(schema.name for schema in onnx.defs.get_all_schemas()) - {"Celu", "Swish"}
"""An importer's, which lacks two that the standard defines by others."""
MOST = 10_000


def model_of(nodes, inputs, outputs, constants=None, opset=17, functions=()):
    """Inputs as arrays; outputs as names, of any type and shape."""
    graph = helper.make_graph(
        nodes,
        "test",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid("local", 1) for _ in functions)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)
    return onnx.shape_inference.infer_shapes(model)


def run(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def check(model, inputs, tolerance=2e-6):
    """What it is spelled as, once that was seen to compute the same."""
    spelled = expand(inline_functions(model), KNOWN, MOST)
    wanted, found = run(model, inputs), run(spelled, inputs)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
    return spelled


def operators(model):
    return {node.op_type for node in model.graph.node}


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


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
    assert expand(inline_functions(model), KNOWN, MOST) is model


IMAGE = random(1, 2, 9, 7)


def resized(**settings):
    """By what is a constant: scales, or sizes."""
    scales, sizes = settings.pop("scales", None), settings.pop("sizes", None)
    names = ["x", "", "scales"] if scales else ["x", "", "", "sizes"]
    constants = {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes)}
    node = helper.make_node("Resize", names, ["y"], **settings)
    return node, {"x": IMAGE}, constants


@pytest.mark.parametrize(
    "settings",
    [
        {"sizes": [1, 2, 4, 3], "mode": "linear", "antialias": 1},
        {"sizes": [1, 2, 4, 5], "mode": "cubic", "antialias": 1},
        {"scales": [1, 1, 0.6, 1.3], "mode": "linear"},
        {"scales": [1, 1, 0.6, 1.3], "mode": "cubic"},
        {"scales": [1, 1, 0.6, 1.3], "mode": "nearest"},
        {"scales": [1, 1, 2, 2], "mode": "cubic", "exclude_outside": 1},
        {"sizes": [18, 20], "axes": [2, 3], "mode": "linear"},
        {"sizes": [12, 12], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        {"sizes": [12, 12], "axes": [3, 2], "keep_aspect_ratio_policy": "not_smaller"},
    ],
    ids=str,
)
def test_resizes(settings):
    node, inputs, constants = resized(**settings)
    check(model_of([node], inputs, ["y"], constants, opset=19), inputs, 2e-5)


def test_a_resize_that_the_importer_knows_stays():
    node, inputs, constants = resized(scales=[1, 1, 2, 2], mode="linear")
    model = model_of([node], inputs, ["y"], constants, opset=19)
    assert expand(model, KNOWN, MOST) is model


@pytest.mark.parametrize(("mode", "scales"), [("nearest", [1, 1, 2, 3]), ("linear", [1, 1, 2, 2])])
def test_what_resizes_were_before(mode, scales):
    node = helper.make_node("Upsample", ["x", "scales"], ["y"], mode=mode)
    constants = {"scales": np.array(scales, np.float32)}
    model = model_of([node], {"x": IMAGE}, ["y"], constants, opset=9)
    assert "Upsample" not in operators(check(model, {"x": IMAGE}))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize("how", [{}, {"inverse": 1}, {"onesided": 1}], ids=str)
def test_a_transform_is_a_product(parts, axis, length, how):
    if parts == 2 and "onesided" in how:
        return  # of complex numbers there is no half
    inputs = {"x": random(2, 8, 6, parts)}
    constants = {"axis": np.array(axis)} | ({"n": np.array(length)} if length else {})
    names = ["x", "n" if length else "", "axis"]
    node = helper.make_node("DFT", names, ["y"], **how)
    check(model_of([node], inputs, ["y"], constants, opset=20), inputs, 2e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
def test_frames_of_a_signal_are_a_convolution(onesided, window):
    inputs = {"x": random(2, 100, 1)}
    constants = {"step": np.array(10), "length": np.array(16)}
    constants |= {"window": np.hanning(16).astype(np.float32)} if window else {}
    names = ["x", "step", "window" if window else "", "length"]
    node = helper.make_node("STFT", names, ["y"], onesided=onesided)
    spelled = check(model_of([node], inputs, ["y"], constants), inputs, 2e-5)
    assert "STFT" not in operators(spelled)


def test_a_decoder_without_a_past():
    inputs = {"past": random(2, 0, 3), "new": random(2, 4, 3)}
    model = model_of([helper.make_node("Concat", ["past", "new"], ["y"], axis=1)], inputs, ["y"])
    assert "Concat" not in operators(check(model, inputs))


WEIGHTS = random(2, 3, 3, 3)


@pytest.mark.parametrize(
    ("padding", "wanted"),
    [
        *itertools.product(("NOTSET", "SAME_UPPER", "SAME_LOWER"), ([17, 14], [18, 16])),
        ("NOTSET", [20, 15]),  # with room: ONNX Runtime has that without SAME alone
    ],
)
def test_a_transposed_convolution_of_a_size(wanted, padding):
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=wanted, auto_pad=padding
    )
    inputs = {"x": IMAGE}
    check(model_of([node], inputs, ["y"], {"w": WEIGHTS}), inputs)


OTHERS = {
    "power of two types": ("Pow", {"x": np.abs(random(3, 4)), "e": np.array([2, 1, 0, 3])}, {}, {}),
    "power of whole numbers": ("Pow", {"x": np.arange(6), "e": np.array(3)}, {}, {}),
    "infinities above": (
        "IsInf", {"x": np.float32([1, np.inf, -np.inf])}, {}, {"detect_negative": 0},
    ),
    "infinities below": (
        "IsInf", {"x": np.float32([1, np.inf, -np.inf])}, {}, {"detect_positive": 0},
    ),
    "lengths of one": ("LpNormalization", {"x": random(3, 4)}, {}, {"p": 2, "axis": 0}),
    "sums of one": ("LpNormalization", {"x": random(3, 4)}, {}, {"p": 1}),
    "ones where": (
        "OneHot", {"x": np.array([[1, -1], [0, 3]])},
        {"depth": np.array(4), "values": np.float32([0.5, 2])}, {"axis": 1},
    ),
    "as another": ("CastLike", {"x": random(3), "like": np.array([1])}, {}, {}),
    "an identity's matrix": ("EyeLike", {"x": random(3, 4)}, {}, {"k": 1, "dtype": INT64}),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_others(case):
    operator, inputs, constants, attributes = OTHERS[case]
    node = helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)
    check(model_of([node], inputs, ["y"], constants), inputs)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("places", [1, -1, [0], [1, 2], [-2, -1]], ids=str)
def test_a_part_is_cut_out(places, opset):
    inputs = {"x": random(2, 3, 4)}
    node = helper.make_node("Gather", ["x", "places"], ["y"], axis=1)
    model = model_of([node], inputs, ["y"], {"places": np.array(places)}, opset=opset)
    assert "Slice" in operators(check(model, inputs))


@pytest.mark.parametrize("places", [[2, 1], [0, 2], [[0, 1]], [1, 1]], ids=str)
def test_what_is_no_part_is_gathered(places):
    inputs = {"x": random(2, 3, 4)}
    node = helper.make_node("Gather", ["x", "places"], ["y"], axis=1)
    model = model_of([node], inputs, ["y"], {"places": np.array(places)})
    assert expand(model, KNOWN, MOST) is model


def test_the_mask_of_what_drops_nothing():
    inputs = {"x": random(3, 4)}
    model = model_of([helper.make_node("Dropout", ["x"], ["y", "kept"])], inputs, ["y", "kept"])
    assert "Dropout" not in operators(check(model, inputs))


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truths(operator):
    inputs = {"x": random(3, 4) > 0}
    node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
    model = model_of([node], inputs, ["y"], {"axes": np.array([1])}, opset=20)
    check(model, inputs)


def test_training_is_refused():
    inputs = {"x": random(2, 3, 4)}
    names = [*"sbmv"]
    ones = {name: np.ones(3, np.float32) for name in names}
    node = helper.make_node("BatchNormalization", ["x", *names], ["y", "a", "b"], training_mode=1)
    with pytest.raises(UnsupportedModel, match="training mode"):
        expand(model_of([node], inputs, ["y"], ones), KNOWN, MOST)
    node = helper.make_node("Dropout", ["x", "", "training"], ["y"])
    with pytest.raises(UnsupportedModel, match="training mode"):
        expand(model_of([node], inputs, ["y"], {"training": np.array(True)}), KNOWN, MOST)


def test_largest_samples_of_regions_are_refused():
    inputs = {"x": IMAGE, "regions": np.float32([[0, 0, 4, 4]]), "of": np.array([0])}
    node = helper.make_node("RoiAlign", list(inputs), ["y"], mode="max")
    with pytest.raises(UnsupportedModel, match="RoiAlign"):
        expand(model_of([node], inputs, ["y"]), KNOWN, MOST)


def test_every_rule_is_of_an_operator_of_the_standard():
    assert set(RULES) <= {schema.name for schema in onnx.defs.get_all_schemas()}
