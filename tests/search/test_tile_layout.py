"""Where the elements of an operand's tile lie in shared memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.search.spaces.tensor_tile.layout import CHUNK, TileLayout

layouts = st.builds(
    TileLayout,
    lines=st.sampled_from([16, 32, 64, 96, 128, 192, 256]),
    depth=st.sampled_from([16, 32, 48, 64]),
    element_bytes=st.sampled_from([1, 2, 4]),
    deep=st.booleans(),
).filter(lambda one: one.fits)


@pytest.mark.slow
@given(layouts)
def test_every_element_has_a_place_of_its_own(layout: TileLayout) -> None:
    places = {layout.offset(i, k) for i in range(layout.lines) for k in range(layout.depth)}
    assert places == set(range(0, layout.bytes, layout.element_bytes))


@given(layouts, st.data())
def test_pieces_stay_together(layout: TileLayout, data: st.DataObject) -> None:
    """Sixteen bytes that lie side by side in memory do in the tile."""
    each = CHUNK // layout.element_bytes
    along = (layout.depth if layout.deep else layout.lines) // each
    across = data.draw(st.integers(0, layout.across - 1))
    first = each * data.draw(st.integers(0, along - 1))

    def place(along: int) -> int:
        return layout.offset(*((across, along) if layout.deep else (along, across)))

    assert place(first) % CHUNK == 0
    assert [place(first + n) - place(first) for n in range(each)] == [
        n * layout.element_bytes for n in range(each)
    ]


@given(layouts, st.data())
def test_matrices_are_read_without_meeting_a_bank_twice(
    layout: TileLayout, data: st.DataObject
) -> None:
    """The eight pieces that a warp reads of a matrix lie in all 32 banks."""
    each = CHUNK // layout.element_bytes
    along = each * data.draw(
        st.integers(0, (layout.depth if layout.deep else layout.lines) // each - 1)
    )
    first = 8 * data.draw(st.integers(0, layout.across // 8 - 1))
    places = [
        layout.offset(*((first + n, along) if layout.deep else (along, first + n)))
        for n in range(8)
    ]
    assert len({place % 128 // CHUNK for place in places}) == 8
