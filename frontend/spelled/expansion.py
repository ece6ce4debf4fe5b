"""Operators that the compiler has not, or has otherwise: spelled as others before it sees them.

By rules of ours (recurrences step by step, branches and loops whose course is known, what the
importer takes for something else), or by the definition that the ONNX standard itself gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import onnx
import onnx.defs
import onnx.inliner

from tunefarm.errors import UnsupportedModel
from tunefarm.frontend.onnx.passes import Graph, fold_constants, graphs_of, is_standard
from tunefarm.frontend.spelled.control_flow import branch, loop, rename, scan
from tunefarm.frontend.spelled.operators import REFUSED, RESPELLED, refuse
from tunefarm.frontend.spelled.recurrent import recurrence
from tunefarm.frontend.spelled.site import Facts, Site

_MOST_ROUNDS = 200
"""Of rewriting: each infers all shapes anew."""

Rule = Callable[[Site], bool]
"""Puts nodes in the place of another; False where nothing is to be done, or not yet."""

RULES: Mapping[str, Rule] = {
    "If": branch,
    "Loop": loop,
    "Scan": scan,
    **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrence),
    **RESPELLED,
}


def inline_functions(model: onnx.ModelProto, most: int) -> onnx.ModelProto:
    """Without functions of its own, by which some exporters keep a model's modules apart.

    Raises:
        UnsupportedModel: it would have more than `most` nodes.
    """
    if not model.functions:
        return model
    if _inlined(model) > most:
        raise UnsupportedModel(f"with its functions inlined the model has more than {most} nodes")
    return onnx.inliner.inline_local_functions(model)


def _inlined(model: onnx.ModelProto) -> float:
    """How many nodes it has then; without end where a function calls itself."""
    bodies = {(one.domain, one.name): one.node for one in model.functions}
    known: dict[tuple[str, str], float] = dict.fromkeys(bodies, math.inf)  # while it is counted

    def size(nodes: Iterable[onnx.NodeProto]) -> float:
        total = 0.0
        for node in nodes:
            total += called(node.domain, node.op_type)
            total += sum(size(graph.node) for graph in graphs_of(node))
        return total

    counted: set[tuple[str, str]] = set()

    def called(domain: str, name: str) -> float:
        key = (domain, name)
        if key not in bodies:
            return 1
        if key not in counted:
            counted.add(key)
            known[key] = size(bodies[key])
        return known[key]

    return size(model.graph.node)


def expand(model: onnx.ModelProto, known: frozenset[str], most: int) -> onnx.ModelProto:
    """The model for an importer with the operators `known`; itself where nothing is to be spelled.

    Raises:
        UnsupportedModel: it would have more than `most` nodes, or means what nobody computes.
    """
    if not any(_rule(node, known) or node.op_type in REFUSED for node in model.graph.node):
        return model
    graph = Graph(model)
    is_folded, has_changed = False, False
    for _ in range(_MOST_ROUNDS):
        is_changed = _expand_once(graph, known, most)
        has_changed |= is_changed
        if not is_changed and is_folded:
            break
        fold_constants(graph)
        is_folded = not is_changed
    else:
        raise UnsupportedModel(
            f"what its branches and loops do depends on one another {_MOST_ROUNDS} deep"
        )
    for node in graph.nodes:
        refuse(node)
    return graph.store() if has_changed else model


def _expand_once(graph: Graph, known: frozenset[str], most: int) -> bool:
    """Whether any node became others."""
    facts = Facts(graph)
    nodes: list[onnx.NodeProto] = []
    is_changed = False
    for node in graph.nodes:
        rule, site = _rule(node, known), Site(node, facts, most - len(nodes))
        spelled = rule is not None and rule(site)
        is_changed |= spelled
        nodes.extend(site.nodes if spelled else [node])
    graph.nodes = nodes
    return is_changed


def _rule(node: onnx.NodeProto, known: frozenset[str]) -> Rule | None:
    if not is_standard(node):
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
    function = _definition(site)
    if function is None:
        return False
    names = dict(zip(function.input, site.node.input, strict=False))
    names |= dict.fromkeys(function.input[len(site.node.input) :], "")
    names |= {o: site.output(k) for k, o in enumerate(function.output) if site.output(k)}
    attributes = {one.name: one for one in site.node.attribute}
    for part in function.node:
        rename(part, names)
        _set_attributes(part, attributes, site)
        for index, name in enumerate(part.output):
            if name and name not in names:
                names[name] = site.fresh()
            part.output[index] = names.get(name, name)
        site.add(part)
    return True


def _definition(site: Site) -> onnx.FunctionProto | None:
    """Of the operator's version in the model's opset; some depend on the types of what is read."""
    node, function = site.node, onnx.FunctionProto()
    try:
        schema = onnx.defs.get_schema(node.op_type, site.opset)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        function.ParseFromString(schema.get_function_with_opset_version(site.opset))
    else:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= site.opset]
        types = [site.facts.type_proto(name) for name in node.input]
        if not versions or any(
            name and kind is None for name, kind in zip(node.input, types, strict=True)
        ):
            return None
        kinds = [(kind or onnx.TypeProto()).SerializeToString() for kind in types]
        made = schema.get_context_dependent_function_with_opset_version(
            max(versions), node.SerializeToString(), kinds
        )
        function.ParseFromString(made)
        if not all(_is_still(part.op_type, max(versions), site.opset) for part in function.node):
            return None
    return function if function.node else None


def _is_still(operator: str, opset: int, later: int) -> bool:
    """Whether a node as of `opset` can be read as one of a later one: what changed is at most which
    types it is of, and what it may say or read besides."""
    one, other = (onnx.defs.get_schema(operator, version) for version in (opset, later))
    return len(one.inputs) <= len(other.inputs) and all(
        name in other.attributes and old.default_value == other.attributes[name].default_value
        for name, old in one.attributes.items()
    )


def _set_attributes(
    part: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto], site: Site
) -> None:
    """The node's own attributes where a definition refers to them, or their defaults."""
    defaults = onnx.defs.get_schema(site.node.op_type, site.opset).attributes
    kept = []
    for inner in graphs_of(part):
        for deeper in inner.node:
            _set_attributes(deeper, given, site)
    for one in part.attribute:
        wanted = one.ref_attr_name
        if wanted:
            found = onnx.AttributeProto()
            found.CopyFrom(given[wanted] if wanted in given else defaults[wanted].default_value)
            if not found.type:
                continue  # neither given nor with a default: left out
            found.name = one.name
            kept.append(found)
        else:
            kept.append(one)
    del part.attribute[:]
    part.attribute.extend(kept)
