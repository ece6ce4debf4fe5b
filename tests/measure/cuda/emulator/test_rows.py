"""Rows on warps, from the point to the result, on a GPU of paper: held against the same kernel on
the processor."""

from __future__ import annotations

import pytest

from tests.cuda import needs_compiler

pytestmark = [pytest.mark.tvm, needs_compiler]

POINT = "warp-rows warps={} lanes={} rows={}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory):
    from tests.paper_gpu import stack_on_paper

    with stack_on_paper(tmp_path_factory.mktemp("paper")) as made:
        yield made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_softmax_is_right(stack, dtype: str) -> None:
    """Of rows that one warp holds, and several; that end within a warp's reach; with rows left
    over by the last block; and with a mask that several rows have in common."""
    from tests.paper_gpu import checked
    from tests.rows import softmax

    one, several = POINT.format(1, 4, 2), POINT.format(4, 2, 2)
    checked(stack, softmax(dtype, 33, 100), one, several)
    if dtype == "float16":
        checked(stack, softmax(dtype, 2, 3, 5, 64, mask=True), POINT.format(1, 2, 4))
        checked(stack, softmax(dtype, 3, 3000), POINT.format(16, 4, 1))


def test_normalisations_are_right(stack) -> None:
    from tests.paper_gpu import checked
    from tests.rows import layer_norm, spread

    checked(stack, layer_norm("float16", 30, 768), POINT.format(1, 8, 4), POINT.format(8, 2, 1))
    checked(stack, layer_norm("float32", 30, 96), POINT.format(1, 1, 1))
    checked(stack, spread("float32", 9, 200), POINT.format(2, 4, 2))


@pytest.mark.parametrize("kind", ["first", "each", "halves", "turned", "scaled"])
def test_arguments_are_read_where_they_are(stack, kind: str) -> None:
    """And not beyond their ends, by threads whose row or column is none."""
    from tests.paper_gpu import checked
    from tests.rows import awkward

    checked(stack, awkward(kind), POINT.format(2, 2, 4))
