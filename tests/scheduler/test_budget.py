from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.scheduler.budget import (
    Progress,
    allocate,
    at_the_roof,
    expected_gain,
    headroom,
    levelled_off,
    plateaued,
)


def progress(task: str, weight: int, baseline: float, history: list[float]) -> Progress:
    one = Progress(task, weight, baseline_s=baseline)
    for latency in history:
        one.record(latency)
    return one


def test_the_untuned_schedule_counts_until_it_is_beaten() -> None:
    one = progress("a", 1, 1.0, [2.0, 1.5])
    assert one.latency_s == 1.0
    one.record(0.5)
    assert one.latency_s == 0.5


def test_failures_are_results_without_a_latency() -> None:
    one = progress("a", 1, 1.0, [])
    one.record(None)
    assert (one.results, one.latency_s) == (1, 1.0)


def test_heavy_kernels_get_more() -> None:
    heavy = progress("heavy", 10, 1.0, [0.5] * 8)
    light = progress("light", 1, 0.01, [0.005] * 8)
    given_out = dict(allocate([heavy, light], 16, chunk=4))
    assert given_out.get("heavy", 0) == 16


def test_what_was_tried_less_attracts_candidates() -> None:
    falling = progress("falling", 1, 1.0, [0.8, 0.6, 0.4])
    new = progress("new", 1, 1.0, [0.4])
    assert expected_gain(new) > expected_gain(falling)


def test_what_is_on_its_way_counts_for_more_than_what_is_known() -> None:
    known = progress("known", 1, 1.0, [0.4] * 4)
    awaited = progress("awaited", 1, 1.0, [0.4])
    awaited.pending = 3
    assert (
        expected_gain(known)
        > expected_gain(awaited)
        == expected_gain(progress("awaited", 1, 1.0, [0.4]), 3)
    )


def test_a_batch_is_shared_among_equals() -> None:
    rows = [progress(f"t{i}", 1, 1.0, [0.4, 0.3]) for i in range(4)]
    assert dict(allocate(rows, 16, chunk=2)) == dict.fromkeys(["t0", "t1", "t2", "t3"], 4)


def test_what_takes_longer_inside_the_model_attracts_candidates() -> None:
    """Alone one takes longer than the other; in the model it is the other way round."""
    alone = progress("alone", 1, 1.0, [0.6, 0.6])
    inside = progress("inside", 1, 1.0, [0.5, 0.5])
    assert expected_gain(alone) > expected_gain(inside)
    alone.in_model, inside.in_model = 0.8, 1.3
    assert expected_gain(alone) < expected_gain(inside)
    assert dict(allocate([alone, inside], 4, chunk=4)) == {"inside": 4}


def test_every_open_kernel_first_gets_one() -> None:
    rows = [progress(f"t{i}", 1, 10.0**-i, []) for i in range(4)]
    assert dict(allocate(rows, 4, chunk=4)) == dict.fromkeys(["t0", "t1", "t2", "t3"], 1)
    assert dict(allocate(rows[::-1], 2, chunk=4)) == {"t0": 1, "t1": 1}, "the heaviest"


def test_plateau() -> None:
    falling = progress("a", 1, 9.0, [1 / (i + 1) for i in range(40)])
    assert not plateaued(falling, patience=16)
    flat = progress("b", 1, 9.0, [1.0] * 40)
    assert plateaued(flat, patience=16)
    failing = Progress("c", 1, baseline_s=1.0)
    for _ in range(16):
        failing.record(None)
    assert plateaued(failing, patience=16)


def test_a_job_that_gains_nothing_any_more_has_levelled_off() -> None:
    def off(sums: list[tuple[int, float]], measured: int, first: int = 20) -> bool:
        return levelled_off(sums, measured, first, fewest=100, gain=0.01)

    steep = [(10, 9.0), (40, 5.0), (100, 2.0)]
    assert off(steep, 200), "a hundred candidates without any gain"
    assert not off(steep, 199), "one less: the last gain is among them"
    assert not off([*steep, (190, 1.97)], 200), "more than a per cent"
    assert off([*steep, (190, 1.985)], 200), "less"
    assert not off(steep, 200, first=110), "every kernel must have had its first ones"
    assert off([(250, 1.0)], 600), "a third of six hundred"
    assert not off([(450, 1.0)], 600), "nothing is known of what there was before"
    assert not off([], 600)


def roofed(latency_s: float, floor_s: float) -> Progress:
    one = progress("t", 1, 1.0, [latency_s])
    one.floor_s = floor_s
    return one


def test_a_kernel_near_its_roof_has_nothing_left() -> None:
    assert at_the_roof(roofed(1.04e-3, 1e-3))
    assert not at_the_roof(roofed(1.2e-3, 1e-3))
    assert not at_the_roof(roofed(1e-3, 0.0)), "no roof is known"


def test_a_roof_that_was_broken_says_nothing() -> None:
    broken = roofed(0.7e-3, 1e-3)
    assert not at_the_roof(broken)
    assert headroom(broken) == headroom(roofed(0.7e-3, 0.0)) == pytest.approx(0.175e-3)
    assert headroom(roofed(0.7e-3, 0.2e-3)) == pytest.approx(0.5e-3)


def test_candidates_go_where_something_is_left() -> None:
    near, far = roofed(1.0e-3, 0.9e-3), roofed(0.8e-3, 0.1e-3)
    near.task, far.task = "near", "far"
    assert dict(allocate([near, far], 4, chunk=4)) == {"far": 4}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(1e-6, 1)), min_size=1, max_size=6),
    st.integers(0, 50),
    st.integers(1, 8),
)
def test_no_more_than_the_room_is_given_out(
    rows: list[tuple[int, float]], room: int, chunk: int
) -> None:
    tasks = [progress(f"t{i}", w, b, []) for i, (w, b) in enumerate(rows)]
    given_out = allocate(tasks, room, chunk=chunk)
    assert sum(count for _, count in given_out) == room
    assert len({task for task, _ in given_out}) == len(given_out)
    assert allocate([], room, chunk=1) == []
