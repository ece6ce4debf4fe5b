"""What calls of the compiler's graph are of, and who reads what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax

from tunefarm.frontend.onnx.passes import Shape


def operator_of(node: Any) -> str:
    """The name of the operator that a node calls, such as ``relax.matmul``; "" of anything else."""
    operator = isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op)
    return str(node.op.name) if operator else ""


def is_call(node: Any, *names: str) -> bool:
    """Whether the node calls one of these operators."""
    return operator_of(node) in names


def shape_of(value: Any) -> Shape | None:
    """Of a tensor whose sizes are known; None of all else."""
    try:
        return tuple(int(size) for size in value.ty.shape)
    except (AttributeError, TypeError):
        return None


def number_of(value: Any) -> float | None:
    """Of a constant with a single element; None of all else."""
    if not isinstance(value, tvm.ir.GenericConst) or value.value.numpy().size != 1:
        return None
    return float(value.value.numpy().reshape(()))


def is_constant(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst)


def part_of(split: Any, number: int) -> tuple[int, int, int]:
    """Of one of those that a tensor of fixed shape is split into: the axis, and where on it the
    part begins and ends."""
    axis, size = int(split.attrs.axis), split.attrs.indices_or_sections
    shape = shape_of(split.args[0])
    assert shape is not None, "it is of a fixed shape"
    if isinstance(size, int | tvm.tirx.IntImm):
        each = -(-shape[axis] // int(size))
        return axis, number * each, min((number + 1) * each, shape[axis])
    ends = [0, *(int(one) for one in size), shape[axis]]
    first, end = ends[number : number + 2]
    return axis, first, end


def uses_of(function: Any) -> Counter[Any]:
    """How often each variable is an argument in the function."""
    uses: Counter[Any] = Counter()

    def visit(node: Any) -> None:
        for argument in getattr(node, "args", getattr(node, "fields", ())):
            uses[argument] += isinstance(argument, relax.Var)

    relax.analysis.post_order_visit(function, visit)
    return uses
