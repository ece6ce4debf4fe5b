"""Minimal filtering, in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.search.kernels.cook_toom import LARGEST, Matrix, filtering

NUMBERS = st.integers(-100, 100).map(Fraction)
SIZES = [(m, r) for r in range(2, 6) for m in range(1, LARGEST) if m + r - 1 <= LARGEST]


def times(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "taps"), SIZES)
@given(data=st.data())
def test_it_is_correlation(size: int, taps: int, data: st.DataObject) -> None:
    signal = data.draw(st.lists(NUMBERS, min_size=size + taps - 1, max_size=size + taps - 1))
    filters = data.draw(st.lists(NUMBERS, min_size=taps, max_size=taps))
    of = filtering(size, taps)
    products = [
        a * b for a, b in zip(times(of.taps, filters), times(of.signal, signal), strict=True)
    ]
    expected = [
        sum((signal[i + k] * filters[k] for k in range(taps)), Fraction(0)) for i in range(size)
    ]
    assert times(of.output, products) == expected


def test_it_takes_as_many_products_as_the_signal_has_elements() -> None:
    of = filtering(4, 3)
    assert len(of.signal) == len(of.signal[0]) == 6
    assert [list(map(float, row)) for row in of.signal[:2]] == [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
    ]


@pytest.mark.parametrize(("size", "taps"), [(8, 3), (1, 1), (100, 3)])
def test_sizes_that_no_precision_is_left_for_are_refused(size: int, taps: int) -> None:
    with pytest.raises(ValueError, match="products"):
        filtering(size, taps)
