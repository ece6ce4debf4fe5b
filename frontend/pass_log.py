"""The record of every pass over a model: order, time, and what it did."""

from __future__ import annotations

import time
from typing import Any


class PassLog:
    """Notes in the order in which they were made."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, float, str]] = []

    def note(self, name: str, started: float, detail: str = "") -> None:
        """A pass that ends now; `started` is its `time.perf_counter()` at the start."""
        self._notes.append((name, round(time.perf_counter() - started, 4), detail))

    def extend(self, other: PassLog) -> None:
        self._notes.extend(other._notes)

    def entries(self) -> list[dict[str, Any]]:
        return [
            {"order": order, "pass": name, "seconds": seconds, "detail": detail}
            for order, (name, seconds, detail) in enumerate(self._notes)
        ]
