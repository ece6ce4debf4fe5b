"""Threads, blocks and memory of a GPU of paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx import PLACES, Gpu, module
from tunefarm.measure.cuda.emulator.faults import IllegalAddress, NeverEnds, Race, Unsupported
from tunefarm.measure.cuda.emulator.machine import Machine

COUNTED = np.arange(256, dtype=np.int32)


def test_every_thread_of_every_block_has_its_own_place() -> None:
    code = module(
        PLACES + "ld.global.u32 %r4, [%rd3]; shl.b32 %r5, %r4, 1; st.global.u32 [%rd4], %r5;"
    )
    assert (Gpu().mapped(code, COUNTED) == 2 * COUNTED).all()


def test_threads_that_part_meet_again() -> None:
    """Odd ones add 100, even ones 7; then all double."""
    code = module(
        PLACES
        + """
    ld.global.u32 %r4, [%rd3];
    and.b32 %r5, %r4, 1;
    setp.eq.s32 %p1, %r5, 1;
    @%p1 bra $odd;
    add.s32 %r4, %r4, 7;
    bra.uni $both;
$odd:
    add.s32 %r4, %r4, 100;
$both:
    shl.b32 %r4, %r4, 1;
    st.global.u32 [%rd4], %r4;
"""
    )
    assert (Gpu().mapped(code, COUNTED) == 2 * (COUNTED + np.where(COUNTED % 2, 100, 7))).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=32, max_size=32))
def test_each_thread_goes_round_as_often_as_it_is_told(rounds: list[int]) -> None:
    """Of n rounds the sum of 1 to n; a barrier after each is none of their business."""
    code = module(
        PLACES
        + """
    ld.global.u32 %r4, [%rd3];
    mov.u32 %r5, 0;
$again:
    setp.eq.s32 %p1, %r4, 0;
    @%p1 bra $out;
    add.s32 %r5, %r5, %r4;
    sub.s32 %r4, %r4, 1;
    bra.uni $again;
$out:
    bar.sync 0;
    st.global.u32 [%rd4], %r5;
"""
    )
    told = np.array(rounds, np.int32)
    assert (Gpu().mapped(code, told, 32) == told * (told + 1) // 2).all()


def reversed_in_shared(barrier: str) -> str:
    """Each thread writes its number to shared memory, and reads that of its mirror image."""
    return (
        PLACES
        + f"""
    mov.u32 %r6, s;
    shl.b32 %r7, %r0, 2;
    add.s32 %r8, %r6, %r7;
    st.shared.u32 [%r8], %r3;
    {barrier}
    sub.s32 %r9, %r2, %r0;
    shl.b32 %r9, %r9, 2;
    add.s32 %r10, %r6, %r9;
    ld.shared.u32 %r11, [%r10+-4];
    st.global.u32 [%rd4], %r11;
"""
    )


SHARED = ".shared .align 4 .b8 s[1024];"


def test_what_others_wrote_is_there_after_a_barrier() -> None:
    code = module(reversed_in_shared("bar.sync 0;"), shared=SHARED)
    made = Gpu().mapped(code, COUNTED)
    assert (made.reshape(4, 64) == COUNTED.reshape(4, 64)[:, ::-1]).all()


def test_without_the_barrier_it_is_a_race() -> None:
    code = module(reversed_in_shared(""), shared=SHARED)
    with pytest.raises(Race, match=r"k: ld\.shared.*without a barrier"):
        Gpu().mapped(code, COUNTED)


def test_a_race_inside_one_warp_is_one_unless_the_warp_meets() -> None:
    with pytest.raises(Race):
        Gpu().mapped(module(reversed_in_shared(""), shared=SHARED), COUNTED, 32)
    meets = module(reversed_in_shared("bar.warp.sync -1;"), shared=SHARED)
    made = Gpu().mapped(meets, COUNTED, 32)
    assert (made.reshape(8, 32) == COUNTED.reshape(8, 32)[:, ::-1]).all()


def test_writing_where_another_still_reads_is_a_race() -> None:
    code = module(reversed_in_shared("bar.sync 0;") + "st.shared.u32 [%r8], %r11;", shared=SHARED)
    with pytest.raises(Race, match="that another thread read"):
        Gpu().mapped(code, COUNTED)
    Gpu(watches=False).mapped(code, COUNTED)


def test_two_that_write_to_one_place_at_once_are_a_race() -> None:
    code = module(PLACES + "mov.u32 %r6, s; st.shared.u32 [%r6], %r0;", shared=SHARED)
    with pytest.raises(Race, match="at once"):
        Gpu().mapped(code, COUNTED)


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("ld.global.u32 %r4, [%rd3+1024];", "were not allocated"),
        ("ld.global.u32 %r4, [%rd3+-4];", "were not allocated"),
        ("ld.global.u32 %r4, [%rd0+2];", "multiple of 4"),
        ("ld.global.v2.u32 {%r4, %r5}, [%rd0+4];", "multiple of 8"),
        ("ld.shared.u32 %r4, [s+1024];", "of shared memory"),
        ("st.global.u32 [%rd3+1024], %r0;", "were not allocated"),
    ],
)
def test_an_address_that_is_nobodys_is_refused(access: str, words: str) -> None:
    code = module(PLACES + access, shared=SHARED)
    with pytest.raises(IllegalAddress, match=words):
        Gpu().mapped(code, COUNTED)


def test_who_does_not_get_there_may_name_any_address() -> None:
    code = module(
        PLACES
        + """
    setp.ge.s32 %p1, %r3, 200;
    @!%p1 ld.global.u32 %r4, [%rd3+224];
    @!%p1 st.global.u32 [%rd4], %r4;
