"""How many copies of its arguments make a kernel as cold as in its model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.rotation import BEYOND, MOST, Copies, copies

MIB = 1 << 20
SIZES = st.integers(0, 1 << 32)


def test_a_kernel_that_is_timed_for_itself_has_everything_at_hand() -> None:
    assert copies(MIB, MIB, 0, 2 * MIB, 32 * MIB) == Copies(1, 1)


def test_weights_of_a_large_model_come_from_memory() -> None:
    found = copies(10 * MIB, MIB, 100 * MIB, 2 * MIB, 32 * MIB)
    assert found == Copies(4, 3)
    assert found.turns == 4


def test_weights_of_a_small_model_are_no_colder_than_it_is_large() -> None:
    assert copies(MIB, MIB, 5 * MIB, 2 * MIB, 32 * MIB).constants == 5


def test_a_kernel_with_all_of_its_models_weights_needs_no_copies() -> None:
    assert copies(200 * MIB, MIB, 200 * MIB, 2 * MIB, 32 * MIB).constants == 1


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_they_fill_what_lies_between_two_uses_or_are_as_many_as_help(
    constants: int, others: int, between: int, near: int, far: int
) -> None:
    found = copies(constants, others, between, near, far)
    assert 1 <= found.constants <= MOST
    assert 1 <= found.others <= MOST
    if between and constants:
        wanted = min(between, round(BEYOND * far))
        assert found.constants * constants >= wanted or found.constants == MOST
