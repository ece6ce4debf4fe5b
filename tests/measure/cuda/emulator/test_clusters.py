"""Blocks that are launched together on a GPU of paper: what one copies to the other, and says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import REGISTERS, Gpu
from tunefarm.measure.cuda.emulator.engine import TensorMap
from tunefarm.measure.cuda.emulator.faults import EmulatorError, NeverEnds, Race, Unsupported
from tunefarm.measure.cuda.emulator.ptx import parse

MATRIX = np.arange(64 * 32, dtype=np.uint16).reshape(64, 32) + 1
BOX = 1024
"""Bytes of sixteen of its rows; each of two blocks asks for eight, for both."""
MEET = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
OF = "mapa.shared::cluster.u32 %r16, %r14, {0}; "
TELL = OF + "@%p3 mbarrier.arrive.shared::cluster.b64 _, [%r16];"


def wait(barrier: str, parity: int, label: str) -> str:
    return (
        f"${label}: mbarrier.try_wait.parity.shared::cta.b64 %p4, [{barrier}], {parity};"
        f" @!%p4 bra ${label};\n"
    )


def code(
    begins: str = MEET,
    ends: str = MEET,
    told: str = TELL.format(0) + TELL.format(1),
    counted: int = 2,
    ranks: int = 3,
    share: str = "%cluster_ctarank",
    parts: str = ".multicast::cluster",
    before: str = "",
    limits: str = ".explicitcluster .reqnctapercluster 2, 1, 1",
) -> Any:
    """Two boxes, one after another at one place: a thread of each block's second warp asks for its
    share, the first warps read all, and say so to both blocks.

    Args:
        told: how; counted: of how many of them the asking thread waits for.
        share: which eight rows a block asks for; ranks: bits of the blocks that get them.
        before: what the readers do before they say so.
    """
    ask = "".join(
        f"""
    {wait("%r14", 0, "read") if turn else ""}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {BOX};
    mov.u32 %r20, 0; add.s32 %r21, %r17, {16 * turn};
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{parts}
      [%r13], [%rd0, {{%r20, %r21}}], [%r10]{", %rs0" if parts else ""};
"""
        for turn in range(2)
    )
    reads = "".join(
        f"""
    {wait("%r10", turn, f"there{turn}")}
    ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r12];
    st.global.v4.u32 [%rd2+{turn * BOX}], {{%r4, %r5, %r6, %r7}};
    ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r12+16];
    st.global.v4.u32 [%rd2+{turn * BOX + 16}], {{%r4, %r5, %r6, %r7}};
    {"" if turn else before}
    bar.warp.sync -1;
    {told}
"""
        for turn in range(2)
    )
    return parse(
        f""".version 9.0
.target sm_90
.address_size 64
.shared .align 1024 .b8 s[{BOX}];
.shared .align 8 .b8 m[16];
.visible .entry k(.param .align 64 .b8 p0[128], .param .u64 p1) .maxntid 64, 1, 1 {limits} {{
{REGISTERS}
    mov.b64 %rd1, p0; cvta.param.u64 %rd0, %rd1;
    ld.param.u64 %rd2, [p1];
    mov.u32 %r0, %tid.x; mov.u32 %r10, m; add.s32 %r14, %r10, 8; mov.u32 %r11, s;
    mov.u32 %r15, {share}; shl.b32 %r17, %r15, 3; shl.b32 %r18, %r15, 9;
    add.s32 %r13, %r11, %r18; mov.u16 %rs0, {ranks};
    shl.b32 %r1, %r0, 5; add.s32 %r12, %r11, %r1;
    mov.u32 %r2, %ctaid.x; shl.b32 %r3, %r2, 11; add.s32 %r3, %r3, %r1;
    cvt.u64.u32 %rd3, %r3; add.s64 %rd2, %rd2, %rd3;
    setp.eq.u32 %p1, %r0, 32; setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 0;
    @!%p3 bra $made;
    mbarrier.init.shared::cta.b64 [%r10], 1; mbarrier.init.shared::cta.b64 [%r14], {counted};
    fence.mbarrier_init.release.cluster;
$made:
    bar.sync 0;
    {begins}
    @%p2 bra $reader;
    @!%p1 bra $end;
    {ask}
    bra $end;
$reader:
    {reads}
$end:
    {ends}
    ret;
}}"""
    )


def boxes(of: Any, blocks: int = 2) -> np.ndarray:
    """What each block found in its two boxes."""
    gpu, made = Gpu(), np.zeros((blocks, 2, 16, 32), np.uint16)
    told = TensorMap(2, gpu.put(MATRIX), MATRIX.shape[::-1], MATRIX.strides[:1], (32, 8), 0)
    target = gpu.put(made)
    arguments = [told.packed(), target.to_bytes(8, "little")]
    gpu.machine.launch(of, "k", (blocks, 1, 1), (64, 1, 1), arguments)
    return gpu.get(target, made)


@pytest.mark.parametrize("blocks", [2, 6])
def test_each_block_gets_what_both_have_asked_for(blocks: int) -> None:
    wanted = MATRIX[:32].reshape(2, 16, 32)
    assert (boxes(code(), blocks) == wanted).all()


def test_clusters_are_whole() -> None:
    with pytest.raises(EmulatorError, match="3 blocks along x in clusters of 2"):
        boxes(code(), 3)
    with pytest.raises(EmulatorError, match="copy for blocks 0x3 of a cluster of 1"):
        boxes(code(limits=""))


def test_barriers_of_others_are_made_first() -> None:
    with pytest.raises(Race, match="still be making"):
        boxes(code(begins=""))


def test_a_block_stays_until_nobody_comes_to_it_any_more() -> None:
    with pytest.raises(Race, match="may end before others"):
        boxes(code(ends=""))


def test_nothing_is_copied_over_what_another_block_reads() -> None:
    late = "ld.shared.u32 %r4, [%r12];"
    with pytest.raises(Race, match="may still use"):
        boxes(code(told=TELL.format(0) + TELL.format(1) + late))
    with pytest.raises(Race, match="may still use"):  # one of two is enough for nobody
        boxes(code(counted=1, told=TELL.format("%r15")))


def test_who_is_not_told_waits_for_ever() -> None:
    with pytest.raises(NeverEnds):
        boxes(code(told=TELL.format("%r15")))
    with pytest.raises(NeverEnds):
        boxes(code(ranks=1))


def test_what_nobody_copied_is_not_there() -> None:
    assert not (boxes(code(share="0")) == MATRIX[:32].reshape(2, 16, 32)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"limits": ".reqnctapercluster 1, 2, 1"},
        {"begins": MEET + OF.format(1) + wait("%r16", 0, "other")},
        {"before": "mapa.shared::cluster.u64 %rd5, %rd2, 1;"},
        {"before": "@%p3 barrier.cluster.wait.acquire;"},
    ],
)
def test_what_is_not_known_is_named(change: dict[str, str]) -> None:
    with pytest.raises(Unsupported):
        boxes(code(**change))
