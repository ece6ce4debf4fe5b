"""The family: the tiles of a product that fit, in the order of what the hardware model expects."""

from __future__ import annotations

from typing import Any

from tunefarm.devices.gpu import arch_of, multiplies_tf32
from tunefarm.devices.target import Target
from tunefarm.search.spaces.tensor_tile.engine_writer import EngineWriter
from tunefarm.search.spaces.tensor_tile.product import Product, product_of
from tunefarm.search.spaces.tensor_tile.tile import (
    Feed,
    Plan,
    TensorTile,
    expected_s,
    possible,
)
from tunefarm.search.spaces.tensor_tile.tiling import figures_of
from tunefarm.search.spaces.tensor_tile.writer import TensorWriter, matrices_of
from tunefarm.search.spaces.written import Family, Fitting, whole

KEPT = 512
"""Of a kernel's points: the likeliest. There may be thousands, and what the model takes to be ten
times slower is not worth the search's time."""


def _fitting(workload: Any, target: Target) -> Fitting[TensorTile] | None:
    if target.kind != "cuda":
        return None
    arch, product = arch_of(target), product_of(workload)
    multiplied = (*arch.tensor_cores, *(["float32"] if multiplies_tf32(target) else []))
    if product is None or product.dtype not in multiplied:
        return None
    matrices = matrices_of(product)

    def expected(tile: TensorTile) -> float:
        return expected_s(Plan(matrices, tile), arch)

    return Fitting(
        lambda: sorted(possible(matrices, arch), key=expected)[:KEPT],
        lambda tile: Plan(matrices, tile).fits(arch),
        expected,
        figures_of(matrices),
        lambda tile: _written(workload["main"], product, Plan(matrices, tile)),
    )


def _written(function: Any, product: Product, plan: Plan) -> Any:
    """`function`, which computes `product`, as a kernel that computes it by `plan`."""
    writer = EngineWriter if plan.tile.feed is Feed.ENGINE else TensorWriter
    return whole(function, *writer(product, plan).kernel())


TENSOR_TILES = Family("tensor-tile", TensorTile, _fitting)
