"""What the threads of a warp do together, on a GPU of paper."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx import PLACES, Gpu, module
from tunefarm.measure.cuda.emulator.faults import EmulatorError, IllegalAddress
from tunefarm.measure.cuda.emulator.warps import mma_places, sum_places

COUNTED = np.arange(128, dtype=np.int32)
LOAD = PLACES + "ld.global.u32 %r4, [%rd3];"


@pytest.mark.parametrize(
    ("mode", "by", "limits", "where"),
    [
        ("down", 8, 31, lambda lane: np.where(lane + 8 < 32, lane + 8, lane)),
        ("up", 3, 0, lambda lane: np.where(lane >= 3, lane - 3, lane)),
        ("bfly", 5, 31, lambda lane: lane ^ 5),
        ("idx", 9, 31, lambda lane: 0 * lane + 9),
        ("down", 4, 0x181F, lambda lane: np.where(lane % 8 + 4 < 8, lane + 4, lane)),
    ],
)
def test_values_are_handed_over(mode: str, by: int, limits: int, where) -> None:
    code = module(
        LOAD + f"shfl.sync.{mode}.b32 %r5|%p1, %r4, {by}, {limits}, -1; st.global.u32 [%rd4], %r5;"
    )
    lane = COUNTED % 32
    assert (Gpu().mapped(code, COUNTED) == COUNTED - lane + where(lane)).all()


def test_votes() -> None:
    code = module(
        LOAD
        + """
    and.b32 %r5, %r4, 3;
    setp.eq.s32 %p1, %r5, 1;
    vote.sync.ballot.b32 %r6, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1;
    selp.u32 %r7, %r6, 0, %p2;
    st.global.u32 [%rd4], %r7;
"""
    )
    assert set(Gpu().mapped(code, COUNTED).view(np.uint32)) == {0x22222222}


def test_sums_of_a_warp() -> None:
    code = module(LOAD + "redux.sync.add.s32 %r5, %r4, -1; st.global.u32 [%rd4], %r5;")
    assert (Gpu().mapped(code, COUNTED).reshape(4, 32)[:, 0] == COUNTED.reshape(4, 32).sum(1)).all()
    whole = module(LOAD + "redux.sync.max.u32 %r5, %r4, -1; st.global.u32 [%rd4], %r5;")
    assert (Gpu().mapped(whole, COUNTED) == COUNTED // 32 * 32 + 31).all()


def test_what_comes_from_a_thread_that_is_not_there_is_nothing_to_count_on() -> None:
    code = module(LOAD + "shfl.sync.down.b32 %r5, %r4, 8, 31, -1; st.global.u32 [%rd4], %r5;")
    made = Gpu().mapped(code, np.arange(16, dtype=np.int32), 16)
    assert made.tolist() == [*range(8, 16), *[-1] * 8]


@pytest.mark.parametrize(("each", "depth"), [(1, 8), (2, 8), (2, 16), (4, 32)])
def test_a_fragment_has_every_element_once(each: int, depth: int) -> None:
    for rows in (16, 8):
        row, column = mma_places(rows, depth, each)
        assert sorted(zip(row.flat, column.flat, strict=True)) == [
            (r, c) for r in range(rows) for c in range(depth)
        ]
    row, column = sum_places()
    assert len(set(zip(row.flat, column.flat, strict=True))) == 128


def test_a_fragment_lies_where_nvidia_says() -> None:
    """Of thread 5, group 1, second of its group, of 16 by 16 halves."""
    row, column = mma_places(16, 16, 2)
    assert row[5].tolist() == [[1, 1], [9, 9], [1, 1], [9, 9]]
    assert column[5].tolist() == [[2, 3], [2, 3], [10, 11], [10, 11]]
    row, column = sum_places()
    assert row[5].tolist() == [1, 1, 9, 9]
    assert column[5].tolist() == [2, 3, 2, 3]
    row, column = mma_places(8, 16, 2)
    assert row[5].tolist() == [[1, 1], [1, 1]]
    assert column[5].tolist() == [[2, 3], [10, 11]]


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)


MATRICES = """\
    mov.u32 %r6, s;
    mov.u32 %r7, %laneid;
    shl.b32 %r8, %r7, 4;
    add.s32 %r9, %r6, %r8;
    mul.wide.u32 %rd5, %r8, 1;
    add.s64 %rd6, %rd0, %rd5;
    cp.async.cg.shared.global [%r9], [%rd6], 16;
    cp.async.wait_all;
    bar.sync 0;
