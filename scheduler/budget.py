"""Which kernel the next candidates go to. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from tunefarm.measure.protocol import Protocol


@dataclass
class Progress:
    """One kernel's search so far.

    Attributes:
        weight: calls per inference.
        baseline_s: latency of the untuned schedule.
        best: (results so far, best latency in seconds) at each improvement.
        results: candidates measured or failed.
        pending: candidates proposed, built or being measured.
        floor_s: the least time that the hardware allows, 0 where it is not known.
        in_model: how many times longer a call takes inside a model than alone.
    """

    task: str
    weight: int
    baseline_s: float | None = None
    best: list[tuple[int, float]] = field(default_factory=list)
    results: int = 0
    pending: int = 0
    closed: bool = False
    floor_s: float = 0.0
    in_model: float = 1.0

    @property
    def latency_s(self) -> float | None:
        """The best schedule known, the untuned one included."""
        known = [s for s in (self.baseline_s, self.best[-1][1] if self.best else None) if s]
        return min(known) if known else None

    def record(self, latency_s: float | None) -> None:
        self.results += 1
        if latency_s is not None and (not self.best or latency_s < self.best[-1][1]):
            self.best.append((self.results, latency_s))


def plateaued(progress: Progress, *, patience: int, gain: float = 0.01) -> bool:
    """True when the last `patience` results (or half of all) brought less than `gain`."""
    window = max(patience, progress.results // 2)
    if progress.results < window:
        return False
    if not progress.best:
        return True
    before = [s for at, s in progress.best if at <= progress.results - window]
    return bool(before) and progress.best[-1][1] > (1 - gain) * before[-1]


def levelled_off(
    sums: Sequence[tuple[int, float]], measured: int, first: int, *, fewest: int, gain: float
) -> bool:
    """True when the latest third of a job's candidates, and no fewer than `fewest` of them, brought
    less than `gain` of its kernels' sum.

    Args:
        sums: (candidates measured, seconds of an inference) at each improvement.
        measured: candidates so far.
        first: the first ones, of which every kernel gets one, say nothing of what follows.
    """
    since = measured - max(fewest, measured // 3)
    before = [s for at, s in sums if at <= since]
    return since >= first and bool(before) and sums[-1][1] > (1 - gain) * before[-1]


USUAL_HEADROOM = 0.25
"""Of a tuned kernel's time: 0.13 to 0.44 of four networks' kernels, twenty candidates each."""


def at_the_roof(progress: Progress, *, near: float = 0.05) -> bool:
    """True when the best schedule takes hardly longer than the hardware allows.

    A kernel that is faster than its roof has shown that the roof was measured too low: it says
    nothing then.
    """
    latency, floor = progress.latency_s, progress.floor_s
    return latency is not None and floor * (1 - near) <= latency <= floor * (1 + near)


def headroom(progress: Progress) -> float:
    """Seconds of a call that any schedule could still save; where no floor is known, or it is below
    its floor (minimal filtering does less than is counted), as much as others usually could."""
    latency, floor = progress.latency_s or 0.0, progress.floor_s
    return latency - floor if 0 < floor < latency else USUAL_HEADROOM * latency


def expected_gain(progress: Progress, more: int = 0) -> float:
    """Seconds of a whole inference, in the model, that one more candidate of this kernel may save,
    after `more` beside those on their way: headroom over candidates tried.

    The optimistic half of Ansor's task scheduler (Zheng et al., OSDI 2020, section 6.2). Its other
    half, what the latest candidates brought, promises most where the second one happened to be
    better than the first. What is on its way counts twice: it was not chosen knowing its results.
    """
    awaited = progress.pending + more
    tried = progress.results + awaited
    hope = headroom(progress) / max(1, tried)
    known = (progress.results + 1) / (tried + 1)
    return progress.weight * progress.in_model * hope * known


def allocate(tasks: Iterable[Progress], room: int, *, chunk: int) -> list[tuple[str, int]]:
    """Up to `room` candidates, as (task, count).

    Every open kernel first gets one, heaviest latency first: that is most of what tuning gains.
    After that `chunk` at a time goes to the kernel with the largest expected gain.
    """
    open_tasks = [p for p in tasks if not p.closed and p.baseline_s is not None]
    extra = {p.task: 0 for p in open_tasks}
    cold = [p for p in open_tasks if not p.results + p.pending]
    cold.sort(key=lambda p: -p.weight * (p.baseline_s or 0.0))
    for progress in cold[:room]:
        extra[progress.task] = 1
    room -= len(cold[:room])
    while room > 0 and open_tasks:
        chosen = max(open_tasks, key=lambda p: expected_gain(p, extra[p.task])).task
        extra[chosen] += min(chunk, room)
        room -= min(chunk, room)
    return [(task, count) for task, count in extra.items() if count]


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


def tuning_s(
    tasks: Collection[Progress], protocol: Protocol, budget_s: float, begun_s: float
) -> float:
    """Seconds of a budget until tuning must stop for the budget to be kept.

    Args:
        begun_s: of them, what had passed when tuning began. However long import and untuned kernels
            took, a job that tunes nothing is of no use to anyone.
    """
    closing = closing_s(tasks, affordable(tasks, protocol, budget_s))
    return max(budget_s - closing, begun_s + LEAST * budget_s)


def overrun_s(
    tasks: Collection[Progress], protocol: Protocol, budget_s: float, begun_s: float
) -> float:
    """Seconds by which a budget cannot be kept: the finals take longer than what comes before them
    and the least of tuning leave them, however few calls they make."""
    closing = closing_s(tasks, affordable(tasks, protocol, budget_s))
    return max(0.0, begun_s + LEAST * budget_s + closing - budget_s)
