"""Products of integers, whose terms are added up two or four at a time, in the form of others.

What `frontend.relax.whole` makes: 8 bits by 8 bits, or 16 by 16, summed in 32, the sum's last axis
one of four neighbours or of two. Such neighbours are the 32 bits that a float is elsewhere, and are
multiplied and added as a float is: tiles, the order of loops, the packing of weights and what the
hardware model says of all of it are those of floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tunefarm.devices.neighbours import FOUR, PAIR, neighbours_of
from tunefarm.devices.target import Target
from tunefarm.search.spaces.expressions import uses
from tunefarm.search.spaces.form import (
    Operand,
    Reduction,
    Stage,
    free_buffers,
    only_reduction,
    operand_of,
    reduction_at,
    reduction_of,
    shaped,
    sums_from_zero,
)

_TERMS = {("int32", "uint8", "int8"): FOUR, ("int32", "int16", "int16"): PAIR}
"""By the types of sums, data and weights: how many are added up at once."""


def computed_by(target: Target, form: Reduction) -> bool:
    """Whether a processor has an instruction for it: for floats each has."""
    known = neighbours_of(target) if form.terms > 1 else None
    return form.terms == 1 or (known is not None and known.terms == form.terms)


def sums_of(workload: Any, beyond: bool = False) -> Reduction | None:
    """The kernel as one reduction of floats, or as one product of integers, with its surroundings;
    None where it is something else.

    Args:
        beyond: there may be stages of another shape after it, where it is of floats.
    """
    form = reduction_of(workload, beyond)
    found = only_reduction(workload) if form is None else None
    if found is None:
        return form
    before, block, after, rest = found
    return None if rest else _groups_at(block, free_buffers(workload["main"]), before, after)


def sums_at(
    block: Stage, free: frozenset[str], before: Sequence[Stage], after: Sequence[Stage]
) -> Reduction | None:
    """The same of one stage of a kernel: see `form.reduction_at`."""
    found = _groups_at(block, free, before, after)
    return found if found is not None else reduction_at(block, free, before, after)


def _groups_at(
    block: Stage, free: frozenset[str], before: Sequence[Stage], after: Sequence[Stage]
) -> Reduction | None:
    *_, last = block.axes
    if not last.reduces or not sums_from_zero(block):
        return None
    terms, *loads = _factors(block.node)
    if terms != last.extent:
        return None
    data, weights = (_grouped(block, load, operand_of(block, load, free), terms) for load in loads)
    if data is None or weights is None:
        return None
    made = shaped(block, True, before, after, [data, weights])
    if made is None or made.vector is not weights:
        return None
    return replace(made, reductions=made.reductions[:-1], terms=terms)


def _factors(node: Any) -> tuple[Any, ...]:
    """How many terms of it are added up at once, and where it reads the data and the weights; none
    where it is another sum."""
    value = node.body.value
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return (0,)
    factors = (value.b.a, value.b.b)
    if not all(isinstance(one, tirx.Cast) and isinstance(one.value, TensorLoad) for one in factors):
        return (0,)
    data, weights = (one.value for one in factors)
    types = (str(value.ty), str(data.source.dtype), str(weights.source.dtype))
    return (_TERMS.get(types, 0), data, weights)


def _grouped(block: Stage, load: Any, operand: Operand, terms: int) -> Operand | None:
    """An operand with fours, or pairs, for its elements; None where such neighbours do not lie
    together."""
    *outer, last = operand.strides
    if last != 1 or operand.shape[-1] % terms:
        return None
    *variables, _ = (variable.var for variable in block.node.iter_vars)
    inside = load.indices[-1]
    for variable, one in zip(variables, outer, strict=True):
        # A row's address may be whatever it is, as long as its terms begin where a group does.
        if uses(inside, variable) if one is None else one % terms:
            return None
    strides = tuple(None if one is None else one // terms for one in outer)
    own = operand.shape[-1] == terms  # they have a dimension of their own
    shape = operand.shape[:-1] if own else (*operand.shape[:-1], operand.shape[-1] // terms)
    plain = operand.plain[:-1] if own else operand.plain
    return replace(operand, plain=plain, shape=shape, strides=(*strides, 0))
