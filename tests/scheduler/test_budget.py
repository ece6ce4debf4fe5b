from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.protocol import Protocol
from tunefarm.scheduler.budget import (
    Progress,
    affordable,
    allocate,
    at_the_roof,
    closing_s,
    expected_gain,
    headroom,
    levelled_off,
    overrun_s,
    plateaued,
    tuning_s,
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


def test_what_follows_tuning_takes_longer_where_the_untuned_kernels_are_slow() -> None:
    def closing(baseline_s: float) -> float:
        tasks = [Progress(f"t{i}", 2, baseline_s) for i in range(30)]
        return closing_s(tasks, Protocol())

    fast, slow = closing(1e-4), closing(0.1)
    assert 30 < fast < 90
    # Three seconds of untuned kernels, three calls in each of three processes; and the model of
    # some four seconds, three runs in each of three.
    assert slow - fast == pytest.approx(3 * 3.0 * 3 + 3 * 3.6 * 3, rel=0.2)
    assert closing_s([Progress("t", 1)], Protocol()) < 50, "before any baseline is known"


def test_a_model_of_which_one_run_takes_longer_than_all_samples_may_is_run_once() -> None:
    def closing(untuned_s: float, calls: int) -> float:
        tasks = [progress(f"t{i}", 1, untuned_s / 0.6 / 20, [1e-4]) for i in range(20)]
        return closing_s(tasks, Protocol(slow_calls=calls, screen_s=100.0))  # kernels are not slow

    assert closing(5.9, 3) - closing(5.9, 1) > 2 * 3 * 5.9
    model_s = Protocol().model_s
    few, many = closing(1.1 * model_s, 1), closing(1.1 * model_s, 3)
    kernels = 2 * 1.1 * model_s / 0.6 * Protocol().final_processes
    assert many - few == pytest.approx(kernels, rel=0.01), "of the kernels alone"


def test_kernels_that_take_milliseconds_take_their_races_as_much_time_as_there_is() -> None:
    def closing(best: float) -> float:
        return closing_s([progress(f"t{i}", 1, 1e-3, [best]) for i in range(60)], Protocol())

    quick, slow = closing(1e-4), closing(0.01)
    # Ten rounds of four, in two processes, from two milliseconds each to half a second a kernel;
    # and five rounds of two in six.
    raced, held_out = 0.5 - 10 * 4 * 0.002, 5 * 2 * (0.01 - 0.002)
    assert slow - quick == pytest.approx(60 * (2 * raced + 6 * held_out), rel=0.1)


def test_who_is_not_far_behind_is_called_by_all_processes() -> None:
    def closing(best: float) -> float:
        return closing_s([progress(f"t{i}", 2, 0.15, [best]) for i in range(30)], Protocol())

    # Three calls in three processes more: of 4.5 seconds of untuned kernels, of the model's 5.4.
    assert closing(0.0502) - closing(0.0498) == pytest.approx(3 * 3 * 4.5, rel=0.2)
    # And the winners' five rounds, which there is time for: 0.45 s a kernel, and 0.26.
    assert closing(0.045) - closing(0.026) == pytest.approx(3 * 3 * 5.4 + 6 * 30 * 0.19, rel=0.25)


def test_an_untuned_model_that_is_far_slower_is_called_few_times() -> None:
    """From a tenth of a second on: three times in each of six processes."""

    def closing(untuned_s: float, best: float) -> float:
        return closing_s([progress("t", 1, untuned_s / 0.6, [best])], Protocol())

    near, far = closing(0.3, 0.15), closing(0.3, 0.05)
    assert near - far == pytest.approx(6 * (11 - 3) * 0.3, rel=0.2)
    assert closing(0.11, 0.005) < closing(0.09, 0.005), "that is not long: it is called as before"


def test_what_is_far_slower_is_called_again_while_that_costs_little() -> None:
    tasks = [Progress(f"t{i}", 2, 0.1) for i in range(30)]  # an untuned model of six seconds
    protocol = Protocol()
    calls = []
    for budget in (60.0, 240.0, 600.0, 900.0, 1800.0, None):
        fitted = affordable(tasks, protocol, budget)
        assert replace(fitted, slow_calls=protocol.slow_calls) == protocol, "nothing else changes"
        calls.append(fitted.slow_calls)
        if budget is None:
            continue
        once = closing_s(tasks, replace(fitted, slow_calls=1))
        assert closing_s(tasks, fitted) <= once + 0.05 * budget
        if fitted != protocol:
            more = replace(fitted, slow_calls=fitted.slow_calls + 1)
            assert closing_s(tasks, more) > once + 0.05 * budget
        assert budget / 4 <= tuning_s(tasks, protocol, budget, 0.0) < budget
        over = max(0.0, closing_s(tasks, fitted) - 0.75 * budget)
        assert overrun_s(tasks, protocol, budget, 0.0) == over
    assert calls == [1, 1, 2, 3, 3, 3]
    assert overrun_s(tasks, protocol, 60.0, 0.0) > 0 == overrun_s(tasks, protocol, 300.0, 0.0)


def test_a_quarter_of_a_budget_is_for_tuning_whenever_it_begins() -> None:
    tasks, protocol = [Progress("t", 1, 1e-3)], Protocol()
    closing = closing_s(tasks, protocol)
    budget = 2 * closing
    assert tuning_s(tasks, protocol, budget, 0.0) == budget - closing
    assert overrun_s(tasks, protocol, budget, 0.0) == 0
    for late in (0.5 * budget, 0.9 * budget, 3 * budget):
        assert tuning_s(tasks, protocol, budget, late) == late + budget / 4
        over = overrun_s(tasks, protocol, budget, late)
        assert over == pytest.approx(late + budget / 4 + closing - budget)
