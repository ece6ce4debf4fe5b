"""What the four warps of a group do together, on a GPU of paper: Hopper's tensor cores."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx import PLACES, Gpu, module
from tunefarm.measure.cuda.emulator.faults import EmulatorError, Race, Unsupported
from tunefarm.measure.cuda.emulator.groups import sum_places

ROWS, COLUMNS, LINE = 64, 16, 128
"""Of a product; bytes of the depth of an operand, or of a line of what lies the other way."""
COPIED = 16 * 128
"""Bytes that all threads copy with one instruction."""
FENCE = "fence.proxy.async.shared::cta;"
WAIT, WAIT_FOR_OTHERS = (f"wgmma.wait_group.sync.aligned {n};" for n in (0, 1))


def swizzled(place: np.ndarray, width: int) -> np.ndarray:
    """Of the address bits from 4 on as many as name a piece of a line, by those from 7 on."""
    return place ^ ((place >> 7 & (width // 16 - 1)) << 4)


def laid(matrix: np.ndarray, width: int, deep: bool) -> tuple[np.ndarray, int, int]:
    """The bytes of `matrix` (lines, depth) as tensor cores want them, and the two strides of its
    descriptor: lines of `width` bytes one below the other, along the depth or along the lines;
    what does not fit in a line comes below all of that."""
    lines, depth = matrix.shape
    line, term = np.indices(matrix.shape)
    along, across, count = (term, line, lines) if deep else (line, term, depth)
    byte = along * matrix.itemsize
    place = byte // width * (count * width) + across * width + byte % width
    made = np.full(matrix.nbytes // matrix.itemsize, 0, matrix.dtype)
    made[swizzled(place, width) // matrix.itemsize] = matrix
    return made.view(np.uint8), (0 if deep else count * width), 8 * width


def descriptor(leading: int, stride: int, width: int) -> int:
    mode = {128: 1, 64: 2, 32: 3}[width]
    return mode << 62 | stride >> 4 << 32 | leading >> 4 << 16


def group_code(
    sizes: tuple[int, int],
    descriptors: tuple[int, int],
    starts: list[tuple[int, int]],
    types: str = "k16.f32.f16.f16",
    flags: str = ", 1, 1, 0, 0",
    fence: str = FENCE,
    after: str = WAIT,
    when: str = "",
    left: str = "%rd8",
    before: str = "",
):
    """A product of what lies in p0, the left operand before the right one; each thread's sums go
    into p1. `starts`: where each instruction's operands begin; `before` and `after` stand around
    them; `left`: what the left operand is named by."""
    pieces = -(-sum(sizes) // COPIED)
    registers = ", ".join(f"%f{n}" for n in range(8))
    copies = "".join(
        f"add.s32 %r10, %r9, {COPIED * n}; add.s64 %rd7, %rd6, {COPIED * n};"
        "cp.async.cg.shared.global [%r10], [%rd7], 16;\n"
        for n in range(pieces)
    )
    instructions = "".join(
        f"""
    add.s32 %r11, %r6, {one}; shr.u32 %r11, %r11, 4; cvt.u64.u32 %rd8, %r11;
    or.b64 %rd8, %rd8, {descriptors[0]};
    add.s32 %r12, %r6, {sizes[0] + other}; shr.u32 %r12, %r12, 4; cvt.u64.u32 %rd9, %r12;
    or.b64 %rd9, %rd9, {descriptors[1]};
    {when} wgmma.mma_async.sync.aligned.m64n16{types} {{{registers}}}, {left}, %rd9, %p1{flags};
"""
        for one, other in starts
    )
    stores = "".join(f"st.global.b32 [%rd12+{4 * n}], %f{n};" for n in range(8))
    return module(
        PLACES
        + f"""
    mov.u32 %r6, s; shl.b32 %r8, %r0, 4; add.s32 %r9, %r6, %r8;
    cvt.u64.u32 %rd5, %r8; add.s64 %rd6, %rd0, %rd5;
    {copies}
    cp.async.wait_all;
    {fence}
    bar.sync 0;
    setp.eq.u32 %p1, %r6, %r6;
    setp.lt.u32 %p2, %r0, 32;
