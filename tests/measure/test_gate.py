from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.frontend.dtypes import HALF, TF32, for_npz, numpy_dtype, rounding
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import (
    RARELY,
    ROUNDED,
    STEP,
    Tolerance,
    disagreement,
    make_argument,
    make_input,
    nudged,
    parity,
    poisoned,
    reduction_length,
    tolerance,
)


@given(st.integers(1, 5000), st.integers(0, 2**31))
def test_reordered_sums_pass(terms: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.uniform(-1, 1, (8, terms)).astype(np.float32)
    forward = np.cumsum(data, axis=1, dtype=np.float32)[:, -1]
    backward = np.cumsum(data[:, ::-1], axis=1, dtype=np.float32)[:, -1]
    assert disagreement(forward, backward, tolerance("float32", terms)) == ""


def test_a_dropped_term_does_not_pass() -> None:
    rng = np.random.default_rng(0)
    data = rng.uniform(-1, 1, (64, 576)).astype(np.float32)
    wrong = disagreement(data[:, 1:].sum(1), data.sum(1), tolerance("float32", 576))
    assert "elements differ" in wrong


def test_an_unwritten_output_does_not_pass() -> None:
    for dtype in ("float32", "int8", "uint8"):
        spec = TensorSpec("y", (4, 4), dtype)
        want = np.zeros((4, 4), dtype)
        assert disagreement(poisoned(spec), want, tolerance(dtype, 1))


def test_what_is_not_finite_in_the_reference_must_not_be_finite_in_the_result() -> None:
    reference = np.array([1.0, np.inf, 3.0], np.float32)
    allowed = tolerance("float32", 1)
    assert disagreement(reference.copy(), reference, allowed) == ""
    assert disagreement(np.array([1.0, 2.0, 3.0], np.float32), reference, allowed)
    assert disagreement(np.array([1.0, np.inf, np.nan], np.float32), reference, allowed)
    for other in (-np.inf, np.nan):
        assert disagreement(np.array([1.0, other, 3.0], np.float32), reference, allowed)


def test_what_writes_nothing_is_not_right_where_nothing_is_finite() -> None:
    spec = TensorSpec("y", (4,), "float32")
    for value in (-np.inf, np.nan):
        reference = np.full(4, value, np.float32)
        assert disagreement(poisoned(spec), reference, tolerance("float32", 1))
    empty = np.zeros(0, np.float32)
    assert disagreement(empty, empty, tolerance("float32", 1)) == ""


def test_what_was_rounded_inside_may_be_a_step_apart_here_and_there() -> None:
    """Numbers of 8 bits times a scale: where a sum in another order comes to lie on the other side
    of a half, the result is off by all of it. Nothing else may be."""
    rng = np.random.default_rng(0)
    scale = np.float32(0.0371)
    whole = rng.integers(-20, 20, (64, 64)).astype(np.float32)
    exact = tolerance("float32", 64)
    rounded = replace(exact, share=ROUNDED.share)
    for count, steps, few in ((1, 1, True), (40, 1, True), (41, 1, False), (1, 2, False)):
        off = whole.copy()
        off.flat[:count] += steps
        assert disagreement(off * scale, whole * scale, exact)
        assert (disagreement(off * scale, whole * scale, rounded) == "") == few, (count, steps)
    ended = np.clip(whole + np.float32(0.37), -15, 15) * scale
    off = ended.copy()
    off[ended == ended.min()] = ended[ended > ended.min()].min()
    share = replace(rounded, share=float((off != ended).mean()))
    assert disagreement(off, ended, share) == "", "an end is less than a step away"
    between = whole * scale
    between.flat[0] += scale / 2
    assert disagreement(between, whole * scale, rounded) == "", "no more than a step"
    smooth = rng.uniform(-1, 1, (64, 64)).astype(np.float32)
    for count, part, few in ((40, 1 / 33, True), (41, 1 / 33, False), (1, 1 / 31, False)):
        # With something added that is no multiple of anything.
        off = smooth.copy()
        off.flat[:count] += np.abs(smooth).max() * part
        stepped = replace(rounded, step=STEP)
        assert (disagreement(off, smooth, stepped) == "") == few, (count, part)
        assert disagreement(off, smooth, rounded), "nothing inside has steps"
        off.flat[:2] += np.abs(smooth).max() * part / 5
        assert disagreement(off, smooth, stepped), "one step is not more than another"
    for levels in (whole % 1, whole % 2, whole.flat[:63]):  # one value, two, and few of each
        off = levels * scale
        off.flat[0] += scale
        assert disagreement(off, levels * scale, rounded), "no step is known"


def test_integers_are_exact_and_shapes_count() -> None:
    one = np.arange(6, dtype=np.int32)
    assert disagreement(one, one.copy(), tolerance("int32", 1)) == ""
    assert disagreement(one + 1, one, tolerance("int32", 1))
    assert "shape" in disagreement(one, one.reshape(2, 3), tolerance("int32", 1))


def test_inputs_depend_on_the_seed_alone() -> None:
    spec = TensorSpec("x", (3, 5), "float32")
    assert np.array_equal(make_input(spec, 1, False), make_input(spec, 1, False))
    assert not np.array_equal(make_input(spec, 1, False), make_input(spec, 2, False))
    assert make_input(spec, 1, True).min() > 0
    assert set(np.unique(make_input(TensorSpec("i", (50,), "int64"), 1, False))) <= {0, 1}


@pytest.mark.parametrize(("flops", "shape", "length"), [(2 * 576 * 64, (64,), 576), (0, (4,), 1)])
def test_terms_per_element(flops: float, shape: tuple[int, ...], length: int) -> None:
    assert reduction_length(flops, TensorSpec("y", shape, "float32")) == length


def test_parity() -> None:
    want = np.array([1.0, 2.0, 1e-9])
    assert parity([want.copy()], [want]).passed
    assert parity([want * 1.0005], [want]).max_rel_err == pytest.approx(5e-4, rel=0.01)
    assert not parity([want * 1.01], [want]).passed
    assert not parity([np.array([1.0, np.nan, 0.0])], [want]).passed


@pytest.mark.parametrize("kind", HALF)
def test_half_precision_is_held_to_its_own_roundings(kind: str) -> None:
    """However long the sum: it is made in single precision."""
    rng = np.random.default_rng(0)
    terms = rng.uniform(-1, 1, (1000, 4096)).astype(np.float32)
    exact = terms.sum(axis=1)
    want = exact.astype(numpy_dtype(kind))
    allowed = tolerance(kind, 4096)
    assert disagreement(want.copy(), for_npz(want), allowed) == ""
    other = terms[:, ::-1].cumsum(axis=1)[:, -1].astype(numpy_dtype(kind))
    assert disagreement(other, want, allowed) == ""
    dropped = 4 if kind == "float16" else 64
    fewer = terms[:, dropped:].sum(axis=1).astype(numpy_dtype(kind))
    assert "elements differ" in disagreement(fewer, want, allowed)
    assert disagreement(poisoned(TensorSpec("y", (1000,), kind)), want, allowed)


@pytest.mark.parametrize(("length", "dropped"), [(64, 1), (4096, 8)])
def test_factors_of_ten_bits_are_held_to_their_roundings(length: int, dropped: int) -> None:
    """However long the sum: it is made in single precision."""
    rng = np.random.default_rng(0)
    left, right = (rng.uniform(-1, 1, (64, length)).astype(np.float32) for _ in range(2))
    want = left @ right.T

    def ten_bits(values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32) + np.uint32(1 << 12)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)

    rounded = ten_bits(left) @ ten_bits(right).T
    assert disagreement(rounded, want, tolerance(TF32, length)) == ""
    if length == 64:  # the order of long sums is allowed as much
        assert "differ" in disagreement(rounded, want, tolerance("float32", length))
    fewer = left[:, dropped:] @ right[:, dropped:].T
    assert "differ" in disagreement(fewer, want, tolerance(TF32, length))
    assert parity([rounded], [want], TF32).passed
    assert not parity([want * 1.02], [want], TF32).passed


