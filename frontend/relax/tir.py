"""A kernel as TensorIR: its arguments, and the form in which it is hashed and tuned (needs TVM)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var
from tvm.s_tir import SBlock
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_map, structural_walk

from tunefarm.frontend.program import TensorSpec


def argument_specs(function: Any) -> tuple[TensorSpec, ...]:
    """Shapes and dtypes of a PrimFunc's buffers: inputs, then outputs."""
    return tuple(
        TensorSpec(f"a{index}", tuple(int(d) for d in info.shape), str(info.dtype))
        for index, info in enumerate(ms.arg_info.ArgInfo.from_prim_func(function))
    )


def free_arguments(function: Any) -> tuple[int, ...]:
    """Positions of a kernel's arguments whose layout is free: its weights."""
    key = "layout_free_buffers"
    free = function.attrs[key] if function.attrs and key in function.attrs else []
    return tuple(int(place) for place in free)


@dataclass(frozen=True)
class Needed:
    """What a call cannot do without.

    Attributes:
        bytes: read and written, no element of an argument more than once: of one of which some
            elements are read alone (rows of a table, every other column) no more than are read.
        share: of its operations at the least: less than 1 where a part is taken of what a stage
            before it would compute whole.
    """

    bytes: int
    share: float


def needed(function: Any, args: Sequence[TensorSpec]) -> Needed:
    """Of a kernel as it is imported: its stages one after another in their order."""
    stages = [b for b in _of_type(function.body, SBlock) if not _of_type(b.body, SBlock)]
    arguments = [argument.__chandle__() for argument in function.params]
    written: set[int] = set()
    reads: dict[int, float] = {}
    least = 1.0
    for stage in reversed(stages):
        extents = {axis.var.__chandle__(): int(axis.dom.extent) for axis in stage.iter_vars}
        share = 1.0
        for result in (store.buffer for store in _of_type(stage.body, tirx.BufferStore)):
            place, elements = result.__chandle__(), math.prod(map(int, result.ty.shape))
            written.add(place)
            if place not in arguments:  # of a result all is asked for, whoever reads some of it
                share = min(share, reads.get(place, elements) / max(1, elements))
        least = min(least, share)
        # Of the same places however often it asks for them.
        for load in {str(one): one for one in _of_type(stage.body, TensorLoad)}.values():
            place = load.source.__chandle__()
            reads[place] = reads.get(place, 0.0) + share * _places(load, extents)
    total = 0
    for spec, place in zip(args, arguments, strict=True):
        elements = max(1, math.prod(spec.shape))
        read = elements if place in written else min(elements, reads.get(place, elements))
        total += math.ceil(spec.nbytes * read / elements)
    return Needed(total, least)


def _places(load: Any, extents: Mapping[int, int]) -> float:
    """At how many it reads, at the most: for each value of the axes that it depends on. What is no
    axis of its stage is a loop inside of that: how long, is not looked for."""
    places = list(load.indices)
    tensors = {one.source.__chandle__() for one in _of_type(places, TensorLoad)}
    found = {one.__chandle__() for one in _of_type(places, Var)} - tensors
    return math.prod(extents.get(place, math.inf) for place in found)


def workload_module(function: Any) -> tvm.IRModule:
    """A kernel alone, under the name every tuner expects, its stages named alike in every
    network."""
    taken: Counter[str] = Counter()

    def alike(block: Any) -> Any:
        name = stage_name(block.name_hint)
        if name == block.name_hint:
            return block
        taken[name] += 1
        return SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            name if taken[name] == 1 else f"{name}_{taken[name]}",
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    body = structural_map(function.body, (SBlock, alike))
    function = function.with_body(body) if taken else function
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def stage_name(name: str) -> str:
    """What the stage `name` is called whatever the tensor is called that it reduces: the compiler
    names it after that one, and a schedule finds it by its name."""
    return _REDUCTION.sub(r"x_\1", name)


_REDUCTION = re.compile(r"^(?!T_|pool_)\w+?_(red_temp|red|var_sum|sum|mean|var)(?:_\d+)?$")
"""The compiler's own names for reductions of a tensor; T_ and pool_ begin names of operators."""


def workload_id(workload: tvm.IRModule) -> str:
    """The structural hash: equal kernels of any model have it in common; 16 hex digits."""
    return f"{int(ms.utils.shash2hex(workload), 16):016x}"


_LEAST_DIVISOR = 1e-37
"""Of which the reciprocal is a number in single precision."""


def shared_divisors(function: Any) -> tuple[Any, int]:
    """Divisions by what a whole row shares, a number among it, as products with its reciprocal, and
    how many there were: a row then needs one division, where a vector of them takes ten cycles.

    In single precision alone, where the last bit of the quotient may differ; and where the divisor
    is smaller than 2e-38, whose reciprocal is not finite, the quotient is not finite either.
    """
    count = 0
    summed = [
        axis.var
        for block in _of_type(function.body, SBlock)
        for axis in block.iter_vars
        if int(axis.iter_type) == tirx.IterVar.CommReduce
    ]

    def in_store(store: Any) -> Any:
        if not store.indices:
            return store
        along = [*_of_type(store.indices[-1], Var), *summed]

        def product(division: Any) -> Any:
            nonlocal count
            loads = _of_type(division.b, TensorLoad)
            number = (
                isinstance(division.b, tirx.FloatImm) and abs(division.b.value) > _LEAST_DIVISOR
            )
            inner = [use for use in _of_type(division.b, Var) if any(map(use.same_as, along))]
            if inner or not (loads or number) or str(division.ty) != "float32":
                return division
            count += 1
            if number:
                return division.a * tirx.const(1.0 / division.b.value, "float32")
            return division.a * (tirx.const(1.0, "float32") / division.b)

        value = structural_map(store.value, (tirx.Div, product))
        if value.same_as(store.value):
            return store
        return tirx.BufferStore(store.buffer, value, store.indices)

    body = structural_map(function.body, (tirx.BufferStore, in_store))
    return (function.with_body(body) if count else function), count


_ROOTS = {0.5: (1,), 0.25: (2,), 0.75: (1, 2), 1.5: (0, 1)}
"""Exponents that are sums of 2**-n, n being how often the root is drawn."""


def roots(function: Any) -> tuple[Any, int]:
    """Powers with such exponents as products of square roots, and how many there were: a processor
    draws roots in vectors, and calls a library for a power of each element.

    Where the base is negative both are not a number, but for minus infinity, whose power is
    infinite and whose root is not a number, and minus zero, whose root keeps its sign.
    """
    count = 0

    def product(call: Any) -> Any:
        nonlocal count
        if not getattr(call.op, "name", "").endswith(".pow"):
            return call
        base, exponent = call.args
        drawn = _ROOTS.get(getattr(exponent, "value", 0.0))
        if drawn is None or str(base.ty) not in ("float32", "float64"):
            return call
        count += 1
        factors = []
        for times in drawn:
            factor = base
            for _ in range(times):
                factor = tirx.sqrt(factor)
            factors.append(factor)
        return factors[0] if len(factors) == 1 else factors[0] * factors[1]

    body = structural_map(function.body, (Call, product))
    return (function.with_body(body) if count else function), count


def _of_type(node: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (kind, found.append))
    return found