"""
"""A warp's 32 rows of eight halves from p0, into shared memory; the address of its own: %r9."""


@pytest.mark.parametrize("turned", [False, True])
def test_matrices_are_loaded_and_multiplied(turned: bool) -> None:
    """Four matrices of 8 by 8 halves; the first two, above each other, times the third one, or its
    transpose."""
    trans = ".trans" if turned else ""
    code = module(
        PLACES
        + MATRICES
        + f"""
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r10, %r11}}, [%r9];
    add.s32 %r12, %r9, 256;
    ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%r13}}, [%r12];
    mov.f32 %f0, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {{%f1,%f2,%f3,%f4}}, {{%r10,%r11}}, {{%r13}},
        {{%f0,%f0,%f0,%f0}};
    mul.wide.u32 %rd7, %r7, 16;
    add.s64 %rd8, %rd1, %rd7;
    st.global.v4.f32 [%rd8], {{%f1,%f2,%f3,%f4}};
""",
        shared=".shared .align 16 .b8 s[1024];",
    )
    gpu, given = Gpu(), halves(4, 8, 8)
    made = np.zeros((32, 4), np.float32)
    source, target = gpu.put(given), gpu.put(made)
    # Addresses of matrices that are not loaded are not looked at.
    gpu.run(code, 1, 32, source, target)
    row, column = sum_places()
    left, right = given[:2].reshape(16, 8).astype(np.float32), given[2].astype(np.float32)
    product = left @ (right if turned else right.T)
    np.testing.assert_allclose(gpu.get(target, made), product[row, column], rtol=1e-6, atol=1e-6)


def test_what_a_warp_does_together_is_not_for_half_of_it() -> None:
    code = module(
        PLACES
        + MATRICES
        + """
    setp.lt.u32 %p1, %r0, 16;
    @%p1 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r9];
""",
        shared=".shared .align 16 .b8 s[1024];",
    )
    gpu = Gpu()
    with pytest.raises(EmulatorError, match="only some threads of a warp"):
        gpu.run(code, 1, 32, gpu.put(halves(4, 8, 8)), gpu.put(np.zeros(256, np.int32)))


def test_rows_of_a_matrix_begin_at_multiples_of_sixteen_bytes() -> None:
    code = module(
        PLACES + MATRICES + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r9+2];",
        shared=".shared .align 16 .b8 s[1024];",
    )
    gpu = Gpu()
    with pytest.raises(IllegalAddress, match="multiple of 16"):
        gpu.run(code, 1, 32, gpu.put(halves(4, 8, 8)), gpu.put(np.zeros(256, np.int32)))


@pytest.mark.parametrize(("of", "layout"), [("f16", "row"), ("f16", "col"), ("bf16", "row")])
def test_fragments_that_are_nobodys_business(of: str, layout: str) -> None:
    """A 16x16x16 product by the older instructions, the right operand as it is or transposed."""
    registers = 8 if of == "f16" else 4
    a, b = ("{" + ",".join(f"%r{base + n}" for n in range(registers)) + "}" for base in (10, 30))
    c, d = ("{" + ",".join(f"%f{base + n}" for n in range(8)) + "}" for base in (10, 30))
    shape = "m16n16k16"
    types = "f32.f32" if of == "f16" else "f32.bf16.bf16.f32"
    code = module(
        PLACES
        + "".join(f"mov.f32 %f{10 + n}, 0f00000000;" for n in range(8))
        + f"""
    add.s64 %rd5, %rd0, 512;
    wmma.load.a.sync.aligned.row.{shape}.global.{of} {a}, [%rd0], 16;
    wmma.load.b.sync.aligned.{layout}.{shape}.global.{of} {b}, [%rd5], 16;
    wmma.mma.sync.aligned.row.{layout}.{shape}.{types} {d}, {a}, {b}, {c};
    wmma.store.d.sync.aligned.row.{shape}.global.f32 [%rd1], {d}, 16;
"""
    )
    given = halves(2, 16, 16)
    bits = given.view(np.uint16)
    if of == "bf16":
        bits = (given.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wide = given.astype(np.float32)
    if of == "bf16":
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
    gpu, made = Gpu(), np.zeros((16, 16), np.float32)
    source, target = gpu.put(bits), gpu.put(made)
    gpu.run(code, 1, 32, source, target)
    right = wide[1] if layout == "row" else wide[1].T
    np.testing.assert_allclose(gpu.get(target, made), wide[0] @ right, rtol=1e-5, atol=1e-5)