@pytest.mark.parametrize("kind", HALF)
def test_parity_of_models_in_half_precision(kind: str) -> None:
    """Computed in float32 they are off by the rounding of their outputs; in 16 bits by some."""
    exact = np.random.default_rng(0).uniform(-1, 1, 1000).astype(np.float32)
    rounded = exact.astype(numpy_dtype(kind))
    assert parity([rounded], [exact]).passed
    off = (exact * (1 + 4 * rounding(kind))).astype(numpy_dtype(kind))
    assert not parity([off], [exact]).passed
    assert parity([off], [exact], kind).passed
    assert not parity([off.astype(np.float32)], [exact]).passed
    wrong = (exact * 1.25).astype(numpy_dtype(kind))
    assert not parity([wrong], [exact], kind).passed


def test_what_overflows_in_the_models_own_type_is_right() -> None:
    exact = np.array([1.0, 7e4, -7e4], np.float32)
    result = np.array([1.0, np.inf, -np.inf], np.float16)
    assert parity([result], [exact]).passed
    assert not parity([-result], [exact]).passed


def test_an_infinity_hides_no_error() -> None:
    want = np.array([1.0, np.inf, 3.0])
    assert parity([want.copy()], [want]).passed
    assert not parity([np.array([1.0, np.inf, 4.0])], [want]).passed
    assert not parity([np.array([1.0, -np.inf, 3.0])], [want]).passed
    right = parity([want.copy()], [want], "int8")
    assert right.passed
    assert (right.max_abs_err, right.max_rel_err) == (0.0, 0.0)
    assert not parity([np.array([1.0, -np.inf, 3.0])], [want], "int8").passed


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_what_is_rounded_to_8_bits_may_be_off_by_one_and_seldom(kind: str) -> None:
    reference = np.arange(1000, dtype=np.int64).astype(kind)
    assert not disagreement(reference, reference.copy(), ROUNDED)
    near = reference.copy()
    near[:10] += 1
    assert not disagreement(near, reference, ROUNDED)
    assert disagreement(near, reference, Tolerance(0.0, 0.0)) == "10 of 1000 elements differ"
    often = reference.copy()
    often[:11] += 1
    assert disagreement(often, reference, ROUNDED) == "11 of 1000 elements differ"
    few = reference[:24].copy()
    few[3] += 1
    assert not disagreement(few, reference[:24], ROUNDED)
    far = reference.copy()
    far[500] += 2
    assert disagreement(far, reference, ROUNDED) == "1 of 1000 elements differ"


