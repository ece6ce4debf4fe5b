from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.devices.roof import Roof, roof_from_dict

ROOF = Roof(200e9, ((1 << 20, 180e9), (1 << 24, 130e9), (1 << 27, 28e9)))


def test_a_floor_is_the_higher_of_the_two_roofs() -> None:
    assert ROOF.floor_s(2e9, 1e6) == pytest.approx(10e-3)
    assert ROOF.floor_s(1e6, 1 << 28) == pytest.approx(0.75 * (1 << 28) / 28e9)


def test_between_two_measured_sizes_the_faster_speed_counts() -> None:
    assert ROOF.bytes_per_s(1000) == math.inf
    assert ROOF.bytes_per_s(1 << 20) == 180e9
    assert ROOF.bytes_per_s((1 << 24) - 1) == 180e9
    assert ROOF.bytes_per_s(1 << 24) == 130e9


speeds = st.floats(1e6, 1e15)


@given(speeds, st.dictionaries(st.integers(1, 1 << 40), speeds, min_size=1))
def test_a_roof_is_read_as_it_was_written(flops: float, pairs: dict[int, float]) -> None:
    roof = Roof(flops, tuple(sorted(pairs.items())))
    assert roof_from_dict(roof.to_dict()) == roof


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"flops": 1e9},
        {"flops": 0, "bandwidth": [[1, 1]]},
        {"flops": 1e9, "bandwidth": []},
        {"flops": 1e9, "bandwidth": [[1, "fast"]]},
    ],
)
def test_what_is_no_roof_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        roof_from_dict(data)
