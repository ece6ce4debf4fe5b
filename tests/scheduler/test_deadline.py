"""A budget as it runs out: how long what follows tuning takes, and when tuning must stop for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scheduler.test_budget import progress
from tunefarm.measure.protocol import Protocol
from tunefarm.scheduler.budget import Progress
from tunefarm.scheduler.deadline import Budget, Deadline, affordable, closing_s

TASKS = [Progress("t", 1, 1e-3)]
CLOSING_S = closing_s(TASKS, Protocol())


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
    calls, late = [], []
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
        over = max(0.0, closing_s(tasks, fitted) - 0.75 * budget)
        deadline = Deadline(protocol, Budget(budget, budget), started=100.0)
        until = deadline.tune_until(tasks, now=100.0)
        assert until is not None
        assert budget / 4 <= until - 100.0 < budget
        assert deadline.overrun_s(tasks, now=100.0) == over
        late.append(over > 0)
    assert calls == [1, 1, 2, 3, 3, 3]
    assert late == [True, False, False, False, False]


@pytest.fixture
def deadline() -> Deadline:
    """Of a budget of twice what follows the tuning of `TASKS`."""
    return Deadline(Protocol(), Budget(2 * CLOSING_S, 2 * CLOSING_S), started=1000.0)


def test_tuning_has_what_is_left_beside_what_follows_it(deadline: Deadline) -> None:
    deadline.tuning_begins(1000.0 + 0.1 * CLOSING_S)
    for now in (1000.0, 5000.0):
        assert deadline.tune_until(TASKS, now) == 1000.0 + CLOSING_S
        assert deadline.overrun_s(TASKS, now) == 0
    deadline.started += 50.0
    assert deadline.tune_until(TASKS, 5000.0) == 1050.0 + CLOSING_S, "what was not on its account"


@pytest.mark.parametrize("late", [0.6, 0.9, 3.0])
def test_a_quarter_of_a_budget_is_for_tuning_however_late_it_begins(
    deadline: Deadline, late: float
) -> None:
    began = 1000.0 + late * 2 * CLOSING_S
    for now in (began, began + 1.0):  # it stays where it began
        deadline.tuning_begins(now)
        assert deadline.tune_until(TASKS, now) == pytest.approx(began + 0.5 * CLOSING_S)
        assert deadline.overrun_s(TASKS, now) == pytest.approx((2 * late - 0.5) * CLOSING_S)


def test_before_tuning_begins_it_is_not_told_to_stop(deadline: Deadline) -> None:
    for now in (1000.0, 1000.0 + CLOSING_S, 1e6):
        until = deadline.tune_until(TASKS, now)
        assert until is not None
        assert until > now


def test_without_a_budget_and_once_it_was_told_tuning_is_not_told_to_stop(
    deadline: Deadline,
) -> None:
    deadline.spent = True
    assert deadline.tune_until(TASKS, 1e6) is None
    without = Deadline(Protocol(), None, 0.0)
    assert (without.tune_until(TASKS, 1e6), without.overrun_s(TASKS, 1e6)) == (None, 0.0)


def test_who_comes_late_has_a_quarter_of_its_share_too() -> None:
    """A later target, and a job that was interrupted before it could tune anything."""
    nothing_left = Budget(share_s=200.0, left_s=0.0)
    deadline = Deadline(Protocol(), nothing_left, started=0.0)
    deadline.tuning_begins(30.0)
    assert deadline.tune_until(TASKS, 30.0) == 80.0
    assert deadline.overrun_s(TASKS, 30.0) == pytest.approx(
        80.0 + closing_s(TASKS, replace(Protocol(), slow_calls=1))
    )


def test_who_has_had_its_quarter_has_what_is_left() -> None:
    nothing_left = Budget(share_s=200.0, left_s=0.0)
    deadline = Deadline(Protocol(), nothing_left, started=0.0, tuned_before=True)
    deadline.tuning_begins(30.0)
    assert deadline.tune_until(TASKS, 31.0) == 30.0
    some = Deadline(Protocol(), Budget(1000.0, 500.0), started=0.0, tuned_before=True)
    some.tuning_begins(30.0)
    assert some.tune_until(TASKS, 31.0) == pytest.approx(500.0 - CLOSING_S)
