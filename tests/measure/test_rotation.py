"""How many copies of its arguments make a kernel as cold as in its model."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure import rotation
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.rotation import Copies

MIB = 1 << 20
SIZES = st.integers(0, 1 << 32)
PROTOCOL = Protocol()


def copies(constants: int, others: int, between: int, near: int, far: int) -> Copies:
    return rotation.copies(constants, others, between, near, far, PROTOCOL)


def test_a_kernel_that_is_timed_for_itself_has_everything_at_hand() -> None:
    assert copies(MIB, MIB, 0, 2 * MIB, 32 * MIB) == Copies(1, 1)


def test_weights_of_a_large_model_come_from_memory() -> None:
    found = copies(10 * MIB, MIB, 100 * MIB, 2 * MIB, 32 * MIB)
    assert found == Copies(4, 3)
    assert found.turns == 12


def test_weights_of_a_small_model_are_no_colder_than_it_is_large() -> None:
    assert copies(MIB, MIB, 5 * MIB, 2 * MIB, 32 * MIB).constants == 5


def test_a_kernel_with_all_of_its_models_weights_needs_no_copies() -> None:
    assert copies(200 * MIB, MIB, 200 * MIB, 2 * MIB, 32 * MIB).constants == 1


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_they_fill_what_lies_between_two_uses_or_are_as_many_as_help(
    constants: int, others: int, between: int, near: int, far: int
) -> None:
    found = copies(constants, others, between, near, far)
    most = PROTOCOL.most_copies
    assert 1 <= found.constants <= most
    assert 1 <= found.others <= most
    if between and constants:
        wanted = min(between, round(PROTOCOL.beyond * far))
        assert found.constants * constants >= wanted or found.constants == most


def test_where_the_shared_cache_is_not_known_weights_are_as_cold_as_the_rest() -> None:
    assert copies(MIB, MIB, 100 * MIB, 4 * MIB, 0) == Copies(5, 5)


@pytest.mark.tvm
@pytest.mark.parametrize("packed", [False, True])
def test_weights_are_as_cold_for_a_candidate_that_does_not_pack_them(packed: bool) -> None:
    import tvm

    from tunefarm.devices.cpu import cache_sizes
    from tunefarm.frontend.program import TensorSpec
    from tunefarm.measure.facts import KernelFacts
    from tunefarm.measure.kernel import Kernel

    args = tuple(TensorSpec(n, (256, 1024), "float32") for n in ("x", "w", "y"))
    kernel = Kernel.__new__(Kernel)
    kernel._facts = KernelFacts("k", args, 1.0, Path("none"), (1,), 1 << 40)
    kernel._packed = ((1, args[1]),) if packed else ()
    arrays = [np.full((256, 1024), value, "float32") for value in (1, 2, 3)]
    turns = kernel.in_turns([tvm.runtime.tensor(a) for a in arrays], PROTOCOL)
    third = cache_sizes()[2]
    wanted = min(PROTOCOL.most_copies, math.ceil(PROTOCOL.beyond * third / arrays[0].nbytes))
    assert len({one[1].__chandle__() for one in turns}) >= wanted
    for one in turns:
        for tensor, array in zip(one, arrays, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.tvm
def test_no_call_finds_what_the_call_before_it_left() -> None:
    """Weights in four copies, the rest in three: from one sample to the next as well."""
    from tunefarm.frontend.program import TensorSpec
    from tunefarm.measure.facts import KernelFacts
    from tunefarm.measure.kernel import Kernel

    args = tuple(TensorSpec(name, (1,), "float32") for name in "xwy")
    kernel, called = Kernel.__new__(Kernel), []
    kernel._facts = KernelFacts("k", args, 1.0, Path("none"), (1,), 1 << 40)
    kernel._turn = 0
    kernel._module = {"kernel": lambda *of: called.append(of)}
    needed = Copies(4, 3)
    turns = [[turn % needed.others, turn % needed.constants] for turn in range(needed.turns)]
    assert len(kernel.sample(turns, 5, 3)) == 3
    assert len(called) == 15
    for one, after in itertools.pairwise(called):
        assert all(a != b for a, b in zip(one, after, strict=True))
