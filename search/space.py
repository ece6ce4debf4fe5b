"""What a design space is to a strategy: knobs, points, and proposals.

A space is a small set of sketches; each sketch has knobs in a fixed order; a point picks a sketch
and a value for each knob. Strategies work on points alone and need no compiler. The space turns a
point into a proposal: the compiler may repair a value (a tile that does not divide), so **the
point that counts is the one read back from the applied schedule**.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Value = tuple[int, ...] | int | None
"""A tile's factors (outermost first), a choice's or loop's index, or None: let the space draw."""


class KnobKind(enum.Enum):
    TILE = "tile"
    CHOICE = "choice"
    LOCATION = "location"


@dataclass(frozen=True)
class Knob:
    """One decision of a sketch.

    Attributes:
        kind: a split of a loop into factors, a choice from a list, or a loop to compute at.
        size: factors of a tile; options of a choice; 0 for a location.
        extent: of the loop a tile splits, else 0.
        innermost_limit: largest innermost factor of a tile, else 0.
        options: the numbers that a choice is made from; empty where it is made from other things.
    """

    kind: KnobKind
    size: int
    extent: int = 0
    innermost_limit: int = 0
    options: tuple[int, ...] = ()


@dataclass(frozen=True)
class Point:
    sketch: int
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Proposal:
    """A point that the space accepted.

    Attributes:
        point: as applied.
        trace: canonical JSON; see `Candidate.trace`.
        features: what the cost model sees, one vector of float64: of a modelled point the figures
            of its description, of any other `spaces.features.features_of_stores`.
    """

    point: Point
    trace: str
    features: NDArray[np.float64]


@dataclass(frozen=True)
class Modelled:
    """What a model of the hardware expects of a point.

    Attributes:
        seconds: of a call; to order points by.
        coordinates: where the point lies among the others of its sketch: near points, with one
            unit between neighbours, are expected to differ from their model alike.
        learnt_s: the same as `seconds`, corrected by what earlier jobs measured; None where nobody
            has learnt anything.
    """

    point: Point
    seconds: float
    coordinates: tuple[float, ...]
    learnt_s: float | None = None


@dataclass(frozen=True)
class Description:
    """A modelled point in figures that mean the same for every kernel of its family.

    Attributes:
        family: whose figures they are.
        figures: of the kernel, the schedule and the hardware; what a cost model learns from.
    """

    family: str
    figures: tuple[float, ...]


class Space(Protocol):
    """A design space of one kernel on one target.

    Implement this for a family of schedules; register nothing else. `realise` must be
    deterministic in its arguments.
    """

    @property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        """The knobs of each sketch; a sketch without knobs is a single point."""
        ...

    def modelled(self) -> Sequence[Modelled]:
        """Every point that a model of the hardware has an opinion of, each once, before anything
        is built; empty for a space without such a model."""
        ...

    def describe(self, point: Point) -> Description | None:
        """A modelled point in figures; None for any other."""
        ...

    def realise(self, point: Point, seed: int) -> Proposal | None:
        """Apply `point`, drawing what it leaves open from `seed`; None where it does not fit."""
        ...

    def locate(self, trace: str) -> Point | None:
        """The point of a trace that this space made, None for any other."""
        ...
