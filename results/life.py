"""A job's life, read off its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TERMINAL = ("succeeded", "failed", "cancelled")


def status(kinds: Sequence[str], has_driver: bool, had_driver: bool) -> str:
    """queued, running, succeeded, failed, cancelled or interrupted.

    Args:
        kinds: of its events, in order.
        has_driver: one lives.
        had_driver: there has been one, as far as the home knows.
    """
    last = next((k for k in reversed(kinds) if k in (*TERMINAL, "queued", "running")), "queued")
    was_driven = last == "running" or (last == "queued" and had_driver)
    return "interrupted" if was_driven and not has_driver else last


def spent_s(events: Iterable[Mapping[str, Any]], measured: Iterable[float]) -> float:
    """Seconds that the job's earlier lives were driven, waiting for a device not counted.

    Args:
        measured: when each of its measurements was written down, as the events' times are.
    """
    total = 0.0
    started: float | None = None
    last = 0.0
    for event in events:
        moment = float(event["time"])
        if event["kind"] == "running":
            total += last - started if started is not None else 0.0
            started = moment
        elif event["kind"] in (*TERMINAL, "interrupted") and started is not None:
            total, started = total + moment - started, None
        last = moment
    if started is None:
        return total
    # Killed without a word: the last thing it wrote is when it was last known to live.
    begun = started
    return total + max([last, *(moment for moment in measured if moment > begun)]) - begun
