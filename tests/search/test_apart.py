"""Padding on its own: a row's ends apart from what is between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm
SHAPE = 2, 9, 12, 4


def padding(condition: str, shape: tuple[int, ...] = SHAPE) -> Any:
    """A stage that copies where its condition holds, and else puts 7."""
    import tvm
    from tvm.script import from_source

    names = ["n", "y", "x", "c"][-len(shape) :]
    loops, axes = ", ".join(f"i_{name}" for name in names), ", ".join(names)
    sizes = ", ".join(map(str, shape))
    function = from_source(
        f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer(({sizes}), "float32"), b: T.Buffer(({sizes}), "float32")) -> None:
    T.func_attr({{"global_symbol": "main"}})
    for {loops} in T.grid({sizes}):
        with T.sblock("pad"):
            {axes} = T.axis.remap("{"S" * len(shape)}", [{loops}])
            b[{axes}] = T.if_then_else({condition}, a[{axes}], T.float32(7))
"""
    )
    return tvm.IRModule({"main": function})


@pytest.mark.parametrize(
    ("condition", "between", "parts"),
    [
        ("2 <= x and x < 9", (2, 9), 3),
        ("1 <= y and y < 6 and 2 <= x and x < 9 and c < 3", (2, 9), 3),
        ("x < 9", (0, 9), 2),
        ("x <= 8", (0, 9), 2),
        ("x >= 2", (2, 12), 2),
        ("x > 1", (2, 12), 2),
        ("2 <= x and x < 12", (2, 12), 2),
        ("1 <= y and y < 6", (0, 12), 1),
        ("c < 3", (0, 12), 1),
        ("x % 3 == 0", (0, 12), 1),
        ("x < 2 or x > 8", (0, 12), 1),
        ("9 <= x and x < 2", (0, 12), 1),
    ],
)
def test_a_row_is_taken_apart_where_its_condition_changes(
    condition: str, between: tuple[int, int], parts: int
) -> None:
    import tvm
    from tvm import s_tir

    from tunefarm.search.spaces.apart import inside, schedule_before
    from tunefarm.search.spaces.form import stages_of

    module = padding(condition)
    (stage,) = stages_of(module)
    assert inside(stage, 2) == between
    schedule = s_tir.Schedule(module)
    schedule_before(schedule, stage, 16)
    text = schedule.mod["main"].script()
    assert max(1, text.count("_partition")) == parts
    assert f"T.parallel({2 * 9 if parts > 1 else 2 * 9 * 12})" in text, "rows, or pixels"
    given = np.random.default_rng(0).standard_normal(SHAPE).astype("f4")
    made = tvm.runtime.tensor(np.zeros(SHAPE, "f4"))
    tvm.tirx.build(schedule.mod, target="llvm")["main"](tvm.runtime.tensor(given), made)
    y, x, c = np.ogrid[:9, :12, :4]
    python = condition.replace(" and ", ") & (").replace(" or ", ") | (")
    holds = np.broadcast_to(eval(f"({python})", {"x": x, "y": y, "c": c}), SHAPE)
    np.testing.assert_array_equal(made.numpy(), np.where(holds, given, np.float32(7)))


@pytest.mark.parametrize(
    ("condition", "shape", "shared", "vectors"),
    [
        ("x < 9", (12, 32), 12, True),
        ("c < 30", (12, 32), 12, False),
        ("1 <= x and x < 60", (1, 64, 32), 64, True),
        ("1 <= x and x < 8", (1, 9, 9, 4), 81, False),
        ("1 <= x and x < 8", (2, 9, 9, 32), 162, True),
    ],
)
def test_what_has_few_rows_or_wide_pixels_is_shared_out_by_pixels(
    condition: str, shape: tuple[int, ...], shared: int, vectors: bool
) -> None:
    from tvm import s_tir

    from tunefarm.search.spaces.apart import schedule_before
    from tunefarm.search.spaces.form import stages_of

    module = padding(condition, shape)
    (stage,) = stages_of(module)
    schedule = s_tir.Schedule(module)
    schedule_before(schedule, stage, 16)
    text = schedule.mod["main"].script()
    assert f"T.parallel({shared})" in text
    assert ("T.vectorized(16)" in text) == vectors