"""
    )
    made = Gpu().mapped(code, COUNTED)
    assert (made[:200] == COUNTED[56:]).all()
    assert (made[200:] == 0).all()


def test_what_never_ends_is_given_up() -> None:
    with pytest.raises(NeverEnds):
        Gpu(most_steps=10_000).mapped(module("$l: bra.uni $l;"), COUNTED)


@pytest.mark.parametrize("text", ["tex.2d.v4.f32.s32 {%f1}, [x];", "sqrt.rn.s32 %r1, %r2;"])
def test_what_is_not_known_is_named(text: str) -> None:
    with pytest.raises(Unsupported, match=text.split(maxsplit=1)[0]):
        Gpu().mapped(module(text), COUNTED)


def copied(waits: str) -> str:
    """Each thread asks for its four bytes twice, in a group each, and waits; then reads both."""
    return (
        PLACES
        + f"""
    mov.u32 %r6, s;
    shl.b32 %r7, %r0, 2;
    add.s32 %r8, %r6, %r7;
    cp.async.ca.shared.global [%r8], [%rd3], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r8+512], [%rd3], 4;
    cp.async.commit_group;
    {waits}
    ld.shared.u32 %r9, [%r8];
    ld.shared.u32 %r10, [%r8+512];
    add.s32 %r11, %r9, %r10;
    st.global.u32 [%rd4], %r11;
"""
    )


def test_copies_are_there_when_they_are_waited_for_and_no_sooner() -> None:
    def made(waits: str):
        return Gpu().mapped(module(copied(waits), shared=SHARED), COUNTED)

    assert (made("cp.async.wait_group 0;") == 2 * COUNTED).all()
    assert (made("cp.async.wait_all;") == 2 * COUNTED).all()
    assert (made("cp.async.wait_group 1;") == COUNTED - 1).all(), "the second is all ones as yet"
    assert (made("cp.async.wait_group 2;") == -2).all()


def test_what_another_thread_waited_for_is_no_more_there_than_what_it_wrote() -> None:
    mirrored = copied("cp.async.wait_group 0;").replace(
        "ld.shared.u32 %r9, [%r8];", "xor.b32 %r12, %r8, 128; ld.shared.u32 %r9, [%r12];"
    )
    with pytest.raises(Race):
        Gpu().mapped(module(mirrored, shared=SHARED), COUNTED)
    met = mirrored.replace("wait_group 0;", "wait_group 0; bar.sync 0;")
    made = Gpu().mapped(module(met, shared=SHARED), COUNTED)
    assert (made == COUNTED + (COUNTED ^ 32)).all()


def test_memory_that_is_given_back_is_nobodys() -> None:
    memory = Machine(memory_bytes=1 << 20).memory
    first, second = memory.allocate(1000), memory.allocate(10)
    assert (memory.span(first, 1000) == 0xFF).all()
    with pytest.raises(IllegalAddress):
        memory.span(first, 1001)
    memory.free(first)
    with pytest.raises(IllegalAddress):
        memory.span(first, 1)
    with pytest.raises(IllegalAddress):
        memory.free(first)
    assert memory.allocate(900) == first, "its place is used again"
    assert memory.span(second, 10).size == 10


def test_memory_ends() -> None:
    with pytest.raises(MemoryError):
        Machine(memory_bytes=1 << 20).memory.allocate(1 << 40)


def test_labels_of_inline_assembly_are_its_own() -> None:
    """Twice the same text, as of a loop that was unrolled."""
    part = """{
    .reg .pred p;
    setp.eq.s32 p, %r4, 0;
    @p bra done;
    sub.s32 %r4, %r4, 1;
done:
    }
