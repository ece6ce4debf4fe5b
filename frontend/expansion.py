"""Operators that the compiler has not, or has otherwise: spelled as others before it sees them.

By rules of ours (recurrences step by step, branches and loops whose course is known, what the
importer takes for something else), or by the definition that the ONNX standard itself gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
import onnx.defs
import onnx.inliner
from onnx import helper, numpy_helper

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.control_flow import branch, loop, rename, scan
from tunefarm.frontend.onnx_passes import Graph, fold_constants
from tunefarm.frontend.recurrent import recurrence
from tunefarm.frontend.respelled import RESPELLED
from tunefarm.frontend.site import Facts, Site

_STANDARD = ("", "ai.onnx")

Rule = Callable[[Site], bool]
"""Puts nodes in the place of another; False where nothing is to be done, or not yet."""

RULES: Mapping[str, Rule] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrence),
    **RESPELLED,
}


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without functions of its own, by which some exporters keep a model's modules apart."""
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def expand(model: onnx.ModelProto, known: frozenset[str], most: int) -> onnx.ModelProto:
    """The model for an importer with the operators `known`; itself where nothing is to be spelled.

    Raises:
        UnsupportedModel: it would have more than `most` nodes, or means what nobody computes.
    """
    if not any(_rule(node, known) for node in model.graph.node):
        return model
    graph = Graph(model)
    is_folded, has_changed = False, False
    while True:
        is_changed = _expand_once(graph, known, most)
        has_changed |= is_changed
        if not is_changed and is_folded:
            return graph.store() if has_changed else model
        fold_constants(graph)
        is_folded = not is_changed


def _expand_once(graph: Graph, known: frozenset[str], most: int) -> bool:
    """Whether any node became others."""
    facts = Facts(graph)
    nodes: list[onnx.NodeProto] = []
    is_changed = False
    for node in graph.nodes:
        rule, site = _rule(node, known), Site(node, facts)
        spelled = rule is not None and rule(site)
        is_changed |= spelled
        nodes.extend(site.nodes if spelled else [node])
        if len(nodes) > most:
            raise UnsupportedModel(
                f"{node.op_type} (node {node.name or node.output[0]!r}) makes the model one of "
                f"more than {most} nodes",
                hint="Give it fewer steps: recurrences and loops are spelled step by step.",
            )
    graph.nodes = nodes
    return is_changed


def _rule(node: onnx.NodeProto, known: frozenset[str]) -> Rule | None:
    if node.domain not in _STANDARD:
        return None
    if node.op_type in RULES:
        return RULES[node.op_type]
    if node.op_type in _DEFINED and _DEFINED[node.op_type](node):
        return by_definition
    return None if node.op_type in known else by_definition


def _has_outputs(node: onnx.NodeProto) -> bool:
    """More than the first."""
    return any(node.output[1:])


_DEFINED: Mapping[str, Callable[[onnx.NodeProto], bool]] = {
    **dict.fromkeys(("Attention", "RMSNormalization"), lambda _: True),
    "LayerNormalization": _has_outputs,
}
"""Operators that the importer knows by name, but not (these nodes of) the standard's."""


def by_definition(site: Site) -> bool:
    """As the function that the standard defines the operator by, where it does."""
    node = site.node
    types = {name: site.facts.type(name) for name in node.input if name}
    if not all(types.values()):
        return False
    inputs = []
    for name, number in types.items():
        inputs.append(helper.make_tensor_value_info(name, number, site.facts.shape(name)))
    constants = [
        numpy_helper.from_array(site.graph.constants[name], name)
        for name in types
        if name in site.graph.constants
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    one = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs, constants),
        opset_imports=[helper.make_opsetid("", site.opset)],
    )
    body = onnx.inliner.inline_selected_functions(
        one, [("", node.op_type)], inline_schema_functions=True
    ).graph
    if len(body.node) == 1 and body.node[0].op_type == node.op_type:
        return False
    own = {name: name for name in (*types, *node.output)}
    for part in body.node:
        rename(part, own)
        for index, name in enumerate(part.output):
            if name and name not in own:
                own[name] = site.fresh()
            part.output[index] = own.get(name, name)
        site.nodes.append(part)
    return True
