"""Tiles of contractions on GPUs, as figures."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.devices.gpu import STATIC_SHARED, arch_of
from tunefarm.devices.target import parse_target
from tunefarm.search.space import Knob, KnobKind, Point
from tunefarm.search.spaces.gpu_tile import KEPT, Tile, expected_s, tile_of, tiles

A100 = arch_of(parse_target("cuda:arch=sm_80"))
TILE = Tile(64, 256, 128, 128, 8, 8, 8, 1024, tensor=False, element_bytes=4)


def knobs(*extents: int, depth: int = 512) -> tuple[Knob, ...]:
    spatial = [Knob(KnobKind.TILE, 5, extent, 64) for extent in extents]
    return (*spatial, Knob(KnobKind.TILE, 3, depth, 64), Knob(KnobKind.CHOICE, 4))


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([1, 7, 14, 56, 64, 96, 128, 1000, 1024]), min_size=2, max_size=4),
    st.sampled_from([16, 27, 64, 576, 1024]),
    st.booleans(),
    st.sampled_from([1, 3, 4]),
)
def test_every_tile_is_a_split_of_its_loops_and_fits(extents, depth, tensor, stages) -> None:
    sketch = knobs(*extents, depth=depth)
    found = tiles(3, sketch, tensor, 2 if tensor else 4, stages, A100)
    assert len(found) <= KEPT
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert len({one.point for one in found}) == len(found)
    for one in found:
        assert one.point.sketch == 3
        for knob, value in zip(sketch, one.point.values, strict=True):
            if knob.kind is KnobKind.TILE:
                assert prod(value) == knob.extent
                assert value[-1] <= knob.innermost_limit
            else:
                assert 0 <= value < knob.size
        tile = tile_of(sketch, one.point, tensor, 2 if tensor else 4, stages)
        assert tile is not None
        assert tile.fits(A100)
        size = 16 if tensor else 1
        assert tile.depth == depth * size
        assert tile.blocks * tile.rows * tile.columns == prod(extents) * size**2
        assert one.seconds > 0


def test_a_product_has_tiles_and_a_sum_has_none() -> None:
    assert tiles(0, knobs(1024, 1024), False, 4, 1, A100)
    assert not tiles(0, (Knob(KnobKind.TILE, 5, 64, 64),), False, 4, 1, A100)
    assert not tiles(0, (Knob(KnobKind.CHOICE, 4),), False, 4, 1, A100)


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 2048},
        {"threads": 16},
        {"rows": 2048, "step": 32},
        {"own_rows": 32, "own_columns": 32},
        {"threads": 1024, "own_rows": 16},
        {"stages": 8},
        {"vectors": (8, 1)},
        {"vectors": (1, 3)},
    ],
)
def test_what_no_block_can_have_does_not_fit(change: dict[str, int]) -> None:
    assert TILE.fits(A100)
    assert not replace(TILE, **change).fits(A100)


def test_larger_tiles_of_a_thread_are_expected_to_be_faster() -> None:
    """They read less of shared memory for each multiplication."""
    small = replace(TILE, own_rows=2, own_columns=2, threads=1024, rows=64, columns=64, blocks=256)
    assert expected_s(TILE, A100) < expected_s(small, A100)


def test_a_few_blocks_leave_most_of_the_gpu_idle() -> None:
    whole = replace(TILE, blocks=A100.multiprocessors)
    few = replace(TILE, blocks=8, rows=TILE.rows, depth=TILE.depth * A100.multiprocessors // 8)
    assert expected_s(whole, A100) < expected_s(few, A100)


def test_tensor_cores_may_ask_for_more_shared_memory_than_is_given() -> None:
    """Their sums pass through it, in 32 bits."""
    wide = replace(TILE, own_rows=64, own_columns=32, tensor=True, element_bytes=2)
    assert wide.shared_bytes == 4 * 128 * 128 > STATIC_SHARED
    assert wide.fits(A100)
    assert not replace(wide, rows=256, columns=256).fits(A100)


def test_copies_on_their_way_hide_what_few_threads_cannot() -> None:
    few = replace(TILE, threads=128, own_rows=64, own_columns=64, tensor=True, element_bytes=2)
    assert expected_s(replace(few, stages=3), A100) < 0.9 * expected_s(few, A100)


@pytest.mark.slow
def test_no_product_is_expected_to_take_less_than_the_multiplying() -> None:
    for number in (70, 80, 90):
        arch = arch_of(parse_target(f"cuda:arch=sm_{number}"))
        for tensor, lanes in ((False, arch.lanes), (True, arch.tensor_lanes)):
            found = tiles(0, knobs(64, 64), tensor, 2, 1, arch)
            assert found
            for one in found:
                size = 64 * 64 * 512 * (16**3 if tensor else 1)
                assert one.seconds > size / (lanes * arch.multiprocessors * 1.4e9)


def test_long_vectors_are_copied_sooner_and_the_operands_are_the_last_two() -> None:
    assert expected_s(replace(TILE, vectors=(4, 4)), A100) < expected_s(TILE, A100)
    lengths = Knob(KnobKind.CHOICE, 5, options=(1, 2, 4, 8, 16))
    result = Knob(KnobKind.CHOICE, 4, options=(1, 2, 3, 4))
    unrolled = Knob(KnobKind.CHOICE, 3, options=(0, 16, 64))
    sketch = (*knobs(64, 64)[:-1], result, lengths, lengths, unrolled)
    values = ((1, 8, 2, 2, 2), (1, 8, 2, 2, 2), (64, 4, 2), 2, 3, 1, 2)
    tile = tile_of(sketch, Point(0, values), True, 2)
    assert tile is not None
    assert tile.vectors == (8, 2)
    assert all(max(one.point.values[4:6]) <= 3 for one in tiles(0, sketch, True, 2, 1, A100))
