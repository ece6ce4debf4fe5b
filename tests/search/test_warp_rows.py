"""Rows on the warps of a GPU: what fits, which kernels are rows, and that a trace stands for one
kernel. What these compute: ``tests/measure/cuda/emulator/test_rows.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.devices.gpu import arch_of, completed
from tunefarm.devices.target import parse_target
from tunefarm.search.spaces.warp_rows.point import (
    MOST_HELD,
    RowFigures,
    WarpRows,
    expected_s,
    figures_of,
    fits,
    possible,
)

CUDA = completed(parse_target("cuda:arch=sm_80"))
A100 = arch_of(CUDA)
ROWS = RowFigures(4096, 1024, 2, 5, 8192, 4, 3)


@given(st.integers(1, 9000), st.integers(1, 30000), st.integers(1, 4), st.sampled_from([2, 4]))
def test_every_point_holds_a_whole_row(count: int, columns: int, folds: int, widest: int) -> None:
    of = RowFigures(count, columns, folds, 5, columns * 2 * widest, widest, 3)
    found = list(possible(of, A100))
    assert len(set(found)) == len(found)
    for one in found:
        turns = one.turns(columns)
        assert turns * one.threads_of_row * one.lanes >= columns
        assert (turns - 1) * one.threads_of_row * one.lanes < columns
        assert columns % one.lanes == 0
        assert turns * one.lanes <= MOST_HELD
        assert one.threads <= A100.threads
        assert expected_s(one, of, A100) > 0
    if columns <= 1024 * MOST_HELD // 8 and columns % 2 == 0:
        assert found


@pytest.mark.parametrize(
    ("change", "of"),
    [
        ({"lanes": 8}, {}),
        ({"lanes": 4}, {"columns": 1022}),
        ({"warps": 1, "lanes": 1}, {"columns": 4096}),
        ({"rows": 16}, {"count": 8}),
        ({"warps": 32, "rows": 2}, {}),
    ],
)
def test_what_no_block_can_have_does_not_fit(change: dict[str, int], of: dict[str, int]) -> None:
    good = WarpRows(1, 4, 1)
    assert fits(good, ROWS, A100)
    assert not fits(replace(good, **change), replace(ROWS, **of), A100)


def test_the_hardware_model_prefers_long_reads_and_a_busy_gpu() -> None:
    assert expected_s(WarpRows(2, 4, 1), ROWS, A100) < expected_s(WarpRows(2, 1, 1), ROWS, A100)
    few = replace(ROWS, count=64, columns=16384, row_bytes=131072)
    best = min(possible(few, A100), key=lambda one: expected_s(one, few, A100))
    assert best.rows == 1
    assert best.warps > 4
    assert figures_of(few) != figures_of(ROWS)


@pytest.mark.tvm
def test_kernels_are_read_as_rows() -> None:
    from tests.rows import layer_norm, softmax, spread
    from tunefarm.search.spaces.warp_rows.rows import row_kernel_of

    kernel = row_kernel_of(softmax("float16", 2, 3, 5, 64, mask=True))
    assert kernel is not None
    assert (kernel.count, kernel.columns, kernel.folds) == (30, 64, 2)
    assert [one.fold.name for one in kernel.stages if one.fold] == ["max", "sum"]
    assert {str(load.source.name) for load in kernel.reads} == {"x", "m"}
    assert (kernel.widest, kernel.row_bytes) == (2, 64 * 3 * 2), "x, m and the result"

    kernel = row_kernel_of(layer_norm("float16", 48, 768))
    assert kernel is not None
    assert [one.fold.name for one in kernel.stages if one.fold] == ["sum", "sum"]
    assert {str(load.source.name) for load in kernel.reads} == {"x", "g", "b"}
    assert kernel.row_bytes == 768 * 2 * 2, "scale and shift stay in a cache"

    kernel = row_kernel_of(spread("float32", 8, 96))
    assert kernel is not None
    assert {one.fold.name for one in kernel.stages if one.fold} == {"min", "max"}


@pytest.mark.tvm
def test_other_kernels_are_no_rows() -> None:
    from tvm import te, topi

    from tests.paper_gpu import workload
    from tests.products import product
    from tunefarm.search.spaces.warp_rows.rows import row_kernel_of
    from tunefarm.search.spaces.warp_rows.space import WARP_ROWS

    x = te.placeholder((64, 96), "float32", "x")
    assert row_kernel_of(workload([x, topi.nn.relu(x)])) is None
    assert row_kernel_of(workload([x, topi.sum(x, axis=1)])) is None, "nothing is used again"
    assert row_kernel_of(workload([x, topi.nn.softmax(x, axis=0)])) is None
    shifted = te.compute((64, 96), lambda i, j: x[i, te.indexmod(j + 1, 96)], "shifted")
    total = topi.sum(shifted, axis=1, keepdims=True)
    rolled = te.compute((64, 96), lambda i, j: shifted[i, 95 - j] / total[i, 0], "rolled")
    assert row_kernel_of(workload([x, rolled])) is None, "a column of another thread"
    assert row_kernel_of(product("float32", (32, 32, 32))) is None
    from_one = te.comm_reducer(lambda a, b: a + b, lambda t: te.const(1, t), "from_one")
    k = te.reduce_axis((0, 96), "k")
    total = te.compute((64,), lambda i: from_one(x[i, k], axis=k), "total")
    above = te.compute((64, 96), lambda i, j: x[i, j] - total[i], "above")
    assert row_kernel_of(workload([x, above])) is None, "each thread would begin with one"
    doubled = te.compute((64, 96), lambda i, j: x[i, j] * 2.0, "doubled")
    share = topi.divide(doubled, topi.sum(doubled, axis=1, keepdims=True))
    assert row_kernel_of(workload([x, share])) is not None
    assert row_kernel_of(workload([x, doubled, share])) is None, "two results"
    wide = te.placeholder((4, 100_001), "float32", "wide")
    assert WARP_ROWS.space(workload([wide, topi.nn.softmax(wide)]), CUDA) is None


@pytest.mark.tvm
def test_a_trace_stands_for_one_kernel() -> None:
    from tests.rows import softmax
    from tests.written import traces_stand_for_kernels
    from tunefarm.search.spaces import design_space
    from tunefarm.search.spaces.warp_rows.space import WARP_ROWS

    module = softmax("float16", 128, 512)
    space = WARP_ROWS.space(module, CUDA)
    assert space is not None
    traces_stand_for_kernels(space, module, CUDA, (0, len(space.ways) - 1))
    whole = design_space(module, CUDA)
    first = min(whole.modelled(), key=lambda one: one.seconds)
    about = whole.describe(first.point)
    assert about is not None
    assert about.family == "warp-rows"
    assert WARP_ROWS.space(module, parse_target("llvm")) is None


@pytest.mark.tvm
@pytest.mark.parametrize(
    "words", ["warp-rows warps=1 lanes=4", "warp-rows warps=1 lanes=16 rows=1", "warp-rows a=1"]
)
def test_words_that_are_no_point_are_refused(words: str) -> None:
    from tests.rows import softmax
    from tunefarm.search.replay import InvalidTrace, in_full

    function = softmax("float32", 64, 128)["main"]
    assert not in_full(function, CUDA, "warp-rows warps=1 lanes=4 rows=1").same_as(function)
    with pytest.raises(InvalidTrace):
        in_full(function, CUDA, words)
