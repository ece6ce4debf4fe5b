"""What the expressions of a kernel read, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tunefarm.search.kernels.splice import renamed


def loads_of(node: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (TensorLoad, found.append))
    return found


def loads_in_any_case(node: Any) -> list[Any]:
    """Those that no condition inside `node` decides about: the others may be of places that are not
    there."""
    found: list[Any] = []

    def kept(choice: Any, mutator: Any) -> Any:
        chooses = isinstance(choice, tirx.Select) or choice.op.name == "prim.if_then_else"
        return choice if chooses else mutator.default_mutate(choice)

    def read(load: Any, mutator: Any) -> Any:
        found.append(load)
        return mutator.default_mutate(load)

    structural_mutate(node, ((Call, kept), (tirx.Select, kept), (TensorLoad, read)))
    return found


def place_of(indices: Sequence[Any], buffer: Any) -> Any:
    """Of an element among all of a buffer's."""
    place = tirx.const(0, "int64")
    for index, size in zip(indices, buffer.shape, strict=True):
        place = place * int(size) + index
    return place


def uses(node: Any, variable: Any) -> bool:
    found: list[Any] = []
    structural_walk(node, (Var, found.append))
    return any(one.same_as(variable) for one in found)


def inlined(value: Any, stages: Mapping[Any, Any]) -> Any:
    """`value` with what `stages` make of an element in the place of where it is read, and so on;
    they are by their buffer, and none of them reduces."""

    def read(load: Any) -> Any:
        if load.source not in stages:
            return load
        node = stages[load.source].node
        variables = [one.var for one in node.iter_vars]
        here = dict(zip(variables, load.indices, strict=True))
        return structural_map(renamed(node.body.value, here), (TensorLoad, read))

    return structural_map(value, (TensorLoad, read))


def lie_together(
    indices: Sequence[Any], shape: Sequence[Any], axis: Any, extents: Mapping[Any, int], count: int
) -> bool:
    """Whether each `count` elements along the variable `axis` lie side by side, from a multiple of
    as many on.

    Args:
        extents: of the variables in `indices`, `axis` among them, whose values begin at nought.
    """
    extent = extents[axis]
    if extent % count:
        return False
    analyzer = Analyzer()
    for variable, size in extents.items():
        analyzer.bind(variable, tvm.ir.Range(0, size), True)
    first, lane = (Var(name, axis.ty) for name in ("first", "lane"))
    analyzer.bind(first, tvm.ir.Range(0, extent // count), True)
    analyzer.bind(lane, tvm.ir.Range(0, count), True)
    place: Any = 0
    for index, size in zip(indices, shape, strict=True):
        place = place * size + renamed(index, {axis: first * count + lane})
    start = analyzer.simplify(renamed(place, {lane: tirx.const(0, str(lane.ty.dtype))}))
    apart = analyzer.simplify(place - start - lane)
    if not (isinstance(apart, tirx.IntImm) and int(apart.value) == 0):
        return False
    known = analyzer.modular_set(start)
    return gcd(int(known.coeff), int(known.base)) % count == 0


def is_its_stages(workload: Any) -> bool:
    """Whether the stages of a kernel and their axes say all that it does: it has one result, the
    last stage's, and no stage is left out under some condition of its loops, or begins elsewhere
    than at nought."""
    function = workload["main"]
    realized: list[Any] = []
    blocks: list[Any] = []
    structural_walk(function.body, (SBlockRealize, realized.append))
    structural_walk(function.body, (SBlock, blocks.append))
    arguments = set(function.params)
    stores = [block.body for block in blocks if isinstance(block.body, tirx.BufferStore)]
    return (
        [store.buffer in arguments for store in stores].count(True) == 1
        and stores[-1].buffer in arguments
        and all(_is(one.predicate, 1) for one in realized)
        and all(_is(v.dom.min, 0) for block in blocks for v in block.iter_vars)
    )


def _is(expression: Any, value: int) -> bool:
    return isinstance(expression, tirx.IntImm) and int(expression.value) == value
