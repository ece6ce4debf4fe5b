"""What a running job tells those who watch it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    note: str = ""


class Reporter(Protocol):
    """Shows snapshots and lines to somebody; must not raise."""

    def update(self, snapshot: Snapshot) -> None: ...

    def line(self, text: str) -> None: ...


class Silent:
    def update(self, snapshot: Snapshot) -> None:
        pass

    def line(self, text: str) -> None:
        pass
