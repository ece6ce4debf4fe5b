"""Products whose terms are added up two or four at a time, in the form of others.

What `frontend.relax.whole` makes: integers of 8 bits by 8 bits, or 16 by 16, summed in 32; and what
`frontend.relax.rounded_factors` does, of bfloat16, summed in float32. The sum's last axes are of
neighbours (`devices.neighbours`). Such neighbours are the 32 bits that a float is elsewhere, and
are multiplied and added as a float is: tiles, the order of loops, the packing of weights and what
the hardware model says of all of it are those of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.sym.pattern import detect_linear_equation
from tvm_ffi import structural_map

from tunefarm.devices.neighbours import (
    FOURS,
    NARROW,
    PAIRS,
    Groups,
    multiplies_pairs_of_bfloat16,
    neighbours_of,
    steps_of,
)
from tunefarm.devices.target import Target
from tunefarm.search.spaces.expressions import uses
from tunefarm.search.spaces.form import (
    Operand,
    Reduction,
    Stage,
    free_buffers,
    only_beyond,
    only_reduction,
    operand_of,
    reduction_at,
    reduction_of,
    shaped,
    sums_from_zero,
)

_GROUPS: dict[tuple[str, str, str], tuple[Groups, ...]] = {
    ("int32", "uint8", "int8"): (FOURS, NARROW),
    ("int32", "int16", "int16"): (PAIRS,),
    ("float32", "bfloat16", "bfloat16"): (PAIRS,),
}
"""By the types of sums, data and weights: how terms may be added up at once."""


def computed_by(target: Target, form: Reduction) -> bool:
    """Whether a processor has an instruction of vectors for it: for floats each has."""
    if form.rounded:
        return is_as_stored(form) and multiplies_pairs_of_bfloat16(target)
    known = neighbours_of(target) if form.together else None
    return not form.together or (known is not None and form.together in known.groups)


def is_as_stored(form: Reduction) -> bool:
    """Whether it reads what lies in memory as it is: what a kernel holds in bfloat16 inside is
    float32 when it has been lowered."""
    return not (form.rounded and form.before)


def sums_of(workload: Any, beyond: bool = False) -> Reduction | None:
    """The kernel as one reduction of floats, or as one product of integers, with its surroundings;
    None where it is something else.

    Args:
        beyond: there may be stages of another shape after it.
    """
    form = reduction_of(workload, beyond)
    found = only_reduction(workload) if form is None else None
    if found is None:
        return form
    before, block, after, rest = found
    if rest and not (beyond and only_beyond(block, after, rest)):
        return None
    made = _groups_at(block, free_buffers(workload["main"]), before, after)
    return made and replace(made, beyond=tuple(rest))


def sums_at(
    block: Stage, free: frozenset[str], before: Sequence[Stage], after: Sequence[Stage]
) -> Reduction | None:
    """The same of one stage of a kernel: see `form.reduction_at`."""
    found = _groups_at(block, free, before, after)
    return found if found is not None else reduction_at(block, free, before, after)


def _groups_at(
    block: Stage, free: frozenset[str], before: Sequence[Stage], after: Sequence[Stage]
) -> Reduction | None:
    if not block.axes[-1].reduces or not sums_from_zero(block):
        return None
    known, *loads = _factors(block.node)
    groups = next((one for one in known if _ends_in(block, one)), ())
    if not groups:
        return None
    data, weights = (_grouped(block, load, operand_of(block, load, free), groups) for load in loads)
    if data is None or weights is None:
        return None
    made = shaped(block, True, before, after, [data, weights])
    if made is None or made.vector is not weights:
        return None
    rounded = str(loads[0].source.dtype) == "bfloat16"
    return replace(
        made, reductions=made.reductions[: -len(groups)], together=groups, rounded=rounded
    )


def _ends_in(block: Stage, groups: Groups) -> bool:
    inner = block.axes[-len(groups) :]
    return all(axis.reduces for axis in inner) and tuple(axis.extent for axis in inner) == groups


def _factors(node: Any) -> tuple[Any, ...]:
    """How terms of it may be added up at once, and where it reads the data and the weights; no way
    where it is another sum."""
    value = node.body.value
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return ((),)
    factors = (value.b.a, value.b.b)
    if not all(isinstance(one, tirx.Cast) and isinstance(one.value, TensorLoad) for one in factors):
        return ((),)
    data, weights = (one.value for one in factors)
    types = (str(value.ty), str(data.source.dtype), str(weights.source.dtype))
    return (_GROUPS.get(types, ()), data, weights)


def _steps_divide(index: Any, variable: Any, terms: int) -> bool:
    """Whether an index, in which `variable` is nowhere but in one quotient, moves by a multiple of
    so many terms from one of its values to the next."""
    part = tirx.Var("part", str(variable.ty))

    def put(quotient: Any) -> Any:
        return part if quotient.a.same_as(variable) else quotient

    linear = detect_linear_equation(structural_map(index, (tirx.FloorDiv, put)), [part])
    return bool(linear) and int(linear[0]) % terms == 0


def _grouped(block: Stage, load: Any, operand: Operand, groups: Groups) -> Operand | None:
    """An operand with groups for its elements; None where neighbours do not lie together."""
    terms, axes = prod(groups), len(groups)
    if operand.strides[-axes:] != steps_of(groups) or operand.shape[-1] % groups[-1]:
        return None
    variables = [variable.var for variable in block.node.iter_vars][:-axes]
    inside = load.indices[-1]
    for axis, (variable, one) in enumerate(zip(variables, operand.strides[:-axes], strict=True)):
        # A row's address may be whatever it is, as long as its terms begin where a group does.
        if one is not None:
            begins = one % terms == 0
        elif operand.groups[axis]:  # a part of the channels for some of the columns
            begins = _steps_divide(inside, variable, terms)
        else:
            begins = not uses(inside, variable)
        if not begins:
            return None
    strides = tuple(None if one is None else one // terms for one in operand.strides[:-axes])
    # They have dimensions of their own, or are a part of the last one.
    own = axes if operand.shape[-axes:] == groups else int(operand.shape[-1] == terms)
    if own == 0 and operand.shape[-1] % terms:
        return None
    shape, plain = operand.shape[: len(operand.shape) - own], operand.plain
    if not own:
        shape = (*operand.shape[:-1], operand.shape[-1] // terms)
    return replace(
        operand,
        plain=plain[: len(plain) - own],
        shape=shape,
        strides=(*strides, *([0] * axes)),
    )
