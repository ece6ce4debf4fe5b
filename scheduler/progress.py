"""What a running job tells those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tunefarm.scheduler.messages import Phase
from tunefarm.scheduler.state import TargetState


@dataclass(frozen=True)
class Snapshot:
    """A job's state at one moment; latencies in seconds per inference, summed over kernels."""

    job: str
    target: str
    phase: str
    kernels: int = 0
    proposed: int = 0
    built: int = 0
    measured: int = 0
    failed: int = 0
    trials: int = 0
    untuned_s: float | None = None
    best_s: float | None = None
    elapsed_s: float = 0.0
    left_s: float | None = None
    processes: tuple[int, int] | None = None
    """Of the present phase: how many are done, of how many."""


class Reporter(Protocol):
    """Shows snapshots and lines to somebody; must not raise."""

    def update(self, snapshot: Snapshot) -> None: ...

    def line(self, text: str) -> None: ...


class Silent:
    def update(self, snapshot: Snapshot) -> None:
        pass

    def line(self, text: str) -> None:
        pass


def tuning_snapshot(
    state: TargetState,
    *,
    job: str,
    target: str,
    built: int,
    elapsed_s: float,
    budget_left_s: float | None,
) -> Snapshot:
    """How one target stands.

    Args:
        built: libraries made so far.
        budget_left_s: seconds that are left for tuning, None without a limit.
    """
    tasks = state.tasks.values()
    complete = bool(tasks) and all(p.latency_s is not None for p in tasks)
    left_s = None
    if state.phase is Phase.TUNE and (measured := state.measured - state.known):
        # A guess: by trials or by the budget, whichever ends first.
        left_s = elapsed_s / measured * (state.limits.trials - state.measured)
        if budget_left_s is not None:
            left_s = min(left_s, max(0.0, budget_left_s))
    return Snapshot(
        job=job,
        target=target,
        phase=state.phase.value,
        kernels=len(tasks),
        proposed=len(state.owner) - len(state.baselines),
        built=built,
        measured=state.measured,
        failed=state.failed,
        trials=state.limits.trials,
        untuned_s=sum(p.weight * (p.baseline_s or 0) for p in tasks) if complete else None,
        best_s=sum(p.weight * (p.latency_s or 0) for p in tasks) if complete else None,
        elapsed_s=elapsed_s,
        left_s=left_s,
        processes=state.processes(),
    )
