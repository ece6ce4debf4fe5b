"""Times of several units are made comparable by their canaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.calibration import MOST, factors, strangers

seconds = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)


def test_a_slower_unit_is_not_held_against_its_candidates() -> None:
    found = factors({"a": [1.0, 1.02, 0.98], "b": [1.1, 1.1]})
    assert 2.2 * found["b"] == pytest.approx(2.0 * found["a"])
    assert strangers({"a": [1.0], "b": [1.1]}) == []


def test_one_unit_is_its_own_measure() -> None:
    assert factors({"a": [3.0, 1.0, 2.0]}) == {"a": 1.0}
    assert factors({"a": []}) == {}


def test_a_unit_that_is_far_off_is_told_and_left_as_it_is() -> None:
    canaries = {"a": [1.0], "b": [1.01], "c": [2.0]}
    assert factors(canaries)["c"] == 1.0
    assert strangers(canaries) == ["c"]


@given(st.dictionaries(st.text(min_size=1), seconds, max_size=5))
def test_nothing_is_moved_far(canaries: dict[str, list[float]]) -> None:
    found = factors(canaries)
    assert set(found) == set(canaries)
    assert all(1 / MOST <= one <= MOST for one in found.values())
    assert all(found[unit] == 1.0 for unit in strangers(canaries))