def test_from_the_largest_to_the_smallest_is_no_step_of_one() -> None:
    reference = np.array([255] * 200, np.uint8)
    around = reference.copy()
    around[0] = 0
    assert disagreement(around, reference, ROUNDED)


def test_arguments_of_8_bits_are_small_and_now_and_then_large() -> None:
    spec = TensorSpec("x", (200, 200), "int8")
    numbers = make_argument(spec, 1, False)
    assert numbers.dtype == np.int8
    large = np.abs(numbers.astype(int)) > 2
    assert 0 < large.mean() < 2 * RARELY
    assert np.abs(numbers.astype(int)).max() > 120
    assert make_argument(TensorSpec("x", (99, 99), "uint8"), 1, False).max() > 250
    floats = TensorSpec("x", (9,), "float32")
    assert np.array_equal(make_argument(floats, 3, True), make_input(floats, 3, True))
    pixels = make_input(TensorSpec("x", (100, 100), "uint8"), 1, False)
    assert pixels.min() == 0
    assert pixels.max() == 255


def test_a_quantised_model_is_held_to_its_outputs_as_a_whole() -> None:
    want = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    assert parity([want], [want.copy()], "int8").max_rel_err == 0.0
    step = want.copy()
    step[0, np.argmin(np.abs(want))] += 0.5  # of an element next to nothing
    found = parity([step], [want], "int8")
    assert found.passed
    assert found.max_abs_err == pytest.approx(0.5, rel=1e-3)
    assert found.max_rel_err == pytest.approx(0.5 / np.linalg.norm(want), rel=1e-3)
    assert not parity([step], [want]).passed
    assert not parity([np.full_like(want, np.nan)], [want], "int8").passed
    assert not parity([want[:, 1:]], [want], "int8").passed
    assert not parity([np.ones(3, np.float32)], [np.zeros(3, np.float32)], "int8").passed


@pytest.mark.parametrize(
    ("off", "moved", "passed"),
    [
        (0.03, 0.0, True),
        (0.04, 0.0, False),
        (0.04, 0.021, True),
        (0.04, 0.019, False),
        (0.24, 0.5, True),
        (0.26, 0.5, False),
        (0.26, np.inf, False),
    ],
)
def test_a_quantised_model_may_be_off_by_twice_what_it_moves(
    off: float, moved: float, passed: bool
) -> None:
    """But always a little, and never much; and it is the worst output that counts."""
    want = np.random.default_rng(0).normal(size=(1, 1000)).astype(np.float32)
    wrong = want * np.float32(1 + off)
    assert parity([wrong], [want], "int8", moved).passed == passed
    assert parity([want, wrong], [want, want], "int8", moved).passed == passed


def test_inputs_are_nudged_by_a_thousandth() -> None:
    inputs = [np.linspace(-1, 1, 99, dtype=np.float32), np.arange(9)]
    floats, whole = nudged(inputs, 1)
    by = np.abs(floats - inputs[0])[np.abs(inputs[0]) > 0.1] / np.abs(
        inputs[0][np.abs(inputs[0]) > 0.1]
    )
    assert 1e-4 < by.max() <= 1.001e-3
    assert floats.dtype == np.float32
    assert np.array_equal(whole, inputs[1])
    assert not np.array_equal(nudged(inputs, 2)[0], floats)
