"""Turns and slices of what was 8 bits, done to the 8 bits: the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm

SHAPE = (2, 3, 4)


def _module(made: Any) -> Any:
    """Of 8 bits, and as many numbers of float32."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x, y = (relax.Var(n, relax.TensorType(SHAPE, t)) for n, t in (("x", "uint8"), ("y", "float32")))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(made(builder, relax.op, relax.const, x, y))
        builder.emit_func_output(result)
    return builder.get()


def _computed(module: Any) -> np.ndarray:
    import tvm
    from tvm import relax

    draw = np.random.default_rng(0)
    given = (draw.integers(0, 256, SHAPE, np.uint8), draw.normal(size=SHAPE).astype(np.float32))
    machine = relax.VirtualMachine(relax.build(module, "llvm"), tvm.cpu())
    result: np.ndarray = machine["main"](*(tvm.runtime.tensor(one) for one in given)).numpy()
    return result


def _read_by(module: Any, name: str) -> set[str]:
    """The types of what these operators read."""
    from tvm import relax

    from tunefarm.frontend.relax.calls import is_call

    found = set[str]()

    def visit(node: Any) -> None:
        if is_call(node, name):
            found.add(str(node.args[0].ty.dtype))

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def _wide(b: Any, op: Any, const: Any, x: Any, by: Any) -> Any:
    zeros = const(np.arange(4, dtype=np.float32) * 3)
    less = b.emit(op.subtract(b.emit(op.astype(x, "float32")), zeros))
    return b.emit(op.multiply(const(by), less))


def _turned(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
    by = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    return b.emit(op.permute_dims(_wide(b, op, const, x, by), [2, 0, 1]))


def _rounded(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
    """What is quantised again is turned where it is."""
    wide = b.emit(op.round(_wide(b, op, const, x, np.float32(0.3))))
    return b.emit(op.permute_dims(wide, [2, 0, 1]))


def _of_two(b: Any, op: Any, const: Any, x: Any, y: Any) -> Any:
    wide = b.emit(op.multiply(_wide(b, op, const, x, np.float32(0.3)), y))
    return b.emit(op.permute_dims(wide, [2, 0, 1]))


def _broadcast(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
    """By a constant that has more elements than the tensor."""
    row = b.emit(op.reshape(b.emit(op.strided_slice(x, [1], [1], [2])), (2, 1, 4)))
    by = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    return b.emit(op.permute_dims(_wide(b, op, const, row, by), [2, 0, 1]))


def _parts(axis: int, sections: Any, by: Any) -> Any:
    def made(b: Any, op: Any, const: Any, x: Any, _: Any) -> Any:
        from tvm import relax

        split = b.emit(op.split(_wide(b, op, const, x, by), sections, axis=axis))
        last = b.emit(relax.TupleGetItem(split, 1))
        return b.emit(op.exp(b.emit(op.multiply(last, const(np.float32(0.01))))))

    return made


@pytest.mark.parametrize(
    ("made", "name", "narrow"),
    [
        (_turned, "relax.permute_dims", True),
        (_rounded, "relax.permute_dims", False),
        (_of_two, "relax.permute_dims", False),
        (_broadcast, "relax.permute_dims", False),
        (_parts(1, 3, np.float32(0.2)), "relax.strided_slice", True),
        (_parts(0, [1], np.ones((1, 3, 1), np.float32)), "relax.strided_slice", True),
        (_parts(0, [1], np.ones((2, 3, 1), np.float32)), "relax.split", False),
        (_parts(2, [1, 3], np.float32(0.2)), "relax.split", False),  # zeros differ along it
    ],
)
def test_what_is_done_to_8_bits(made: Any, name: str, narrow: bool) -> None:
    from tvm.relax.transform import DeadCodeElimination

    from tunefarm.frontend.relax.bytes_first import bytes_first

    module = _module(made)
    changed = DeadCodeElimination()(bytes_first(module))
    assert _read_by(changed, name) == {"uint8" if narrow else "float32"}
    assert len(np.unique(_computed(module))) > 3
    np.testing.assert_array_equal(_computed(changed), _computed(module))
