"""What candidates taught: the rows that a cost model is trained on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SKETCH = "sketch"
"""The family of points that no hardware model knows; their features are those of their stores."""

VERSION = 5
"""Of what features mean. A lesson of another version is of no use."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """One candidate and its time.

    Attributes:
        network: digest of the model that its kernel came from.
        device: fingerprint of the kind of device that it ran on.
        task: id of its kernel.
        candidate: its own id.
        family: whose features they are.
        features: of as many figures as all lessons of its family.
        expected_s: what the hardware model expected, None for a sketch.
        latency_s: what was measured, None for a failure.
    """

    network: str
    device: str
    task: str
    candidate: str
    family: str
    features: NDArray[np.float64]
    expected_s: float | None
    latency_s: float | None

    @property
    def group(self) -> tuple[str, str]:
        """Only times of one kernel on one kind of device are compared."""
        return self.device, self.task


def by_group(lessons: Iterable[Lesson]) -> dict[tuple[str, str], list[Lesson]]:
    groups: dict[tuple[str, str], list[Lesson]] = defaultdict(list)
    for lesson in lessons:
        groups[lesson.group].append(lesson)
    return dict(groups)


def distinct(lessons: Iterable[Lesson]) -> list[Lesson]:
    """One lesson of each candidate on each kind of device, the newest (several jobs may know it),
    in the order in which they came; of each family those with as many figures as its newest one."""
    found: dict[tuple[str, str], Lesson] = {}
    for one in lessons:
        found.pop((one.device, one.candidate), None)
        found[one.device, one.candidate] = one
    length = {one.family: len(one.features) for one in found.values()}
    return [one for one in found.values() if len(one.features) == length[one.family]]


def excesses(group: Sequence[Lesson]) -> NDArray[np.float64]:
    """log(measured / expected) of one kernel's lessons, less their median: what is left to learn
    once the kernel's own offset is known. Infinite for a failure."""
    logs = np.array(
        [
            math.log(one.latency_s / one.expected_s)
            if one.latency_s and one.expected_s
            else math.inf
            for one in group
        ]
    )
    sound = np.isfinite(logs)
    return logs - float(np.median(logs[sound])) if sound.any() else logs
