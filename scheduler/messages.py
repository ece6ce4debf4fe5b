"""What the state machine of a target is told, and what it says: events in, instructions out."""

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
    PACKAGE = "package"
    DONE = "done"


# ---------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class Task:
    """A kernel to tune; `baseline` is the id of its untuned candidate, `floor_s` the seconds that
    the hardware needs for it at the very least (0 where that is not known)."""

    id: str
    weight: int
    baseline: str
    floor_s: float = 0.0


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
class ProcessDone:
    """One fresh process of the present phase (race, place, final or compare) has reported."""

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
class Lost:
    """An assignment whose worker died: it is to be given out again."""

    instruction: Instruction


Event = Imported | Proposed | Built | Screened | ProcessDone | StepDone | BudgetSpent | Lost

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


@dataclass(frozen=True)
class RunProcess:
    phase: Phase
    process: int


@dataclass(frozen=True)
class Step:
    phase: Phase


Instruction = Propose | Build | Screen | RunProcess | Step
