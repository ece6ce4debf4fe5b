"""Which kernel the next candidates go to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


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
