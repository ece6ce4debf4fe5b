"""Rows of vectors that overlap: as `rowwise`, of rows that no vector divides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search.kernels.lapping import lapped
from tunefarm.search.spaces.family import FewWays
from tunefarm.search.spaces.form import stages_of
from tunefarm.search.spaces.hardware import hardware
from tunefarm.search.spaces.rowwise import Rows, Stride, rows_of, space_of_rows, widest_strides


def lapped_rows_space(workload: Any, target: Target) -> FewWays[Stride] | None:
    """The space of `workload`, None where its stages are no such rows."""
    if target.kind != "llvm":
        return None
    form, machine = rows_of(workload), hardware(target)
    if form is None or not machine.lanes < form.columns or form.columns % machine.lanes == 0:
        return None
    try:
        rewritten = lapped(workload, machine.lanes)
    except ValueError:
        return None
    *stages, last = stages_of(rewritten)
    stages.append(replace(last, direct=True))
    made = Rows(tuple(stages), form.depth, last.axes[-1].extent, lapped=True)
    ways = widest_strides(made, machine)
    space = space_of_rows("lapped-rows", workload, made, machine, ways, None)
    return space and replace(
        space, rewritten=lambda _: rewritten, algorithm=lambda _: f"lapped {machine.lanes}"
    )
