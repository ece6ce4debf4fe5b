"""Concatenations that copy nothing: each kernel writes its part of the whole where it belongs.

Done to the scheduled program, so a kernel is tuned by itself and known by itself; in the model its
result has the size of the whole, and it stores with an offset. The first one makes the whole, the
others go on in it (`call_tir_inplace`); the kernel that would have copied is gone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

from tunefarm.measure.facts import PART
from tunefarm.search.kernels.placed import placed
from tunefarm.search.kernels.streaming import streams


@dataclass(frozen=True)
class Concatenation:
    """Of what a kernel does that only copies: the axis, and where each argument begins on it."""

    axis: int
    starts: tuple[int, ...]


def concatenations(module: tvm.IRModule) -> dict[str, Concatenation]:
    """The kernels of an unscheduled program that only concatenate, by name."""
    found = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            one = concatenation_of(function)
            if one is not None:
                found[variable.name_hint] = one
    return found


def concatenation_of(function: Any) -> Concatenation | None:
    """What `function` concatenates, None where it does something else.

    It is one stage that reads each argument once, shifted along one axis by what the arguments
    before it take: which it reads where, and when, is then decided, for nothing else lies in range.
    """
    blocks: list[Any] = []
    structural_walk(function.body, (SBlock, blocks.append))
    stages = [block for block in blocks if block.name_hint != "root"]
    *inputs, output = function.params
    if len(stages) != 1 or len(inputs) < 2:
        return None
    (stage,) = stages
    store, axes = stage.body, [variable.var for variable in stage.iter_vars]
    if not isinstance(store, tirx.BufferStore) or not _same(store.indices, axes):
        return None
    leaves = _leaves(store.value)
    if any(not isinstance(leaf, TensorLoad) for leaf in leaves) or len(leaves) != len(inputs):
        return None
    whole = _sizes(output)
    shifts = []
    for parameter in inputs:
        mine = [leaf for leaf in leaves if leaf.source.same_as(parameter)]
        shift = _shift(mine[0].indices, axes) if len(mine) == 1 else None
        if shift is None:
            return None
        shifts.append(shift)
    axis = max(place for place, _ in shifts)
    starts = tuple(start for _, start in shifts)
    ends = [start + _sizes(p)[axis] for start, p in zip(starts, inputs, strict=True)]
    if any(place != axis for place, start in shifts if start) or starts[0] != 0:
        return None
    if [*starts[1:], whole[axis]] != ends or any(
        size != whole[place]
        for parameter in inputs
        for place, size in enumerate(_sizes(parameter))
        if place != axis
    ):
        return None
    return Concatenation(axis, starts)


def _leaves(value: Any) -> list[Any]:
    """What a nest of choices chooses among."""
    if getattr(getattr(value, "op", None), "name", "") == "prim.if_then_else":
        return [leaf for choice in value.args[1:] for leaf in _leaves(choice)]
    return [value]


def _same(indices: Any, axes: list[Any]) -> bool:
    return len(indices) == len(axes) and all(
        index.same_as(axis) for index, axis in zip(indices, axes, strict=True)
    )


def _shift(indices: Any, axes: list[Any]) -> tuple[int, int] | None:
    """The one axis that is read shifted, and by how much; (0, 0) where none is."""
    if len(indices) != len(axes):
        return None
    shifted = []
    for place, (index, axis) in enumerate(zip(indices, axes, strict=True)):
        difference = Analyzer().simplify(axis - index)
        value = getattr(difference, "value", None)
        if value is None:
            return None
        if int(value):
            shifted.append((place, int(value)))
    return None if len(shifted) > 1 else (shifted or [(0, 0)])[0]


def _sizes(tensor: Any) -> tuple[int, ...]:
    """Of a buffer or a variable of the graph."""
    return tuple(int(size) for size in tensor.ty.shape)


def join(module: tvm.IRModule, known: dict[str, Concatenation]) -> tuple[tvm.IRModule, int]:
    """The scheduled program without the concatenations of which each part is the result of a kernel
    of its own that nothing else reads, and how many those were."""
    module = relax.transform.CanonicalizeBindings()(module)  # earlier passes leave second names
    main, joined = module["main"], 0
    builder = relax.BlockBuilder(module)
    blocks = []
    uses = _uses(main)
    for block in main.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        bindings = list(block.bindings)
        for binding in block.bindings:
            one = known.get(_callee(binding))
            parts = _parts(module, binding, one, bindings, uses) if one is not None else None
            if one is not None and parts is not None:
                bindings = _joined(builder, binding, parts, bindings, one)
                joined += 1
        blocks.append(relax.DataflowBlock(bindings))
    if not joined:
        return module, 0
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(
        main.params, body, main.ret_ty, is_pure=main.is_pure, attrs=main.attrs
    )
    module = builder.get()
    module.update_func(module.get_global_var("main"), function)
    return relax.transform.DeadCodeElimination()(module), joined


def _uses(function: Any) -> dict[str, int]:
    """How often each variable is read, by its unique id."""
    counts: dict[str, int] = {}

    def count(node: Any) -> None:
        if isinstance(node, relax.Var):
            counts[_id(node)] = counts.get(_id(node), 0) + 1

    for block in function.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, count)
    relax.analysis.post_order_visit(function.body.body, count)
    return counts


def _id(variable: Any) -> str:
    return str(variable.__chandle__())


def _callee(binding: Any) -> str:
    """The kernel that a binding calls, "" where it does something else."""
    value = binding.value
    called = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    if not called or value.op.name != "relax.call_tir":
        return ""
    return str(value.args[0].name_hint)


def _parts(
    module: tvm.IRModule,
    binding: Any,
    one: Concatenation,
    bindings: list[Any],
    uses: dict[str, int],
) -> list[Any] | None:
    """The bindings that make what `binding` concatenates, in its order; None where one of them is
    no kernel's result, is read elsewhere too, or must have its result in an array of its own."""
    made = {_id(one.var): one for one in bindings}
    parts = []
    for number, argument in enumerate(binding.value.args[1].fields):
        part = made.get(_id(argument)) if isinstance(argument, relax.Var) else None
        single = part is not None and _callee(part) and uses[_id(argument)] == 1
        if part is None or not single or not isinstance(part.var.ty, relax.TensorType):
            return None
        # Elements of the whole before the part begins, and between its rows.
        inner = math.prod(_sizes(part.var)[one.axis + 1 :])
        apart = (one.starts[number] * inner, _sizes(binding.var)[one.axis] * inner)
        lanes = streams(module[part.value.args[0]])
        if lanes and any(distance % lanes for distance in apart):
            return None  # its vectors would not lie at multiples of their length
        parts.append(part)
    return parts if len({_id(part.var) for part in parts}) == len(parts) else None


