"""Which kernels are poolings whose rows can be folded, and which look like it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.tvm
LEAST = -340282346638528859811704183484516925440.0


def _pool(
    kind: str = "max",
    *,
    padding: float = LEAST,
    first: float = LEAST,
    dilation: int = 1,
    last: bool = True,
    inner: Any = lambda value: value,
) -> Any:
    """3x3 in steps of two over 1x4x15x17, one row and column of padding all around."""
    import tvm
    from tvm import te, tirx

    x = te.placeholder((1, 4, 15, 17), "float32", "x")
    padded = te.compute(
        (1, 4, 17, 19),
        lambda n, c, h, w: tirx.if_then_else(
            tirx.all(h >= 1, h < 16, w >= 1, w < 18),
            x[n, c, h - 1, w - 1],
            tirx.const(padding, "float32"),
        ),
        "padded",
    )
    down, across = (te.reduce_axis((0, 3), name) for name in ("down", "across"))
    fold = te.comm_reducer(
        {
            "max": lambda a, b: tirx.max(a, b),
            "min": lambda a, b: tirx.min(a, b),
            "sum": lambda a, b: a + b,
        }[kind],
        lambda dtype: tirx.const(first, dtype),
    )
    shape = (1, 4, 7, 8) if last else (1, 7, 8, 4)

    def value(*at: Any) -> Any:
        n, c, h, w = at if last else (at[0], at[3], at[1], at[2])
        place = padded[n, c, 2 * h + dilation * down, 2 * w + dilation * across]
        return fold(inner(place), axis=[down, across])

    y = te.compute((*shape[:2], 6, 6) if dilation > 1 else shape, value, "y")
    function = te.create_prim_func([x, y], index_dtype_override="int64")
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def _pooling(workload: Any) -> Any:
    from tunefarm.search.kernels.folding import pooling_of
    from tunefarm.search.spaces.form import reduction_of

    form = reduction_of(workload)
    assert form is not None
    return pooling_of(form)


def test_a_pooling_is_read_off_its_kernel() -> None:
    found = _pooling(_pool())
    assert found.source.name == "x"
    assert (found.windows, found.strides, found.before) == ((3, 3), (2, 2), (1, 1))


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "sum", "first": 0.0, "padding": 0.0},
        {"kind": "min"},
        {"padding": 0.0},
        {"first": 0.0},
        {"dilation": 2},
        {"last": False},
        {"inner": lambda value: value * 2.0},
    ],
)
def test_what_is_another_kernel_is_none(other: dict[str, Any]) -> None:
    from tunefarm.search.kernels.folding import fold

    workload = _pool(**other)
    assert _pooling(workload) is None
    with pytest.raises(ValueError, match="no pooling"):
        fold(workload, 4)


def test_rows_shorter_than_a_vector_are_not_folded() -> None:
    from tunefarm.search.kernels.folding import fold

    assert fold(_pool(), 8)["main"] is not None
    with pytest.raises(ValueError, match="no pooling"):
        fold(_pool(), 16)
