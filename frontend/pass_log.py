"""The record of every pass over a model: order, time, and what it did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tunefarm.devices.target import Target

BASELINE = "baseline"
"""What the passes say that lower a model as a plain build has it: what follows is not in one."""


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


def run_passes(module: Any, passes: Sequence[Any], target: Target, log: PassLog, stage: str) -> Any:
    """The module after TVM's `passes`, each of them noted in `log`."""
    import tvm

    with tvm.target.Target(target.tvm):
        for one in passes:
            started = time.perf_counter()
            module = one(module)
            log.note(f"relax.{one.info.name}", started, stage)
    return module
