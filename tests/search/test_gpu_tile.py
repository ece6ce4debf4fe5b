"""Tiles of contractions on GPUs, as figures."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import parse_target
from tunefarm.search.space import Knob, KnobKind
from tunefarm.search.spaces.gpu_tile import KEPT, Tile, expected_s, tile_of, tiles

A100 = arch_of(parse_target("cuda:arch=sm_80"))
TILE = Tile(64, 256, 128, 128, 8, 8, 8, 1024, tensor=False, element_bytes=4)


def knobs(*extents: int, depth: int = 512) -> tuple[Knob, ...]:
    spatial = [Knob(KnobKind.TILE, 5, extent, 64) for extent in extents]
    return (*spatial, Knob(KnobKind.TILE, 3, depth, 64), Knob(KnobKind.CHOICE, 4))


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([1, 7, 14, 56, 64, 96, 128, 1000, 1024]), min_size=2, max_size=4),
    st.sampled_from([16, 27, 64, 576, 1024]),
    st.booleans(),
)
def test_every_tile_is_a_split_of_its_loops_and_fits(extents, depth, tensor) -> None:
    sketch = knobs(*extents, depth=depth)
    found = tiles(3, sketch, tensor, 2 if tensor else 4, A100)
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
        tile = tile_of(sketch, one.point, tensor, 2 if tensor else 4)
        assert tile is not None
        assert tile.fits(A100)
        size = 16 if tensor else 1
        assert tile.depth == depth * size
        assert tile.blocks * tile.rows * tile.columns == prod(extents) * size**2
        assert one.seconds > 0


def test_a_product_has_tiles_and_a_sum_has_none() -> None:
    assert tiles(0, knobs(1024, 1024), False, 4, A100)
    assert not tiles(0, (Knob(KnobKind.TILE, 5, 64, 64),), False, 4, A100)
    assert not tiles(0, (Knob(KnobKind.CHOICE, 4),), False, 4, A100)


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 2048},
        {"threads": 16},
        {"rows": 2048, "step": 32},
        {"own_rows": 32, "own_columns": 32},
        {"threads": 1024, "own_rows": 16},
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
