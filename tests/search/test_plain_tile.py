"""Tiles of float32 products that threads multiply each for itself: what fits, where elements lie,
and that a trace stands for one kernel. What these compute:
``tests/measure/cuda/emulator/test_plain_tiles.py``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.devices.gpu import arch_of, completed
from tunefarm.devices.target import parse_target
from tunefarm.search.spaces.plain_tile import device_text
from tunefarm.search.spaces.plain_tile.tile import (
    PlainLayout,
    PlainPlan,
    PlainTile,
    expected_s,
    possible,
)
from tunefarm.search.spaces.tensor_tile.tiling import Matrices

CUDA = completed(parse_target("cuda:arch=sm_80"))
A100, H100, TURING = (arch_of(parse_target(f"cuda:arch=sm_{n}")) for n in (80, 90, 75))
SQUARE = Matrices(1, 4096, 4096, 4096, "float32", "float32", 4, True, False, (16, 16))
SMALL = replace(SQUARE, rows=49, columns=512, length=4608)
TILE = PlainTile(128, 128, 16, 3, 8, 8)

matrices = st.builds(
    Matrices,
    batches=st.integers(1, 16),
    rows=st.integers(1, 5000),
    columns=st.integers(4, 5000),
    length=st.integers(16, 9000),
    dtype=st.just("float32"),
    sums=st.just("float32"),
    element_bytes=st.just(4),
    left_deep=st.booleans(),
    right_deep=st.booleans(),
    pieces=st.sampled_from([(16, 16), (8, 16), (4, 4)]),
)


@pytest.mark.slow
@settings(max_examples=10)
@given(matrices, st.sampled_from([A100, H100]))
def test_every_tile_fits_and_wastes_no_block(of: Matrices, arch: Any) -> None:
    found = list(possible(of, arch))
    assert len(set(found)) == len(found)
    for tile in found:
        plan = PlainPlan(of, tile)
        assert plan.fits(arch)
        down, across = plan.grid
        assert (down - 1) * tile.rows < of.rows <= down * tile.rows
        assert (across - 1) * tile.columns < of.columns <= across * tile.columns
        assert plan.steps * tile.depth * tile.split >= of.length
        assert plan.steps * tile.depth * (tile.split - 1) < of.length, "the last has terms too"
        least = of.batches * of.rows * of.columns * of.length
        peak = arch.lanes * arch.multiprocessors * 1.4e9
        assert expected_s(plan, arch) > least / peak, "nothing is faster than the multiplying"


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 130},
        {"columns": 66, "own_columns": 2},
        {"depth": 6},
        {"depth": 0},
        {"stages": 1},
        {"split": 0},
        {"band": -1},
        {"own_rows": 6},
        {"own_rows": 16, "own_columns": 16},
        {"own_rows": 64, "own_columns": 64},
        {"own_rows": 1, "own_columns": 4},
        {"stages": 16},
    ],
)
def test_what_no_block_can_have_does_not_fit(change: dict[str, int]) -> None:
    assert PlainPlan(SQUARE, TILE).fits(A100)
    assert not PlainPlan(SQUARE, replace(TILE, **change)).fits(A100)
    assert not PlainPlan(SQUARE, TILE).fits(TURING), "which copies through registers"
    assert not PlainPlan(replace(SQUARE, dtype="float16"), TILE).fits(A100)


layouts = st.builds(
    PlainLayout,
    lines=st.sampled_from([4, 16, 32, 64, 128]),
    depth=st.sampled_from([8, 16, 32, 64]),
    deep=st.booleans(),
)


@given(layouts)
def test_every_element_has_a_place_of_its_own(layout: PlainLayout) -> None:
    places = {layout.offset(i, k) for i in range(layout.lines) for k in range(layout.depth)}
    assert len(places) == layout.lines * layout.depth
    assert max(places) < layout.bytes
    assert all(place % 4 == 0 for place in places)


@given(layouts, st.data())
def test_neighbouring_threads_read_from_other_banks(
    layout: PlainLayout, data: st.DataObject
) -> None:
    """Sixteen bytes each, of eight lines that are deep, or of lines that lie side by side."""
    if layout.deep:
        first = data.draw(st.integers(0, max(0, layout.lines - 8)))
        term = 4 * data.draw(st.integers(0, layout.depth // 4 - 1))
        places = [layout.offset(first + n, term) for n in range(min(8, layout.lines))]
    else:
        term = data.draw(st.integers(0, layout.depth - 1))
        places = [layout.offset(4 * n, term) for n in range(min(8, layout.lines // 4))]
    assert all(place % 16 == 0 for place in places)
    assert len({place % 128 // 16 for place in places}) == len(places)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.sampled_from([SQUARE, SMALL, replace(SQUARE, left_deep=False, right_deep=True)]), st.data()
)
def test_every_sum_is_one_threads(of: Matrices, data: st.DataObject) -> None:
    """By the expressions in a kernel's text."""
    tile = data.draw(st.sampled_from(sorted(possible(of, A100), key=repr)[::97]))
    lanes = PlainPlan(of, tile).lanes
    assert lanes is not None
    place = device_text._place(lanes)
    rows, columns = (
        [
            [
                _evaluated(first, lane=thread % 32, warp=thread // 32) + _evaluated(line, i=own)
                for own in range(count)
            ]
            for thread in range(tile.threads)
        ]
        for name, side, count, along in (
            ("row", lanes.left, tile.own_rows, lanes.down),
            ("column", lanes.right, tile.own_columns, lanes.across),
        )
        for first in re.findall(rf"unsigned {name} = (.*?);", place, re.DOTALL)
        for line in [device_text._line("i", side, count, along)]
    )
    taken = {
        (row, column)
        for mine, beside in zip(rows, columns, strict=True)
        for row in mine
        for column in beside
    }
    assert taken == {(i, j) for i in range(tile.rows) for j in range(tile.columns)}


def _evaluated(expression: str, **values: int) -> int:
    """What C++ makes of it."""
    text = re.sub(r"\s+", " ", expression).replace("/", "//")
    return int(eval(text, {}, values))


@pytest.mark.slow
def test_what_has_few_tiles_shares_their_depth() -> None:
    """A late convolution of ResNet-50, of one image: else most multiprocessors have nothing."""
    best = min(possible(SMALL, H100), key=lambda one: expected_s(PlainPlan(SMALL, one), H100))
    assert best.split > 1
    assert PlainPlan(SMALL, best).blocks > H100.multiprocessors
    whole = min(possible(SQUARE, H100), key=lambda one: expected_s(PlainPlan(SQUARE, one), H100))
    assert whole.split == 1


def test_one_warp_does_not_keep_a_scheduler_at_work() -> None:
    """As an H200 has it: each of 128 tiles by four warps takes longer than each of 256 halves."""
    of = replace(SQUARE, rows=1024, columns=1024, length=1024)
    alone = PlainTile(64, 128, 64, 4, 8, 8)
    halves = PlainTile(64, 128, 32, 3, 8, 8, split=2)
    assert PlainPlan(of, alone).blocks < H100.multiprocessors < PlainPlan(of, halves).blocks
    assert expected_s(PlainPlan(of, halves), H100) < expected_s(PlainPlan(of, alone), H100)


def test_loops_are_as_long_as_instructions_near_a_multiprocessor_have_room() -> None:
    for tile in {(t.own_rows, t.own_columns, t.depth): t for t in possible(SQUARE, H100)}.values():
        lanes = PlainPlan(SQUARE, tile).lanes
        assert lanes is not None
        found = re.search(r"#pragma unroll (\d+)", device_text.multiply(lanes).text)
        assert found is not None
        turns, each = int(found[1]), 4 * tile.own_rows * tile.own_columns
        assert tile.depth // 4 % turns == 0
        assert turns == 1 or turns * each <= 1024
        assert turns == tile.depth // 4 or turns * each * 2 > 1024, "as long as may be"


@pytest.mark.tvm
def test_a_trace_stands_for_one_kernel() -> None:
    from tests.products import product
    from tests.written import traces_stand_for_kernels
    from tunefarm.search.spaces.plain_tile.space import PLAIN_TILES

    module = product("float32", (256, 256, 256), after="bias")
    space = PLAIN_TILES.space(module, CUDA)
    assert space is not None
    seconds = [one.seconds for one in space.modelled()]
    assert seconds == sorted(seconds)
    traces_stand_for_kernels(space, module, CUDA, (0, 100, len(seconds) - 1))


@pytest.mark.tvm
def test_which_kernels_and_targets_have_such_tiles() -> None:
    """Also where tf32 is allowed: these round nothing."""
    from tests.products import product
    from tunefarm.search.replay import InvalidTrace, in_full
    from tunefarm.search.spaces.plain_tile.space import PLAIN_TILES

    single, half = (product(dtype, (64, 64, 64)) for dtype in ("float32", "float16"))
    assert PLAIN_TILES.space(single, CUDA) is not None
    allowed = completed(parse_target("cuda:arch=sm_80:precision=tf32"))
    assert PLAIN_TILES.space(single, allowed) is not None
    assert PLAIN_TILES.space(single, completed(parse_target("cuda:arch=sm_75"))) is None
    assert PLAIN_TILES.space(single, parse_target("llvm")) is None
    assert PLAIN_TILES.space(half, CUDA) is None
    words = "plain-tile rows=64 columns=64 depth=16 stages=3 own_rows=8 own_columns=8"
    assert not in_full(single["main"], CUDA, words).same_as(single["main"])
    for wrong in (f"{words} more=1", words.replace("rows=64", "rows=60")):
        with pytest.raises(InvalidTrace):
            in_full(single["main"], CUDA, wrong)
    with pytest.raises(InvalidTrace):
        in_full(half["main"], CUDA, words)
