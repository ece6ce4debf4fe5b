"""What the families of our own have in common: from a point to a proposal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np

from tunefarm.search import replay
from tunefarm.search.space import Description, Knob, KnobKind, Modelled, Point, Proposal

W = TypeVar("W", bound="Way")


def realised(
    workload: Any,
    apply: Callable[[Any], None],
    point: Point,
    note: str,
    about: Description,
    algorithm: str = "",
) -> Proposal | None:
    """The proposal of a family's point, None where a primitive refuses it.

    Args:
        apply: schedules the kernel in the schedule that it is given.
        note: the point in words, for the trace.
        about: what the cost model learns from.
        algorithm: how the kernel was rewritten (`replay.rewritten`), "" where it was not.
    """
    schedule = replay.new_schedule(workload, seed=1)
    try:
        apply(schedule)
    except Exception:  # TVM raises many types for a primitive that cannot be applied
        return None
    # Both last: once its root is annotated, a schedule may write into the module it was given.
    if algorithm:
        replay.mark_algorithm(schedule, algorithm)
    replay.mark_complete(schedule, note)
    return Proposal(point, replay.trace_json(schedule), np.array(about.figures))


def in_words(family: str, one: Any) -> str:
    """A point in words, for the trace: whoever reads the trace sees what it is. What is as it is by
    default goes without saying, so that traces from before there was a choice mean the same."""
    said = [field for field in fields(one) if getattr(one, field.name) != field.default]
    return " ".join([family, *(f"{field.name}={getattr(one, field.name)}" for field in said)])


def from_words(kind: type[W], family: str, words: str) -> W:
    """The contrary, of fields that are whole numbers or texts of an enumeration.

    Raises:
        ValueError: it is no such point.
    """
    name, *parts = words.split(" ")
    said = dict(part.partition("=")[::2] for part in parts)
    types = get_type_hints(kind)
    try:
        one = kind(**{key: types[key](value) for key, value in said.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no point of {family}: {words!r}") from error
    if name != family or in_words(family, one) != words:
        raise ValueError(f"no point of {family}: {words!r}")
    return one


@dataclass(frozen=True)
class Way(ABC):
    """One of few ways to run a kernel; its fields are plain values."""

    @abstractmethod
    def coordinates(self) -> tuple[float, ...]:
        """See `Modelled.coordinates`."""


@dataclass(frozen=True)
class FewWays(Generic[W]):
    """The space of a kernel for which a family has so few points that one knob lists them all.

    Attributes:
        family: its name.
        ways: the points.
        estimate: the seconds that a model of the hardware expects of one.
        schedule: applies one to the kernel, rewritten if it is to be, in the schedule that it is
            given.
        figures: of the kernel and the hardware; what a cost model learns from, besides the way.
        rewritten: the kernel as a way computes it, where that is by another algorithm.
        algorithm: the name of that.
    """

    family: str
    workload: Any
    ways: Sequence[W]
    estimate: Callable[[W], float]
    schedule: Callable[[Any, W], None]
    figures: tuple[float, ...]
    rewritten: Callable[[W], Any] | None = None
    algorithm: Callable[[W], str] = lambda _: ""

    @property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return ((Knob(KnobKind.CHOICE, len(self.ways)),),)

    def modelled(self) -> Sequence[Modelled]:
        return [
            Modelled(Point(0, (i,)), self.estimate(one), one.coordinates())
            for i, one in enumerate(self.ways)
        ]

    def describe(self, point: Point) -> Description:
        (value,) = point.values
        assert isinstance(value, int)
        return self._described(self.ways[value])

    def _described(self, one: W) -> Description:
        seconds = float(np.log2(self.estimate(one)))
        return Description(self.family, (seconds, *self.figures, *one.coordinates()))

    def realise(self, point: Point, seed: int) -> Proposal | None:
        """See `Space.realise`; None for a value is drawn from `seed`."""
        (value,) = point.values
        chosen = value if isinstance(value, int) else seed % len(self.ways)
        one = self.ways[chosen]
        return realised(
            self.rewritten(one) if self.rewritten is not None else self.workload,
            lambda schedule: self.schedule(schedule, one),
            Point(0, (chosen,)),
            in_words(self.family, one),
            self._described(one),
            self.algorithm(one),
        )

    def locate(self, trace: str) -> Point | None:
        said = (replay.completed_by(trace) or "", replay.algorithm_of(trace) or "")
        return self._by_words.get(said)

    @cached_property
    def _by_words(self) -> dict[tuple[str, str], Point]:
        return {
            (in_words(self.family, one), self.algorithm(one)): Point(0, (i,))
            for i, one in enumerate(self.ways)
        }