"""
    code = module(PLACES + "ld.global.u32 %r4, [%rd3];" + part * 2 + "st.global.u32 [%rd4], %r4;")
    assert (Gpu().mapped(code, COUNTED) == np.maximum(COUNTED - 2, 0)).all()


def test_variables_of_a_module_hold_what_it_says() -> None:
    code = module(
        PLACES
        + """
    mov.u64 %rd5, table;
    and.b32 %r4, %r0, 3;
    mul.wide.u32 %rd6, %r4, 4;
    add.s64 %rd7, %rd5, %rd6;
    ld.const.u32 %r5, [%rd7];
    st.global.u32 [%rd4], %r5;
""",
        shared=".const .align 4 .u32 table[4] = {10, 20, 30, 4294967295};",
    )
    made = Gpu().mapped(code, COUNTED)
    assert made[:4].tolist() == [10, 20, 30, -1]


def test_threads_add_up_one_after_another() -> None:
    """And each finds what those before it have left."""
    gpu, count = Gpu(), np.zeros(1, np.int32)
    counter, found = gpu.put(count), gpu.put(COUNTED)
    code = module(PLACES + "atom.global.add.u32 %r5, [%rd0], 1; st.global.u32 [%rd4], %r5;")
    gpu.run(code, 4, 64, counter, found)
    assert gpu.get(counter, count)[0] == 256
    assert sorted(gpu.get(found, COUNTED)) == list(range(256))


def test_who_is_not_there_asks_for_nothing() -> None:
    """Whatever lies lowest in memory is shorter than what the others read."""
    gpu, given = Gpu(), np.arange(16, dtype=np.int32)
    gpu.put(np.zeros(2, np.uint8))
    source, target = gpu.put(given), gpu.put(np.zeros_like(given))
    code = module(
        PLACES
        + """
    setp.lt.u32 %p1, %r0, 4;
    mul.wide.s32 %rd2, %r0, 16;
    add.s64 %rd3, %rd0, %rd2;
    add.s64 %rd4, %rd1, %rd2;
    @%p1 ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd3];
    @%p1 st.global.v4.u32 [%rd4], {%r4, %r5, %r6, %r7};
"""
    )
    gpu.run(code, 1, 32, source, target)
    assert (gpu.get(target, given) == given).all()


OWN = PLACES + "mov.u32 %r6, s; shl.b32 %r7, %r0, 2; add.s32 %r8, %r6, %r7;"


@pytest.mark.parametrize(
    ("body", "races"),
    [
        # A neighbour reads, the warp meets, each reads and writes its own.
        (
            "xor.b32 %r9, %r8, 4; ld.shared.u32 %r4, [%r9]; bar.warp.sync -1;"
            "ld.shared.u32 %r5, [%r8]; st.shared.u32 [%r8], %r5;",
            False,
        ),
        # Each writes its own, the warp meets, some write to one place.
        (
            "st.shared.u32 [%r8], %r0; bar.warp.sync -1;"
            "setp.lt.u32 %p1, %r0, 8; @%p1 st.shared.u32 [%r6], %r0;",
            True,
        ),
        # Handing values over is no meeting: nothing is said of memory.
        (
            "st.shared.u32 [%r8], %r0; shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;"
            "xor.b32 %r9, %r8, 64; ld.shared.u32 %r5, [%r9];",
            True,
        ),
    ],
)
def test_threads_of_a_warp_race_as_any(body: str, races: bool) -> None:
    code, gpu = module(OWN + body, shared=SHARED), Gpu()
    places = gpu.put(COUNTED), gpu.put(COUNTED)
    if races:
        with pytest.raises(Race):
            gpu.run(code, 1, 32, *places)
    else:
        gpu.run(code, 1, 32, *places)


def test_a_module_that_is_unloaded_leaves_nothing() -> None:
    gpu = Gpu(memory_bytes=1 << 16)
    for number in range(40):  # of 4 kB each
        content = ",".join([str(number)] * 1024)
        code = module(
            PLACES + "ld.const.u32 %r5, [table]; st.global.u32 [%rd0], %r5;",
            shared=f".const .align 4 .u32 table[1024] = {{{content}}};",
        )
        source = gpu.put(COUNTED)
        gpu.run(code, 1, 32, source, source)
        assert gpu.get(source, COUNTED)[0] == number
        gpu.machine.unload(code)
        gpu.machine.memory.free(source)