def _joined(
    builder: Any, binding: Any, parts: list[Any], bindings: list[Any], one: Concatenation
) -> list[Any]:
    """`bindings` with the parts written in place, and without the copy."""
    places = {_id(part.var): start for part, start in zip(parts, one.starts, strict=True)}
    ordered = [part for part in bindings if _id(part.var) in places]
    whole_type, size = binding.var.ty, int(binding.var.ty.shape[one.axis])
    rewritten: dict[str, Any] = {}
    whole = None
    for part in ordered:
        start, name = places[_id(part.var)], _callee(part)
        function = builder.get()[part.value.args[0]]
        wide = builder.add_func(
            widened(function, one.axis, start, size), f"{name}{PART}{start}_of_{size}"
        )
        arguments = list(part.value.args[1].fields)
        if whole is None:
            value = relax.call_tir(wide, arguments, out_ty=whole_type)
        else:
            value = relax.op.call_tir_inplace(
                wide, relax.Tuple([*arguments, whole]), len(arguments), whole_type
            )
        last = part is ordered[-1]
        whole = binding.var if last else relax.DataflowVar(f"{part.var.name}_joined", whole_type)
        rewritten[_id(part.var)] = relax.VarBinding(whole, builder.normalize(value))
    return [rewritten.get(_id(b.var), b) for b in bindings if not b.var.same_as(binding.var)]


def widened(function: Any, axis: int, start: int, size: int) -> Any:
    """The kernel with a result of `size` along `axis`, of which it writes its own part, from
    `start` on."""
    shape = list(_sizes(function.params[-1]))
    shape[axis] = size
    return placed(function, [start if place == axis else 0 for place in range(len(shape))], shape)
