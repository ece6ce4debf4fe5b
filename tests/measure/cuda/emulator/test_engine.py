"""Hopper's copy engine on a GPU of paper, and the barriers that tell when it has done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import REGISTERS, Gpu
from tunefarm.measure.cuda.emulator.engine import TensorMap, unpacked
from tunefarm.measure.cuda.emulator.faults import EmulatorError, NeverEnds, Race, Unsupported
from tunefarm.measure.cuda.emulator.ptx import parse

MATRIX = np.arange(20 * 48, dtype=np.uint16).reshape(20, 48) + 1
"""20 rows; nothing in it is zero."""
WIDTHS = {1: 32, 2: 64, 3: 128}
BOX = 1024
"""Bytes of one: 32 threads read 32 each."""


def wait(barrier: str, parity: int, label: str) -> str:
    return (
        f"${label}: mbarrier.try_wait.parity.shared::cta.b64 %p4, [{barrier}], {parity};"
        f" @!%p4 bra ${label};\n"
    )


THERE, READ = "%r10", "%r10+8"
COPY = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%r11], [%rd0, {{{0}, {1}}}], [%r10];\n"
)
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r10+8];\n"


MADE = (
    "mbarrier.init.shared::cta.b64 [%r10], 1; mbarrier.init.shared::cta.b64 [%r10+8], 1;\n"
    "fence.mbarrier_init.release.cluster;"
)


def expect(size: int) -> str:
    return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {size};\n"


def loaded(turn: int) -> str:
    """What lies in shared memory, to p1, by the threads of the first warp."""
    return "".join(
        f"ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r12+{at}];"
        f"st.global.v4.u32 [%rd2+{turn * BOX + at}], {{%r4, %r5, %r6, %r7}};\n"
        for at in (0, 16)
    )


def code(
    corners: tuple[tuple[int, int], tuple[int, int]] = ((16, 5), (32, 15)),
    expected: int = BOX,
    made: str = MADE,
    met: str = "bar.sync 0;",
    before: str = wait(THERE, 0, "first"),
    after: str = loaded(0) + "bar.warp.sync -1;\n" + "@%p3 " + ARRIVE,
    asking: str = wait(READ, 0, "read"),
    copy: str = COPY,
    second: str = wait(THERE, 1, "second") + loaded(1),
) -> Any:
    """Two boxes, one after another at one place: a thread of the second warp asks for them, the
    first warp reads them. `before`, `after`: what readers do before and with the first of them;
    `asking`: what the thread waits for between the two."""
    ask = [
        f"mov.u32 %r20, {one[0]}; mov.u32 %r21, {one[1]};"
        + expect(expected)
        + copy.format("%r20", "%r21")
        for one in corners
    ]
    return parse(
        f""".version 9.0
