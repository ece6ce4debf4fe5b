"""Branches and loops whose course is known before the run: they are what they come to.

A compiled program is one straight line. Exporters write an If where they could not tell whether a
dimension is 1, a Loop for a loop with a fixed number of rounds, a Scan for a recurrence.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from tunefarm.frontend.onnx.passes import Array, attribute, graphs_of, read
from tunefarm.frontend.spelled.site import NEGATIVE_AXES, WHERE, Site, known_shape


def branch(site: Site) -> bool:
    """If: the branch that is taken; where that is known in the run alone, both are computed and
    one is chosen, if they are of the same shapes."""
    condition = site.value(0)
    bodies = [site.attribute(name, None) for name in ("then_branch", "else_branch")]
    if condition is not None:
        for index, name in enumerate(splice(site, bodies[not condition.item()], {})):
            site.give(index, name)
        return True
    if site.opset < WHERE or not _are_alike(site):
        return False
    whether = site.reshape(site.input(0))
    taken, other = (splice(site, body, {}) for body in bodies)
    for index, pair in enumerate(zip(taken, other, strict=True)):
        site.give(index, site.emit("Where", whether, *pair))
    return True


def _are_alike(site: Site) -> bool:
    """Whether both branches make what is of the same types, and of the same, known, shapes."""
    node = site.facts.inferred.get(site.node.output[0])
    if node is None:
        return False
    pairs = zip(*(inner.output for inner in graphs_of(node)), strict=True)
    types = [[one.type.tensor_type for one in pair] for pair in pairs]
    return all(
        first.elem_type == second.elem_type
        and (shape := known_shape(first)) is not None
        and shape == known_shape(second)
        for first, second in types
    )


def loop(site: Site) -> bool:
    """Loop: round after round, if their number is known and none is the last before its time."""
    body: onnx.GraphProto = site.attribute("body", None)
    rounds, going = site.value(0), site.value(1)
    starts = (going is None and not site.input(1)) or (going is not None and bool(going.item()))
    if rounds is None or not starts or not _goes_on(site, body):
        return False
    count = int(rounds.item())
    site.check(count * max(1, len(body.node)))
    counts = body.input[0].name in {name for node in body.node for name in read(node)}
    counts |= body.input[0].name in {one.name for one in body.output}
    carried = list(site.node.input[2:])
    scanned: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    if scanned and count < 1:
        return False  # of which nothing could be put together
    true = site.constant(True, bool)
    for index in range(count):
        names = [site.constant(index if counts else 0, "int64"), true, *carried]
        _, *values = splice(site, body, _bound(body, names))
        carried = values[: len(carried)]
        for rows, value in zip(scanned, values[len(carried) :], strict=True):
            rows.append(site.unsqueeze(value, 0))
    for index, name in enumerate([*carried, *(site.concat(rows, 0) for rows in scanned)]):
        site.give(index, name)
    return True


def scan(site: Site) -> bool:
    """Scan: step after step. Before opset 9 it was another operator, with a batch."""
    body: onnx.GraphProto = site.attribute("body", None)
    if site.opset < 9:
        return False
    given = int(site.attribute("num_scan_inputs", 0))
    states = list(site.node.input[: len(site.node.input) - given])
    written = len(body.output) - len(states)
    axes = [_at(site, "scan_output_axes", index) for index in range(written)]
    if site.opset < NEGATIVE_AXES and min(axes, default=0) < 0:
        return False
    pieces = []
    for index in range(given):
        place = len(states) + index
        shape = site.shape(place)
        if shape is None:
            return False
        axis = _at(site, "scan_input_axes", index) % len(shape)
        if not shape[axis]:
            return False
        rows = site.split(site.input(place), axis, shape[axis])
        pieces.append([site.squeeze(row, axis) for row in rows])
        if _at(site, "scan_input_directions", index):
            pieces[-1].reverse()
    scanned: list[list[str]] = [[] for _ in range(written)]
    for step in zip(*pieces, strict=True):
        values = splice(site, body, _bound(body, [*states, *step]))
        states = values[: len(states)]
        for rows, value in zip(scanned, values[len(states) :], strict=True):
            rows.append(value)
    for index, name in enumerate(states):
        site.give(index, name)
    for index, rows in enumerate(scanned):
        if _at(site, "scan_output_directions", index):
            rows.reverse()
        joined = site.concat([site.unsqueeze(row, axes[index]) for row in rows], axes[index])
        site.give(len(states) + index, joined)
    return True


def _at(site: Site, name: str, index: int) -> int:
    values = site.attribute(name, [])
    return int(values[index]) if index < len(values) else 0


def _goes_on(site: Site, body: onnx.GraphProto) -> bool:
    """Whether each round of a loop says that there is another."""
    said, given = body.output[0].name, body.input[1].name
    makers = {name: node for node in body.node for name in node.output}
    while said in makers and makers[said].op_type in ("Identity", "Cast"):
        said = makers[said].input[0]
    constants = {one.name: numpy_helper.to_array(one) for one in body.initializer}
    if said in makers:
        value = _constant_of(makers[said])
    else:
        value = constants.get(said, site.graph.constants.get(said))
    return said == given or (value is not None and bool(value.item()))


def _bound(body: onnx.GraphProto, names: list[str]) -> dict[str, str]:
    return dict(zip((one.name for one in body.input), names, strict=True))


def splice(site: Site, body: onnx.GraphProto, bound: dict[str, str]) -> list[str]:
    """The body's nodes with names of their own; and what its outputs are called then. `bound`:
    what its inputs are. Names that are none of its own are those of the graph around it."""
    names = dict(bound)
    for one in body.initializer:
        names[one.name] = site.constant(numpy_helper.to_array(one))
    for node in body.node:
        value = _constant_of(node)
        if value is not None:  # one for all rounds
            names[node.output[0]] = site.constant(value)
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename(copy, names)
        for index, name in enumerate(node.output):
            if name:
                copy.output[index] = names[name] = site.fresh()
        site.add(copy)
    return [names.get(one.name, one.name) for one in body.output]


def _constant_of(node: onnx.NodeProto) -> Array | None:
    """What a Constant is, where that is a tensor."""
    tensor = attribute(node, "value", None) if node.op_type == "Constant" else None
    return None if tensor is None else numpy_helper.to_array(tensor)


def rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """What the node reads, and what graphs inside it read of those around."""
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for inner in graphs_of(node):
        own = {name for part in inner.node for name in part.output}
        own |= {value.name for value in (*inner.input, *inner.initializer)}
        seen = {name: new for name, new in names.items() if name not in own}
        for part in inner.node:
            rename(part, seen)
        for output in inner.output:
            output.name = seen.get(output.name, output.name)
