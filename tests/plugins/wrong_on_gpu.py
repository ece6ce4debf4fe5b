"""A plugin whose one schedule for GPUs compiles, is expected to be the fastest, and is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.plugins import faults  # noqa: F401 - its intrinsics
from tunefarm.devices.target import Target
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.search import replay
from tunefarm.search.space import Knob, Modelled, Point, Proposal
from tunefarm.search.spaces import register_space
from tunefarm.search.spaces.features import STORES

_ONLY = Point(0, ())


class WrongSpace:
    """One sketch without knobs: a thread that multiplies where it should sum products."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload

    @property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return ((),)

    def modelled(self) -> tuple[Modelled, ...]:
        return (Modelled(_ONLY, 1e-12, ()),)

    def describe(self, point: Point) -> None:
        return None

    def realise(self, point: Point, seed: int) -> Proposal | None:
        schedule = replay.new_schedule(self._workload, seed=1)
        (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
        schedule.bind(schedule.add_unit_loop(schedule.get_loops(block)[0]), "threadIdx.x")
        schedule.decompose_reduction(block, schedule.get_loops(block)[-3])
        schedule.tensorize(schedule.get_loops(block)[-3], "tests.wrong")
        replay.mark_complete(schedule, "wrong")
        return Proposal(point, replay.trace_json(schedule), np.zeros(STORES))

    def locate(self, trace: str) -> Point | None:
        return _ONLY if replay.completed_by(trace) == "wrong" else None


def wrong_space(workload: Any, target: Target) -> WrongSpace | None:
    """For kernels for GPUs that are one 16x16x16 matmul."""
    shapes = [spec.shape for spec in argument_specs(workload["main"])]
    fits = target.kind == "cuda" and shapes == [(16, 16)] * 3
    return WrongSpace(workload) if fits else None


register_space("wrong on GPUs", wrong_space)
