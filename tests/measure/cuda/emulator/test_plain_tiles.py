"""Tiles of float32 products that threads multiply each for itself, from the point to the result, on
a GPU of paper: held against the same kernel on the processor."""

from __future__ import annotations

import pytest

from tests.cuda import needs_compiler

pytestmark = [pytest.mark.tvm, needs_compiler]

POINT = "plain-tile rows={} columns={} depth={} stages={} own_rows={} own_columns={}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory):
    from tests.paper_gpu import stack_on_paper

    with stack_on_paper(tmp_path_factory.mktemp("paper")) as made:
        yield made


@pytest.mark.long
def test_products_are_right_whichever_way_operands_lie(stack) -> None:
    """With tiles that reach beyond the end, and threads that have many elements and one row."""
    from tests.paper_gpu import checked
    from tests.products import product

    large = POINT.format(64, 32, 8, 3, 8, 4)
    small, few = POINT.format(4, 64, 16, 2, 1, 8), POINT.format(16, 32, 8, 3, 2, 2)
    for turned in ((False, False), (False, True), (True, False), (True, True)):
        module = product("float32", (36, 44, 22), turned, after="bias")
        checked(stack, module, few, large if turned[0] == turned[1] else small)
    wide = POINT.format(32, 64, 16, 4, 4, 16)
    checked(stack, product("float32", (40, 72, 60), batches=2), wide, f"{wide} band=4")
    odd = POINT.format(24, 48, 8, 3, 3, 6)
    checked(stack, product("float32", (24, 50, 20), (True, False)), odd)


def test_elements_that_lie_alone_are_copied_alone(stack) -> None:
    from tests.paper_gpu import checked
    from tests.products import convolution, product

    point = POINT.format(32, 32, 16, 3, 4, 4)
    checked(stack, product("float32", (33, 35, 17), (True, True), after="add"), point)
    checked(stack, convolution("float32", (11, 9, 3), 40, 3, 2, after="bias"), point)


def test_images_are_read_as_matrices_and_blocks_share_a_sum(stack) -> None:
    from tests.paper_gpu import checked
    from tests.products import convolution

    point = POINT.format(32, 32, 16, 3, 2, 8)
    module = convolution("float32", (9, 10, 24), 40, 3, after="bias")
    checked(stack, module, point, f"{point} split=4")
