"""Rows of vectors that overlap: as `rowwise`, of rows that no vector divides."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.search import replay
from tunefarm.search.lapping import lapped
from tunefarm.search.spaces.family import FewWays
from tunefarm.search.spaces.form import stages_of
from tunefarm.search.spaces.hardware import hardware
from tunefarm.search.spaces.rowwise import (
    Rows,
    Stride,
    rows_estimate,
    rows_of,
    schedule_rows,
    strides,
)


def lapped_rows_space(workload: Any, target: Target) -> FewWays[Stride] | None:
    """The space of `workload`, None where its stages are no such rows."""
    if target.kind != "llvm":
        return None
    form, machine = rows_of(workload), hardware(target)
    if form is None or not machine.lanes < form.columns or form.columns % machine.lanes == 0:
        return None
    try:
        *stages, last = stages_of(lapped(workload, machine.lanes))
    except ValueError:
        return None
    made = Rows(
        (*stages, replace(last, direct=True)), form.depth, last.axes[-1].extent, lapped=True
    )

    def schedule(whole: Any, one: Stride) -> None:
        replay.mark_algorithm(whole, f"lapped {machine.lanes}")
        schedule_rows(whole, made, one, machine.cores, None)

    return FewWays(
        "lapped-rows",
        workload,
        [one for one in strides(made, machine, False) if one.lanes == machine.lanes],
        lambda one: rows_estimate(made, one, machine),
        schedule,
        (
            log2(made.columns),
            log2(made.count),
            float(len(made.stages)),
            float(sum(stage.reduces for stage in made.stages)),
            *machine.figures(),
        ),
        lambda _: lapped(workload, machine.lanes),  # anew: a schedule may change what it is given
    )