.target sm_90
.address_size 64
.shared .align 1024 .b8 s[{BOX}];
.shared .align 8 .b8 m[{BOX}];
.visible .entry k(.param .align 64 .b8 p0[128], .param .u64 p1) .maxntid 64, 1, 1 {{
{REGISTERS}
    mov.b64 %rd1, p0; cvta.param.u64 %rd0, %rd1;
    ld.param.u64 %rd2, [p1];
    mov.u32 %r0, %tid.x; mov.u32 %r10, m; mov.u32 %r11, s; mov.u32 %r13, m;
    shl.b32 %r1, %r0, 5; add.s32 %r12, %r11, %r1;
    cvt.u64.u32 %rd3, %r1; add.s64 %rd2, %rd2, %rd3;
    setp.eq.u32 %p1, %r0, 32; setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 0;
    @!%p3 bra $made;
    {made}
$made:
    {met}
    @%p2 bra $reader;
    @!%p1 bra $end;
    {ask[0]}{asking}{ask[1]}
    bra $end;
$reader:
    {before}{after}{second}
$end:
    ret;
}}"""
    )


def boxes(
    of: Any, swizzle: int = 2, matrix: np.ndarray = MATRIX, rounds: bool = False
) -> np.ndarray:
    """What two boxes of `matrix` were, as they lay in shared memory."""
    size = matrix.itemsize
    gpu, made = Gpu(), np.zeros((2, BOX // size), matrix.dtype)
    inner = WIDTHS[swizzle] // size
    told = TensorMap(
        size, gpu.put(matrix), matrix.shape[::-1], matrix.strides[:1],
        (inner, BOX // size // inner), swizzle, rounds,
    )  # fmt: skip
    target = gpu.put(made)
    arguments = [told.packed(), target.to_bytes(8, "little")]
    gpu.machine.launch(of, "k", (1, 1, 1), (64, 1, 1), arguments)
    return gpu.get(target, made)


@pytest.mark.parametrize("swizzle", sorted(WIDTHS))
def test_a_box_lies_as_tensor_cores_read_it(swizzle: int) -> None:
    """Row by row, its pieces of sixteen bytes in other places; beyond the matrix are zeros."""
    corners = ((16, 5), (-8, 15))
    found = boxes(code(corners), swizzle)
    width = WIDTHS[swizzle]
    wide = np.zeros((20 + 64, 48 + 128), np.uint16)
    wide[:20, 64:112] = MATRIX
    for (x, y), one in zip(corners, found, strict=True):
        box = wide[y : y + BOX // width, x + 64 : x + 64 + width // 2]
        place = np.arange(BOX).reshape(box.shape[0], -1)[:, ::2]
        place = place ^ ((place >> 7 & (width // 16 - 1)) << 4)
        assert (one[place // 2] == box).all()


def test_words_are_rounded_on_their_way_where_a_map_says_so() -> None:
    """To ten bits of their fraction, which is from one to two here, ties to even; what is not
    finite stays."""
    matrix = (1 + np.arange(20 * 24, dtype=np.float32) / 2**12).reshape(20, 24)
    matrix[7, 16:19] = np.inf, -np.inf, np.nan
    plain, rounded = (boxes(code(), 2, matrix, rounds) for rounds in (False, True))
    finite = np.isfinite(plain)
    assert finite.sum() < plain.size
    assert np.array_equal(rounded[~finite], plain[~finite], equal_nan=True)
    there = finite & (plain != 0)
    assert np.isin(plain[there], matrix).all()
    assert (rounded[finite] == np.rint(plain[finite] * 2**10) / 2**10).all()
    assert (rounded[finite] > plain[finite]).any(), "not cut off"


def test_maps_tell_what_they_were_told() -> None:
    for rounds in (False, True):
        one = TensorMap(4, 1 << 40, (48, 20, 3), (192, 3840), (16, 8, 1), 2, rounds)
        assert len(one.packed()) == 128
        assert unpacked(one.packed()) == one
    with pytest.raises(EmulatorError, match="no map"):
        unpacked(bytes(128))


@pytest.mark.parametrize(
    "change",
    [
        {"address": (1 << 40) + 8},
        {"strides": (100,)},
        {"extents": (0, 20)},
        {"box": (32, 257)},
        {"box": (4, 8)},
        {"box": (64, 8)},
        {"extents": (1,) * 6, "strides": (16,) * 5, "box": (8,) * 6},
    ],
)
def test_maps_that_the_driver_refuses(change: dict[str, Any]) -> None:
    good = {"size": 2, "address": 1 << 40, "extents": (48, 20), "strides": (96,), "box": (32, 8)}
    TensorMap(**good, swizzle=2)
    with pytest.raises(ValueError, match="no map"):
        TensorMap(**{**good, **change}, swizzle=2)


def test_readers_wait_for_what_is_copied() -> None:
    with pytest.raises(Race, match="has not waited"):
        boxes(code(before=""))
    with pytest.raises(Race, match="has not waited"):
        boxes(code(before="st.shared.u32 [%r12], %r0;"))
    one_for_all = "@!%p3 bra $others;" + wait(THERE, 0, "first") + "$others: bar.warp.sync -1;\n"
    boxes(code(before=one_for_all))


def test_nothing_is_copied_over_what_is_read() -> None:
    boxes(code())
    with pytest.raises(Race, match="may still use"):
        boxes(code(after="@%p3 " + ARRIVE + loaded(0)))
    with pytest.raises(Race, match="may still use"):
        boxes(code(after=loaded(0) + "@%p3 " + ARRIVE + "st.shared.u32 [%r12], %r0;"))
    with pytest.raises(EmulatorError):  # the first may be over before anybody has seen it
        boxes(code(asking=""))


def test_bytes_are_counted() -> None:
    with pytest.raises(NeverEnds, match="nobody ends"):
        boxes(code(expected=BOX + 16))
    with pytest.raises(EmulatorError, match="more bytes"):
        boxes(code(expected=BOX - 16))


def test_who_waits_for_ever_is_told() -> None:
    with pytest.raises(NeverEnds, match="nobody ends"):
        boxes(code(after=loaded(0)))
    with pytest.raises(NeverEnds, match="nobody ends"):
        boxes(code(before=wait(THERE, 1, "first") + wait(THERE, 0, "again")))


def test_threads_are_counted() -> None:
    with pytest.raises(EmulatorError, match="more threads"):
        boxes(code(after=loaded(0) + ARRIVE))


def test_a_barrier_is_made_first() -> None:
    with pytest.raises(EmulatorError, match="no barrier"):
        boxes(code(made=""))
    with pytest.raises(Race, match="still be making"):
        boxes(code(met=""))
    with pytest.raises(Race, match="without a fence"):
        boxes(code(made=MADE.partition("fence")[0]))


def test_a_barrier_is_left_alone() -> None:
    with pytest.raises(Race, match="written over"):
        boxes(code(after=loaded(0) + "@%p3 st.shared.u32 [%r10], %r0;\n@%p3 " + ARRIVE))
    with pytest.raises(Race, match="over a barrier"):
        boxes(code(copy=COPY.replace("[%r11]", "[%r13]")))


def test_a_kernel_waits_for_its_copies() -> None:
    with pytest.raises(Race, match="ends before"):
        boxes(code(second=""))


@pytest.mark.parametrize(
    "change",
    [
        {"copy": COPY.replace("[%r10];", "[%r10], %rd0;")},
        {"asking": wait(READ, 0, "read").replace(".parity", "")},
        {"asking": wait(READ, 0, "read").replace(".parity", ".parity.relaxed.cta")},
        {"made": "mbarrier.inval.shared::cta.b64 [%r10];"},
        {"after": "mbarrier.arrive.noComplete.shared::cta.b64 _, [%r10+8], 1;"},
    ],
)
def test_what_is_not_known_is_named(change: dict[str, str]) -> None:
    with pytest.raises(Unsupported):
        boxes(code(**change))
