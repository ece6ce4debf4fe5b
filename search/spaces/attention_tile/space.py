"""The family: the tiles of attention that fit, in the order of what the hardware model expects."""

from __future__ import annotations

from typing import Any

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.search.spaces.attention_tile.attention import attention_of
from tunefarm.search.spaces.attention_tile.engine_writer import EngineWriter
from tunefarm.search.spaces.attention_tile.tile import (
    AttentionTile,
    Plan,
    expected_s,
    figures_of,
    possible,
)
from tunefarm.search.spaces.attention_tile.writer import AttentionWriter, GroupWriter, figures
from tunefarm.search.spaces.tensor_tile.tile import Cores, Feed
from tunefarm.search.spaces.written import Family, Fitting, whole


def _fitting(workload: Any, target: Target) -> Fitting[AttentionTile] | None:
    if target.kind != "cuda":
        return None
    arch, attention = arch_of(target), attention_of(workload)
    if attention is None or attention.dtype not in arch.tensor_cores:
        return None
    of = figures(attention)

    def expected(tile: AttentionTile) -> float:
        return expected_s(Plan(of, tile), arch)

    def written(tile: AttentionTile) -> Any:
        writer = _writer(tile)(attention, Plan(of, tile))
        return whole(workload["main"], writer.kernel(), [])

    return Fitting(
        lambda: sorted(possible(of, arch), key=expected),
        lambda tile: Plan(of, tile).fits(arch),
        expected,
        figures_of(of),
        written,
    )


def _writer(tile: AttentionTile) -> type[AttentionWriter]:
    if tile.feed is Feed.ENGINE:
        return EngineWriter
    return GroupWriter if tile.cores is Cores.GROUPS else AttentionWriter


ATTENTION_TILES = Family("attention-tile", AttentionTile, _fitting)
