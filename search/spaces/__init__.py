"""Families of schedules, and the design space of a kernel: all of those that fit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tunefarm.costmodel.transfer import Transfer
from tunefarm.devices.target import Target
from tunefarm.search.space import Description, Knob, Modelled, Point, Proposal, Space
from tunefarm.search.strategies.learnt import LearntSpace

SpaceFactory = Callable[[Any, Target], Space | None]
"""(workload, target) -> the family's space of it, or None where the family does not fit"""

_FACTORIES: dict[str, SpaceFactory] = {}


def register_space(name: str, factory: SpaceFactory) -> None:
    """Add a family; it becomes part of every kernel's design space that it fits."""
    _FACTORIES[name] = factory


def design_space(workload: Any, target: Target, transfer: Transfer | None = None) -> Space:
    """Every family that fits, and TVM's own sketches, so that no kernel is without a space; its
    hardware models corrected by `transfer`. Most families are of processors; on a GPU there are
    tiles for its tensor cores, rows on its warps, and sketches for both kinds of cores, but for
    attention, which has tiles alone."""
    from tunefarm.search.kernels.halo import within
    from tunefarm.search.spaces.attention_tile.space import ATTENTION_TILES
    from tunefarm.search.spaces.elementwise import elementwise_space
    from tunefarm.search.spaces.fold import fold_space
    from tunefarm.search.spaces.generic import GenericSpace, tensor_core_space
    from tunefarm.search.spaces.lapped_rows import lapped_rows_space
    from tunefarm.search.spaces.matrix_attention.space import MATRIX_ATTENTIONS
    from tunefarm.search.spaces.matrix_tile import (
        matrix_tile_space,
        overlapped_matrix_tile_space,
    )
    from tunefarm.search.spaces.plain_tile.space import PLAIN_TILES
    from tunefarm.search.spaces.register_tile import (
        filled_tile_space,
        overlapped_tile_space,
        register_tile_space,
    )
    from tunefarm.search.spaces.rowwise import rowwise_space
    from tunefarm.search.spaces.score_rows import score_rows_space
    from tunefarm.search.spaces.spread import spread_space
    from tunefarm.search.spaces.table import table_space
    from tunefarm.search.spaces.tensor_tile.space import TENSOR_TILES
    from tunefarm.search.spaces.warp_rows.space import WARP_ROWS
    from tunefarm.search.spaces.windows import windows_space
    from tunefarm.search.spaces.winograd import winograd_space

    own: tuple[SpaceFactory, ...] = (
        *(register_tile_space, filled_tile_space, overlapped_tile_space),
        *(matrix_tile_space, overlapped_matrix_tile_space, spread_space, winograd_space),
        *(rowwise_space, lapped_rows_space, windows_space, fold_space),
        *(elementwise_space, table_space),
    )
    if target.kind == "cuda":
        own = (TENSOR_TILES.space, PLAIN_TILES.space, tensor_core_space, WARP_ROWS.space)
    workload, _ = within(workload)  # as `replay.scheduled_function` has it
    spaces: list[Space]
    attention = (
        ATTENTION_TILES.space(workload, target)
        or MATRIX_ATTENTIONS.space(workload, target)
        or score_rows_space(workload, target)
    )
    if attention is not None:  # two products, and TVM's sketches are for one
        spaces, own = [attention], ()
    else:
        spaces = [GenericSpace(workload, target)]
    for factory in (*own, *_FACTORIES.values()):
        space = factory(workload, target)
        if space is not None:
            spaces.append(space)
    whole = spaces[0] if len(spaces) == 1 else UnionSpace(spaces)
    return LearntSpace(whole, transfer) if transfer is not None else whole


class UnionSpace:
    """Several spaces of one kernel as one: their sketches, one after another."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces = spaces

    @cached_property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return tuple(sketch for space in self._spaces for sketch in space.sketches)

    def modelled(self) -> Sequence[Modelled]:
        return self._modelled

    @cached_property
    def _modelled(self) -> tuple[Modelled, ...]:
        found, first = [], 0
        for space in self._spaces:
            for one in space.modelled():
                point = Point(one.point.sketch + first, one.point.values)
                found.append(replace(one, point=point))
            first += len(space.sketches)
        return tuple(found)

    def describe(self, point: Point) -> Description | None:
        space, first = self._owner(point.sketch)
        return space.describe(Point(point.sketch - first, point.values))

    def realise(self, point: Point, seed: int) -> Proposal | None:
        space, first = self._owner(point.sketch)
        proposal = space.realise(Point(point.sketch - first, point.values), seed)
        if proposal is None:
            return None
        applied = Point(proposal.point.sketch + first, proposal.point.values)
        return Proposal(applied, proposal.trace, proposal.features)

    def _owner(self, sketch: int) -> tuple[Space, int]:
        """The space that has this sketch, and the number of its first one."""
        first = 0
        for space in self._spaces:
            if sketch < first + len(space.sketches):
                return space, first
            first += len(space.sketches)
        raise IndexError(f"no sketch {sketch}")

    def locate(self, trace: str) -> Point | None:
        first = 0
        for space in self._spaces:
            point = space.locate(trace)
            if point is not None:
                return Point(point.sketch + first, point.values)
            first += len(space.sketches)
        return None