"""
        + "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(8))
        + f"""
    {before}
    wgmma.fence.sync.aligned;
    {instructions}
    wgmma.commit_group.sync.aligned;
    {after}
    mul.wide.u32 %rd11, %r3, 32; add.s64 %rd12, %rd1, %rd11;
    {stores}
""",
        shared=f".shared .align 1024 .b8 s[{pieces * COPIED}];",
    )


def given(dtype: str, depth: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.integers(-4, 5, (n, depth)).astype(dtype) for n in (ROWS, COLUMNS))


def padded(content: np.ndarray) -> np.ndarray:
    return np.pad(content, (0, -len(content) % COPIED))


def product_of(code, content: np.ndarray, dtype: str = "float32") -> np.ndarray:
    gpu, made = Gpu(), np.zeros((128, 8), dtype)
    target = gpu.put(made)
    gpu.run(code, 1, 128, gpu.put(padded(content)), target)
    whole = np.zeros((ROWS, COLUMNS), dtype)
    row, column = sum_places(COLUMNS)
    whole[row, column] = gpu.get(target, made)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("deep", [(True, True), (True, False), (False, True), (False, False)])
def test_matrices_in_shared_memory_are_multiplied(width: int, deep: tuple[bool, bool]) -> None:
    """In four steps of sixteen, whichever way they lie. Sixteen columns are a line of 32 bytes."""
    left, right = given("float16", 64)
    widths = (width, width if deep[1] else 32)
    one, two = (laid(*each) for each in zip((left, right), widths, deep, strict=True))
    starts = []
    for step in range(4):
        begin = []
        for of, lies_deep, lines in zip(widths, deep, (ROWS, COLUMNS), strict=True):
            panel, byte = divmod(32 * step, of)
            begin.append(panel * lines * of + byte if lies_deep else 16 * step * of)
        starts.append((begin[0], begin[1]))
    code = group_code(
        (left.nbytes, right.nbytes),
        tuple(descriptor(*each[1:], of) for each, of in zip((one, two), widths, strict=True)),
        starts,
        flags=f", 1, 1, {int(not deep[0])}, {int(not deep[1])}",
    )
    made = product_of(code, np.concatenate([one[0], two[0]]))
    assert (made == left.astype(np.float32) @ right.astype(np.float32).T).all()


def test_bytes_are_multiplied_exactly() -> None:
    left, right = given("int8", 32)
    left, right = left * 31, right * 31
    one, two = laid(left, 32, True), laid(right, 32, True)
    code = group_code(
        (left.nbytes, right.nbytes),
        (descriptor(*one[1:], 32), descriptor(*two[1:], 32)),
        [(0, 0)],
        "k32.s32.s8.s8",
        "",
    )
    made = product_of(code, np.concatenate([one[0], two[0]]), "int32")
    assert (made == left.astype(np.int32) @ right.astype(np.int32).T).all()


def test_sums_lie_where_nvidia_says() -> None:
    """Of thread 37, the sixth of the second warp."""
    row, column = sum_places(16)
    assert row[37].tolist() == [17, 17, 25, 25, 17, 17, 25, 25]
    assert column[37].tolist() == [2, 3, 2, 3, 10, 11, 10, 11]
    assert len(set(zip(row.flat, column.flat, strict=True))) == ROWS * 16


def simple(**changes):
    left, right = given("float16", 16)
    one, two = laid(left, 32, True), laid(right, 32, True)
    sizes = (left.nbytes, right.nbytes)
    descriptors = (descriptor(*one[1:], 32), descriptor(*two[1:], 32))
    return group_code(sizes, descriptors, [(0, 0)], **changes), np.concatenate([one[0], two[0]])


HELD = "{%r20, %r21, %r22, %r23}"


def held(**changes):
    """The same, of rows that come from registers: of each thread four pairs, behind the right
    operand; which ones, by NVIDIA's figure of A's fragment."""
    left, right = given("float16", 16)
    other = laid(right, 32, True)
    thread = np.arange(128)
    row, pair = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
    places = [(row, pair), (row + 8, pair), (row, pair + 8), (row + 8, pair + 8)]
    words = [
        left[i, j].view("u2") | left[i, j + 1].view("u2").astype("u4") << 16 for i, j in places
    ]
    rows = np.stack(words, axis=1).astype("u4").view(np.uint8).reshape(-1)
    read = f"add.s64 %rd13, %rd6, {other[0].nbytes}; ld.global.v4.u32 {HELD}, [%rd13];"
    described = (0, descriptor(*other[1:], 32))
    named = {"flags": ", 1, 1, 0", "left": HELD, "before": read, **changes}
    code = group_code((0, other[0].nbytes), described, [(0, 0)], **named)
    return code, np.concatenate([other[0], rows])


def test_rows_may_come_from_registers() -> None:
    left, right = given("float16", 16)
    wanted = left.astype(np.float32) @ right.astype(np.float32).T
    assert (product_of(*held()) == wanted).all()
    assert (product_of(*simple()) == wanted).all()
    with pytest.raises(Unsupported, match="4 registers of s8"):
        product_of(*held(types="k32.s32.s8.s8", flags=""))


@pytest.mark.parametrize(
    ("make", "after"),
    [
        (simple, ""),
        (simple, WAIT_FOR_OTHERS),
        (simple, "mov.f32 %f20, %f3; add.f32 %f21, %f20, %f20;" + WAIT),
        (simple, "mov.f32 %f3, 0f00000000;" + WAIT),
        (simple, "@%p2 bra AROUND;" + WAIT + "AROUND:"),
        (held, "mov.u32 %r21, %r0;" + WAIT),
        (held, "st.global.u32 [%rd0], %r21;" + WAIT_FOR_OTHERS),
    ],
)
def test_registers_are_left_alone_until_they_were_waited_for(make, after: str) -> None:
    """On every way, and under whatever name."""
    with pytest.raises(Race, match="that tensor cores still have"):
        product_of(*make(after=after))


def test_rows_are_no_sums_that_are_still_made() -> None:
    """Nor are sums put where rows are still read; but sums may be added to."""
    again = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {{{0}}}, {1}, %rd9, %p1, 1, 1, 0;"
    again += "wgmma.commit_group.sync.aligned;"
    own, others = (", ".join(f"%f{n + first}" for n in range(8)) for first in (0, 16))
    product_of(*held(after=again.format(own, HELD) + WAIT))
    early = "mov.b32 %r20, %f3;" + again.format(others, HELD) + WAIT
    with pytest.raises(Race, match="registers that tensor cores still have"):
        product_of(*held(after=early))
    over = "mov.b32 %f3, %r20;" + again.format(own, HELD) + WAIT
    with pytest.raises(Race, match="that tensor cores still have"):
        product_of(*held(after=over))


def test_registers_may_change_their_names_and_rows_be_read() -> None:
    """While tensor cores have them."""
    product_of(*simple(after="mov.f32 %f20, %f3;" + WAIT + "add.f32 %f21, %f20, %f20;"))
    product_of(*held(after="st.global.u32 [%rd0], %r21;" + WAIT))
    product_of(*simple(after="@%p1 bra AROUND;" + WAIT + "AROUND:" + WAIT))


def test_what_threads_wrote_is_fenced_first() -> None:
    product_of(*simple())
    with pytest.raises(Race, match="without a fence"):
        product_of(*simple(fence=""))


def test_operands_stay_until_they_were_waited_for() -> None:
    met, write = "bar.sync 0;", "st.shared.u32 [%r9], %r0;"
    product_of(*simple(after=WAIT + met + write))
    for early in (met + write + WAIT, WAIT_FOR_OTHERS + met + write + WAIT):
        with pytest.raises(Race, match="tensor cores still read"):
            product_of(*simple(after=early))
    with pytest.raises(Race, match="without a barrier"):  # the other warps may not have waited yet
        product_of(*simple(after=WAIT + write))


def test_a_group_is_four_warps() -> None:
    with pytest.raises(EmulatorError, match="only some threads of a group"):
        product_of(*simple(when="@%p2"))
    code, content = simple()
    gpu = Gpu()
    with pytest.raises(EmulatorError, match="only some threads of a group"):
        gpu.run(code, 1, 96, gpu.put(padded(content)), gpu.put(np.zeros((128, 8), np.float32)))


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": ", 1, -1, 0, 0"},
        {"types": "k16.f16.f16.f16"},
        {"types": "k8.f32.f16.f16"},
    ],
)
def test_what_is_not_known_is_named(changes: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match=r"wgmma\.mma_async"):
        product_of(*simple(**changes))
