"""A job's life, read off its events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TERMINAL = ("succeeded", "failed", "cancelled")


def status(kinds: Sequence[str], has_driver: bool, had_driver: bool) -> str:
    """queued, running, succeeded, failed, cancelled or interrupted.

    Args:
        kinds: of its events, in order.
        has_driver: one lives.
        had_driver: there has been one, as far as the home knows, or should have been.
    """
    last = next((k for k in reversed(kinds) if k in (*TERMINAL, "queued", "running")), "queued")
    was_driven = last == "running" or (last == "queued" and had_driver)
    return "interrupted" if was_driven and not has_driver else last


def spent_s(events: Iterable[Mapping[str, Any]], measured: Iterable[float]) -> float:
    """Seconds that the job's earlier lives were driven, waiting for a device or for its turn on one
    not counted.

    Args:
        measured: when each of its measurements was written down, as the events' times are.
    """
    written = sorted(measured)

    def driven(begun: float, last: float, before: float) -> float:
        """Of a life that ended without a word: until the last thing that it wrote."""
        return max([last, *(moment for moment in written if begun < moment < before)]) - begun

    total = 0.0
    started: float | None = None
    last = 0.0
    for event in events:
        moment = float(event["time"])
        if event["kind"] in ("queued", "running"):  # a new life, queued first
            total += driven(started, last, moment) if started is not None else 0.0
            started = moment if event["kind"] == "running" else None
        elif event["kind"] in (*TERMINAL, "interrupted", "waits") and started is not None:
            total, started = total + moment - started, None
        elif event["kind"] == "goes_on":
            started = moment
        last = moment
    return total + (driven(started, last, math.inf) if started is not None else 0.0)
