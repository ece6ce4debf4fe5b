"""Design spaces without a compiler: the trace is the point, written down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.search.space import Description, Knob, KnobKind, Modelled, Point, Proposal

SKETCHES = (
    (Knob(KnobKind.TILE, 4, 64, 16), Knob(KnobKind.TILE, 2, 55), Knob(KnobKind.CHOICE, 4)),
    (Knob(KnobKind.TILE, 3, 128, 64), Knob(KnobKind.CHOICE, 3)),
)


class PaperSpace:
    """Any sketches; nothing is known of their points."""

    def __init__(self, sketches: tuple[tuple[Knob, ...], ...] = SKETCHES) -> None:
        self.sketches = sketches

    def modelled(self) -> Sequence[Modelled]:
        return ()

    def describe(self, point: Point) -> Description | None:
        return None

    def realise(self, point: Point, seed: int) -> Proposal | None:
        flat = [
            point.sketch,
            *(x for v in point.values for x in (v if isinstance(v, tuple) else (v,))),
        ]
        features = np.array([*flat, *[0] * (16 - len(flat))], dtype=float)
        return Proposal(point, repr((point.sketch, point.values)), features)

    def locate(self, trace: str) -> Point | None:
        sketch, values = eval(trace)
        return Point(sketch, values)


class ModelledSpace(PaperSpace):
    """One sketch of `size` x `size` choices that a model of the hardware knows, roughly, and one
    that it does not. `latency` is the truth: the model is off by a smooth factor."""

    def __init__(self, size: int = 16) -> None:
        choice = Knob(KnobKind.CHOICE, size)
        super().__init__(((choice, choice), (Knob(KnobKind.TILE, 3, 64), Knob(KnobKind.CHOICE, 4))))
        self.size = size

    def modelled(self) -> Sequence[Modelled]:
        places = [(x, y) for x in range(self.size) for y in range(self.size)]
        return [
            Modelled(Point(0, (x, y)), self._guess(x, y), (float(x), float(y))) for x, y in places
        ]

    def describe(self, point: Point) -> Description | None:
        if point.sketch:
            return None
        x, y = (int(v) for v in point.values if isinstance(v, int))
        return Description("paper", (math.log(self._guess(x, y)), float(x), float(y)))

    def _guess(self, x: int, y: int) -> float:
        return 1e-3 * (1 + 0.05 * abs(x - 3) + 0.05 * abs(y - 9))

    def latency(self, point: Point) -> float:
        if point.sketch:
            return 3e-3
        x, y = (int(v) for v in point.values if isinstance(v, int))
        return self._guess(x, y) * math.exp(0.4 * math.sin(0.5 * x) + 0.3 * math.cos(0.4 * y))
