"""What the families of our own have in common: from a point to a proposal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tunefarm.search import replay
from tunefarm.search.space import Description, Point, Proposal


def realised(
    workload: Any, apply: Callable[[Any], None], point: Point, note: str, about: Description
) -> Proposal | None:
    """The proposal of a family's point, None where a primitive refuses it.

    Args:
        apply: schedules the kernel in the schedule that it is given.
        note: the point in words, for the trace.
        about: what the cost model learns from.
    """
    schedule = replay.new_schedule(workload, seed=1)
    try:
        apply(schedule)
    except Exception:  # TVM raises many types for a primitive that cannot be applied
        return None
    replay.mark_complete(schedule, note)
    return Proposal(point, replay.trace_json(schedule), np.array(about.figures))
