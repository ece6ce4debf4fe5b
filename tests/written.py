"""What holds of every family whose points stand for a kernel's whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.space import Point


def traces_stand_for_kernels(
    space: Any, module: Any, target: Target, numbers: Sequence[int]
) -> None:
    """Each of these points has a trace that leads back to it, features as many as it is described
    by, and one kernel, however often it is written."""
    for number in numbers:
        made = space.realise(Point(0, (number,)), 1)
        assert made is not None
        assert space.locate(made.trace) == made.point == Point(0, (number,))
        assert len(made.features) == len(space.describe(made.point).figures)
        kernels = (replay.scheduled_function(module, target, made.trace) for _ in range(2))
        assert len({tvm_ffi.structural_hash(one) for one in kernels}) == 1
    assert space.locate("[[],[]]") is None
