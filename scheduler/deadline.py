"""A budget as it runs out: what follows tuning takes its time, and tuning stops for it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from tunefarm.measure.protocol import Protocol
from tunefarm.scheduler.budget import Progress

WHOLE = 0.6
"""The untuned model's time as a part of its kernels' sum (they are laid out otherwise): 0.43 was
seen for ResNet-50, 1.0 for SqueezeNet, where it matters less."""


def closing_s(tasks: Collection[Progress], protocol: Protocol) -> float:
    """Seconds that races, finals, the whole model and packaging will take: what a budget must keep
    back for them. Slow untuned kernels are most of it.

    The constants are of two cores: loading and sampling a kernel, starting a process, compiling a
    kernel once more, parity and packaging, writing MLflow.
    """
    untuned = [p.baseline_s for p in tasks if p.baseline_s is not None]
    model_s = WHOLE * sum(p.weight * (p.baseline_s or 0.0) for p in tasks)
    tuned_s = sum(p.weight * p.best[-1][1] for p in tasks if p.best)
    kernels, rounds_s, winners_s = len(untuned), 0.0, 0.0
    for task in (p for p in tasks if p.baseline_s is not None):
        rounds_s += _rounds_s(task, protocol.race_top, protocol.race_rounds, kernels, protocol)
        winners_s += _rounds_s(task, 2, protocol.final_rounds, kernels, protocol)
    races = protocol.race_processes * (0.6 + 0.06 * kernels + rounds_s)
    races += 3.0 + 0.17 * kernels + protocol.place_processes * _placing_s(tasks, protocol)
    finals = protocol.final_processes * (0.6 + 0.06 * kernels + winners_s)
    finals += protocol.slow_calls * sum(
        p.baseline_s
        * _callers(p.baseline_s, p.best[-1][1] if p.best else 0.0, protocol.screen_s, protocol)
        for p in tasks
        if p.baseline_s is not None
    )
    rounds = min(protocol.model_rounds, max(2.0, protocol.model_s / 2 / max(1e-4, model_s)))
    runs = 1 + rounds
    if model_s > max(protocol.long_model_s, protocol.truncate_factor * tuned_s):
        runs = 1 if model_s > protocol.model_s else protocol.slow_calls
    callers = _callers(model_s, tuned_s, protocol.slow_model_s, protocol)
    model = protocol.model_processes * 0.8 + callers * model_s * runs
    model += protocol.model_processes * min(protocol.tail_s, protocol.tail_calls * tuned_s)
    return races + finals + model + 2.0 + 0.17 * kernels + 20.0


def _rounds_s(task: Progress, entries: int, rounds: int, kernels: int, protocol: Protocol) -> float:
    """Of so many candidates of a kernel in one process, as far as it is tuned; two rounds at the
    least, and no more than there is time for where it is one of so many kernels."""
    sample_s = max(protocol.sample_s, task.best[-1][1] if task.best else 0.0)
    wished = min(protocol.kernel_s(kernels), entries * rounds * sample_s)
    return max(2 * entries * sample_s, wished)


def _callers(untuned_s: float, tuned_s: float, slow_s: float, protocol: Protocol) -> int:
    """Processes of a final that will call what is untuned: not all, where it is slow and, as far as
    is known, far behind (see `judge.may_be_spared`)."""
    processes = protocol.final_processes
    far = untuned_s > max(slow_s, protocol.truncate_factor * tuned_s)
    return min(protocol.slow_processes, processes) if far else processes


def _placing_s(tasks: Collection[Progress], protocol: Protocol) -> float:
    """Seconds of one process with two variants of the tuned model, as far as it is tuned: two first
    runs of each, and two runs of each in every round."""
    tuned_s = sum(p.weight * p.best[-1][1] for p in tasks if p.best)
    rounds = min(protocol.model_rounds, int(protocol.place_s / max(1e-4, tuned_s)))
    return 1.0 + 4 * tuned_s * (1 + (rounds if rounds >= protocol.place_rounds else 0))


LEAST = 0.25
"""Of a budget, what tuning gets at the least, from when it begins."""
WORTH = 0.05
"""Of a budget, what calling more than once in a process what is far slower may take. Where it is
called once, that is its first call, which costs more than others; by how much, matters little of
such times, and least where they take a budget's twentieth."""


def affordable(tasks: Collection[Progress], protocol: Protocol, budget_s: float | None) -> Protocol:
    """`protocol`, with as many calls of what is slow as take no more than they are worth."""
    if budget_s is None:
        return protocol
    once = dataclasses.replace(protocol, slow_calls=1)
    most_s = closing_s(tasks, once) + WORTH * budget_s
    fitting = (
        fitted
        for calls in range(protocol.slow_calls, 1, -1)
        if closing_s(tasks, fitted := dataclasses.replace(protocol, slow_calls=calls)) <= most_s
    )
    return next(fitting, once)


@dataclass(frozen=True)
class Budget:
    """Of one target's run.

    Attributes:
        share_s: its part of the job's whole budget.
        left_s: its part of what is left of that: earlier targets, and the job's earlier lives, have
            taken theirs.
    """

    share_s: float
    left_s: float


@dataclass
class Deadline:
    """Of one target's run. Times are of one clock, in seconds.

    Attributes:
        budget: None for no limit.
        started: when the run did, later by what has passed since and is not on its account.
        tuned_before: an earlier life of the job has had its `LEAST`.
        begun_s: how long after the start tuning began, None before it has.
        spent: tuning was told to stop.
    """

    protocol: Protocol
    budget: Budget | None
    started: float
    tuned_before: bool = False
    begun_s: float | None = None
    spent: bool = False

    def tuning_begins(self, now: float) -> None:
        """Or has begun before."""
        self.begun_s = self._begun_s(now)

    def tune_until(self, tasks: Collection[Progress], now: float) -> float | None:
        """When tuning must stop for the budget to be kept; None for never, or where it was told to.

        However long import and untuned kernels took, `LEAST` of the target's share is for tuning: a
        job that tunes nothing is of no use to anyone.
        """
        if self.budget is None or self.spent:
            return None
        kept_s = self.budget.left_s - self._closing_s(tasks)
        return self.started + max(kept_s, self._begun_s(now) + self._least_s())

    def overrun_s(self, tasks: Collection[Progress], now: float) -> float:
        """Seconds by which the budget cannot be kept: the finals take longer than what comes before
        them and the least of tuning leave them, however few calls they make."""
        if self.budget is None:
            return 0.0
        needed_s = self._begun_s(now) + self._least_s() + self._closing_s(tasks)
        return max(0.0, needed_s - self.budget.left_s)

    def affordable(self, tasks: Collection[Progress]) -> Protocol:
        """See the function."""
        return affordable(tasks, self.protocol, None if self.budget is None else self.budget.left_s)

    def _closing_s(self, tasks: Collection[Progress]) -> float:
        return closing_s(tasks, self.affordable(tasks))

    def _least_s(self) -> float:
        if self.budget is None or self.tuned_before:
            return 0.0
        return LEAST * self.budget.share_s

    def _begun_s(self, now: float) -> float:
        return now - self.started if self.begun_s is None else self.begun_s
