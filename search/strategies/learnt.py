"""A design space whose hardware model is corrected by what earlier jobs measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tunefarm.costmodel.transfer import Transfer
from tunefarm.search.space import Description, Knob, Modelled, Point, Proposal, Space

REACH = 1024
"""Points, the hardware model's best, that are described and corrected; no correction would bring a
later one to the front."""


class LearntSpace:
    """`space`, with `Modelled.learnt_s` filled in where `transfer` knows the family."""

    def __init__(self, space: Space, transfer: Transfer) -> None:
        self._space = space
        self._transfer = transfer

    @property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return self._space.sketches

    def modelled(self) -> Sequence[Modelled]:
        return self._modelled

    @cached_property
    def _modelled(self) -> tuple[Modelled, ...]:
        points = sorted(self._space.modelled(), key=lambda one: one.seconds)
        near = {one.point: self._space.describe(one.point) for one in points[:REACH]}
        learnt: dict[Point, float] = {}
        usual: list[float] = []
        for family in {about.family for about in near.values() if about is not None}:
            described = {p: a.figures for p, a in near.items() if a and a.family == family}
            found = self._transfer.correction(family, np.array(list(described.values())))
            if found is not None:
                learnt.update(zip(described, map(float, found), strict=True))
                usual.extend(map(float, found))
        if not learnt:
            return tuple(points)
        # Whoever was not described keeps its place among those that were.
        middle = float(np.median(usual))
        return tuple(
            replace(one, learnt_s=one.seconds * math.exp(learnt.get(one.point, middle)))
            for one in points
        )

    def describe(self, point: Point) -> Description | None:
        return self._space.describe(point)

    def realise(self, point: Point, seed: int) -> Proposal | None:
        return self._space.realise(point, seed)

    def locate(self, trace: str) -> Point | None:
        return self._space.locate(trace)
