"""What the state machine of a target is told, and what it says: events in, instructions out.

An instruction is given out under a lease. Whoever carries it out answers under that lease; an
answer under one that is no longer held (its worker was given up, another driver has come) counts
for nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(enum.StrEnum):
    IMPORT = "import"
    BASELINE = "baseline"
    TUNE = "tune"
    RACE = "race"
    VARIANTS = "variants"
    PLACE = "place"
    FINAL = "final"
    ASSEMBLE = "assemble"
    COMPARE = "compare"
    CHECK = "check"
    PACKAGE = "package"
    DONE = "done"


# ---------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Task:
    """A kernel to tune; `baseline` is the id of its untuned candidate, `floor_s` the seconds that
    the hardware needs for it at the very least (0 where that is not known), `in_model` how many
    times longer a call takes inside a model than alone, by earlier jobs (1 where none knows)."""

    id: str
    weight: int
    baseline: str
    floor_s: float = 0.0
    in_model: float = 1.0


@dataclass(frozen=True)
class Imported:
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Proposed:
    """The search's answer; fewer candidates than asked for when the space runs out."""

    task: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    candidate: str
    ok: bool


@dataclass(frozen=True)
class Screened:
    """Latency in seconds, None for a failure."""

    candidate: str
    latency_s: float | None


@dataclass(frozen=True)
class Known:
    """Another job has measured a candidate that this one has not thought of: seconds."""

    task: str
    candidate: str
    latency_s: float


@dataclass(frozen=True)
class ProcessDone:
    """One fresh process of the present phase (race, place, final, compare, check) has reported."""

    phase: Phase
    process: int


@dataclass(frozen=True)
class StepDone:
    """The present phase's single step (variants, assemble or package) is done."""

    phase: Phase


@dataclass(frozen=True)
class BudgetSpent:
    """The time for tuning is over: finish what is being built, then race."""


@dataclass(frozen=True)
class Joined:
    """A unit of the target's device may be used from now on."""

    unit: str


@dataclass(frozen=True)
class Left:
    """A unit is gone, or was taken away; what it had in hand is to be given out again. One that
    `gives_way` to another job goes in peace: that says nothing against what it had in hand."""

    unit: str
    gives_way: bool = False


@dataclass(frozen=True)
class Builders:
    """So many builds may now go on at a time."""

    count: int


Fact = Imported | Proposed | Built | Screened | ProcessDone | StepDone
"""What can be on record."""


@dataclass(frozen=True)
class Lease:
    """`epoch` is the driver's, `number` counts what it has given out."""

    epoch: int
    number: int


@dataclass(frozen=True)
class Done:
    """What was asked for under `lease` has come to this."""

    lease: Lease
    fact: Fact


@dataclass(frozen=True)
class Lost:
    """Whoever held `lease` died, or was given up: the work is to be given out again."""

    lease: Lease


Event = Fact | Known | BudgetSpent | Joined | Left | Builders | Done | Lost

# ---------------------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Propose:
    task: str
    count: int
    in_flight: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    candidate: str


@dataclass(frozen=True)
class Screen:
    candidate: str
    incumbent_s: float | None
    unit: str


@dataclass(frozen=True)
class RunProcess:
    phase: Phase
    process: int
    unit: str


@dataclass(frozen=True)
class Step:
    phase: Phase


Instruction = Propose | Build | Screen | RunProcess | Step


@dataclass(frozen=True)
class Assignment:
    lease: Lease
    instruction: Instruction
