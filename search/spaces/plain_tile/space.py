"""The family: the tiles of a float32 product that fit, in the order of what the hardware model
expects."""

from __future__ import annotations

from typing import Any

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.search.spaces.plain_tile.tile import PlainPlan, PlainTile, expected_s, possible
from tunefarm.search.spaces.plain_tile.writer import PlainWriter
from tunefarm.search.spaces.tensor_tile.product import product_of
from tunefarm.search.spaces.tensor_tile.space import KEPT
from tunefarm.search.spaces.tensor_tile.tiling import figures_of
from tunefarm.search.spaces.tensor_tile.writer import matrices_of
from tunefarm.search.spaces.written import Family, Fitting, whole


def _fitting(workload: Any, target: Target) -> Fitting[PlainTile] | None:
    if target.kind != "cuda":
        return None
    arch, product = arch_of(target), product_of(workload)
    if product is None or product.dtype != "float32":
        return None
    matrices = matrices_of(product)

    def expected(tile: PlainTile) -> float:
        return expected_s(PlainPlan(matrices, tile), arch)

    def written(tile: PlainTile) -> Any:
        writer = PlainWriter(product, PlainPlan(matrices, tile))
        return whole(workload["main"], *writer.kernel())

    return Fitting(
        lambda: sorted(possible(matrices, arch), key=expected)[:KEPT],
        lambda tile: PlainPlan(matrices, tile).fits(arch),
        expected,
        figures_of(matrices),
        written,
    )


PLAIN_TILES = Family("plain-tile", PlainTile, _fitting)
