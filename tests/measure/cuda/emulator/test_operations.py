"""What single instructions compute, against Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.cuda.emulator.faults import Unsupported
from tunefarm.measure.cuda.emulator.operations import operation
from tunefarm.measure.cuda.emulator.values import DTYPES, from_bfloat, literal, to_bfloat

WORDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]))
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


def made(name: str, *operands: float) -> np.generic:
    what = operation(tuple(name.split(".")))
    given_ = []
    for one, kind in zip(operands, what.takes, strict=True):
        dtype = DTYPES[kind]
        if np.dtype(dtype).kind == "i":
            bits = int(one) & (2 ** (8 * np.dtype(dtype).itemsize) - 1)
            given_.append(np.array([bits]).astype(f"u{np.dtype(dtype).itemsize}").view(dtype))
        else:
            given_.append(np.array([one]).astype(dtype))
    with np.errstate(all="ignore"):
        return np.ravel(what.compute(*given_))[0]


def signed(word: int, bits: int = 32) -> int:
    return word - 2**bits if word >= 2 ** (bits - 1) else word


@given(WORDS, WORDS, WORDS)
def test_whole_numbers_wrap_around(a: int, b: int, c: int) -> None:
    m, sa, sb = 2**32, signed(a), signed(b)
    assert made("add.s32", a, b) == signed((a + b) % m)
    assert made("sub.u32", a, b) == (a - b) % m
    assert made("mul.lo.s32", a, b) == signed((sa * sb) % m)
    assert made("mul.hi.s32", a, b) == sa * sb >> 32
    assert made("mul.hi.u32", a, b) == a * b >> 32
    assert made("mul.wide.s32", a, b) == sa * sb
    assert made("mul.wide.u32", a, b) == a * b
    assert made("mad.lo.s32", a, b, c) == signed((sa * sb + signed(c)) % m)
    assert made("min.s32", a, b) == min(sa, sb)
    assert made("max.u32", a, b) == max(a, b)
    assert made("not.b32", a) == m - 1 - a
    assert made("popc.b32", a) == a.bit_count()
    assert made("clz.b32", a) == 32 - a.bit_length()
    assert made("brev.b32", a) == int(f"{a:032b}"[::-1], 2)
    if sb:
        assert made("div.s32", a, b) == signed(
            int(abs(sa) // abs(sb) * (1 if sa * sb >= 0 else -1)) % m
        )
        assert made("rem.s32", a, b) == int(math.fmod(sa, sb))
        assert made("div.u32", a, b) == a // b


@given(WORDS, WORDS, st.integers(0, 70))
def test_shifts_beyond_the_width_leave_nothing(a: int, b: int, by: int) -> None:
    assert made("shl.b32", a, by) == (a << by) % 2**32
    assert made("shr.u32", a, by) == a >> by
    assert made("shr.s32", a, by) == signed(a) >> by
    both = b << 32 | a
    assert made("shf.l.wrap.b32", a, b, by) == (both << (by % 32)) % 2**64 >> 32
    assert made("shf.r.clamp.b32", a, b, by) == (both >> min(by, 32)) % 2**32


@given(WORDS, WORDS, st.integers(0, 31), st.integers(0, 32))
def test_fields_of_bits(a: int, b: int, start: int, length: int) -> None:
    mask = (2**length - 1) << start
    assert made("bfe.u32", a, start, length) == (a & mask) >> start
    picked = (a & mask) >> start
    last = min(start + length - 1, 31)
    if length and a >> last & 1:
        picked |= 2**32 - (1 << length)
    assert made("bfe.s32", signed(a), start, length) == signed(picked % 2**32)
    assert made("bfe.u64", a << 32, start + 32, length) == (a & mask) >> start
    assert made("bfi.b32", a, b, start, length) == ((b & ~mask) | ((a << start) & mask)) % 2**32


@given(WORDS, WORDS, st.integers(0, 0xFFFF))
def test_bytes_are_picked(a: int, b: int, how: int) -> None:
    pool = (b << 32 | a).to_bytes(8, "little")
    expected = 0
    for place in range(4):
        chosen = how >> 4 * place & 15
        byte = pool[chosen & 7]
        if chosen & 8:
            byte = 255 if byte & 128 else 0
        expected |= byte << 8 * place
    assert made("prmt.b32", a, b, how) == expected


@given(WORDS, WORDS, WORDS, st.integers(0, 255))
def test_any_function_of_three_bits(a: int, b: int, c: int, table: int) -> None:
    expected = sum(
        (table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1)) & 1) << n for n in range(32)
    )
    assert made("lop3.b32", a, b, c, table) == expected


@given(WORDS, WORDS, WORDS)
def test_products_of_bytes_are_summed(a: int, b: int, c: int) -> None:
    def parts(word: int, size: int) -> list[int]:
        return [signed(word >> at & (2**size - 1), size) for at in range(0, 32, size)]

    total = sum(x * y for x, y in zip(parts(a, 8), parts(b, 8), strict=True)) + signed(c)
    assert made("dp4a.s32.s32", a, b, c) == total % 2**32
    halves = sum(x * y for x, y in zip(parts(a, 16), parts(b, 8)[2:], strict=True)) + signed(c)
    assert made("dp2a.hi.s32.s32", a, b, c) == halves % 2**32


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("setp.lt.s32", -1, 1, True),
        ("setp.lt.u32", 2**32 - 1, 1, False),
        ("setp.ge.f32", 1.0, 1.0, True),
        ("setp.lt.f32", math.nan, 1.0, False),
        ("setp.ltu.f32", math.nan, 1.0, True),
        ("setp.ne.f32", math.nan, 1.0, False),
        ("setp.neu.f32", math.nan, 1.0, True),
        ("setp.num.f32", math.nan, 1.0, False),
    ],
)
def test_comparisons(name: str, a: float, b: float, expected: bool) -> None:
    assert made(name, a, b) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("cvt.rzi.s32.f32", -2.7, -2),
        ("cvt.rni.s32.f32", 2.5, 2),
        ("cvt.rmi.f32.f32", -2.1, -3.0),
        ("cvt.rzi.u32.f32", -1.0, 0),
        ("cvt.rzi.s32.f32", 1e20, 2**31 - 1),
        ("cvt.rzi.s32.f32", math.nan, 0),
        ("cvt.u8.u32", 300, 44),
        ("cvt.s64.s32", -5, -5),
        ("cvt.sat.s8.s32", 200, 127),
        ("cvt.rn.f32.s32", -7, -7.0),
        ("cvt.sat.f32.f32", 1.5, 1.0),
        ("cvt.sat.f32.f32", math.nan, 0.0),
        ("cvt.rzi.s64.f32", 1e30, 2**63 - 1),
        ("cvt.rzi.u64.f32", 1e30, 2**64 - 1),
    ],
)
def test_conversions(name: str, value: float, expected: float) -> None:
    assert made(name, value) == expected


@given(st.floats(-60000, 60000, width=32))
def test_halves_are_rounded_to_the_nearest(value: float) -> None:
    half = made("cvt.rn.f16.f32", value)
    assert half == np.float32(value).astype(np.float16).view(np.uint16)
    back = from_bfloat(to_bfloat(np.array([value], np.float32)))[0]
    assert abs(back - value) <= abs(value) * 2**-8 + 1e-38


@given(FLOATS, FLOATS)
def test_halves_are_computed_in_single_precision_and_rounded_once(a: float, b: float) -> None:
    x, y = (np.array([v / 1e6 * 60], np.float32).astype(np.float16) for v in (a, b))
    what = operation(("add", "f16"))
    made_ = what.compute(x.view(np.uint16), y.view(np.uint16)).view(np.float16)
    assert made_ == x + y


@pytest.mark.parametrize(
    "name",
    [
        "fma.rn.relu.f16",
        "add.cc.u32",
        "add.rz.f32",
        "add.sat.s32",
        "prmt.b32.f4e",
        "cvt.rz.f16.f32",
    ],
)
def test_what_would_change_the_result_is_refused(name: str) -> None:
    with pytest.raises(Unsupported):
        operation(tuple(name.split(".")))


def test_literals() -> None:
    assert literal("0f3F800000", "f32") == 1.0
    assert literal("0f3F800000", "b32") == 0x3F800000
    assert literal("-1", "s32") == -1
    assert literal("-1", "b32") == 2**32 - 1
    assert literal("0xFFFFFFFF", "s32") == -1
    assert literal("0d3FF0000000000000", "f64") == 1.0
