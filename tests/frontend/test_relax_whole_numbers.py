"""What is whole, and small enough for bfloat16, as far as a network says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm


def _wide(b: Any, op: Any, x: Any) -> Any:
    return b.emit(op.astype(x, "float32"))


def _less(zero: float) -> Callable[..., Any]:
    def made(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
        return b.emit(op.subtract(_wide(b, op, x), const(zero)))

    return made


def _rounded(least: float | None, most: float, plus: float = 0.0, first: bool = True):
    """Bounded before it is rounded, or after a whole number was added."""

    def made(b: Any, op: Any, const: Any, _: Any, y: Any) -> Any:
        def bounded(value: Any) -> Any:
            above = value if least is None else b.emit(op.maximum(value, const(least)))
            return b.emit(op.minimum(above, const(most)))

        if first:
            y = bounded(y)
        y = b.emit(op.add(b.emit(op.round(y)), const(plus)))
        return y if first else bounded(y)

    return made


def _times(by: float):
    def made(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
        return b.emit(op.multiply(_wide(b, op, x), const(by)))

    return made


def _moved(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
    turned = _wide(b, op, b.emit(op.permute_dims(x, [1, 0])))
    return b.emit(op.reshape(b.emit(op.subtract(turned, const(9.0))), (2, 12)))


def _part(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
    from tvm import relax

    return b.emit(relax.TupleGetItem(b.emit(op.split(_wide(b, op, x), 2, axis=1)), 1))


def _added(b: Any, op: Any, _const: Any, x: Any, _: Any) -> Any:
    wide = _wide(b, op, x)
    return b.emit(op.add(wide, wide))


@pytest.mark.parametrize(
    ("made", "exact"),
    [
        (_less(0.0), True),
        (_less(255.0), True),
        (_less(-1.0), True),
        (_less(-2.0), False),  # up to 257
        (_less(0.5), False),
        (_rounded(-128.0, 127.0), True),
        (_rounded(0.4, 256.4), True),
        (_rounded(0.0, 256.6), False),
        (_rounded(None, 127.0), False),
        (_rounded(-128.0, 127.0, plus=128.0), True),
        (_rounded(-128.0, 127.0, plus=0.25), False),
        (_rounded(0.0, 255.0, plus=37.0, first=False), True),
        (_rounded(0.5, 255.0, plus=37.0, first=False), False),
        (_times(0.5), False),
        (_moved, True),
        (_part, True),
        (_added, False),  # of two tensors nothing is known
        (lambda *given: given[-1], False),
    ],
)
def test_what_is_exact(made: Callable[..., Any], exact: bool) -> None:
    from tvm import relax

    from tunefarm.frontend.relax.whole_numbers import is_exact

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "uint8"))
    y = relax.Var("y", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            value = made(builder, relax.op, lambda one: relax.const(np.float32(one)), x, y)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    main = builder.get()["main"]
    bound = {one.var: one.value for block in main.body.blocks for one in block.bindings}
    assert is_exact(bound[main.body.body], bound.get) == exact
