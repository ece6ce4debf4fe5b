"""Register tiles of integers: products whose terms are added up four at a time.

What `frontend.relax.whole` makes: 8 bits by 8 bits, summed in 32, the sum's last axis one of four
neighbours. Such four are the 32 bits that a float is in the other tiles, one instruction multiplies
and adds them as one does a float: the tiles, the order of the loops, the packing of weights and
what the hardware model says of all of it are those of `register_tile`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tunefarm.devices.target import Target
from tunefarm.devices.vnni import sums_of_fours
from tunefarm.frontend.relax.integer_products import FOUR
from tunefarm.search.kernels.fours import register_fours
from tunefarm.search.spaces.form import (
    Operand,
    Reduction,
    free_buffers,
    only_reduction,
    operand_of,
    shaped,
    sums_from_zero,
)
from tunefarm.search.spaces.hardware import hardware
from tunefarm.search.spaces.register_tile import RegisterTileSpace, register_tiles

FOURS = "fours-tile"


def fours_tile_space(workload: Any, target: Target) -> RegisterTileSpace | None:
    """The space of `workload`, None where it is no such product, or the target has no instruction
    for it."""
    form = fours_of(workload) if sums_of_fours(target) else None
    if form is None or not register_tiles(form, hardware(target)):
        return None
    register_fours()
    return RegisterTileSpace(workload, target, form, FOURS)


def fours_of(workload: Any) -> Reduction | None:
    """The kernel as a product whose steps are of four terms each; None where it is something
    else."""
    found = only_reduction(workload)
    if found is None:
        return None
    before, block, after, rest = found
    *_, last = block.axes
    if rest or not (last.reduces and last.extent == FOUR) or not sums_from_zero(block):
        return None
    loads = _factors(block.node)
    if loads is None:
        return None
    free = free_buffers(workload["main"])
    data, weights = (_in_fours(operand_of(block, load, free)) for load in loads)
    if data is None or weights is None:
        return None
    made = shaped(block, True, before, after, [data, weights])
    if made is None or made.vector is not weights:
        return None
    return replace(made, reductions=made.reductions[:-1], fours=True)


def _factors(node: Any) -> tuple[Any, Any] | None:
    """Where it reads the data and the weights."""
    value = node.body.value
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    factors = (value.b.a, value.b.b)
    if not all(isinstance(one, tirx.Cast) and isinstance(one.value, TensorLoad) for one in factors):
        return None
    data, weights = (one.value for one in factors)
    types = (str(value.ty), str(data.source.dtype), str(weights.source.dtype))
    return (data, weights) if types == ("int32", "uint8", "int8") else None


def _in_fours(operand: Operand) -> Operand | None:
    """An operand with fours for its elements; None where four neighbours do not lie together."""
    *outer, last = operand.strides
    if last != 1 or operand.shape[-1] % FOUR or any(one is None or one % FOUR for one in outer):
        return None
    strides = tuple(one // FOUR for one in outer if one is not None)
    own = operand.shape[-1] == FOUR  # they have a dimension of their own
    shape = operand.shape[:-1] if own else (*operand.shape[:-1], operand.shape[-1] // FOUR)
    plain = operand.plain[:-1] if own else operand.plain
    return replace(operand, plain=plain, shape=shape, strides=(*strides, 0))
