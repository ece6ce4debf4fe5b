"""The family: the tiles of a product that fit, in the order of what the hardware model expects."""

from __future__ import annotations

from typing import Any

import tvm

from tunefarm.devices.gpu import arch_of, multiplies_tf32
from tunefarm.devices.target import Target
from tunefarm.search.spaces.family import FewWays, from_words
from tunefarm.search.spaces.tensor_tile.product import product_of
from tunefarm.search.spaces.tensor_tile.tile import (
    Plan,
    TensorTile,
    expected_s,
    figures_of,
    possible,
)
from tunefarm.search.spaces.tensor_tile.writer import matrices_of, written

FAMILY = "tensor-tile"
KEPT = 512


def tensor_tile_space(workload: Any, target: Target) -> FewWays[TensorTile] | None:
    """The space of `workload`, None where it is no product for this GPU's tensor cores."""
    if target.kind != "cuda":
        return None
    arch = arch_of(target)
    product = product_of(workload)
    if product is None or not arch.copies_aside:
        return None
    multiplied = (*arch.tensor_cores, *(["float32"] if multiplies_tf32(target) else []))
    if product.dtype not in multiplied:
        return None
    matrices = matrices_of(product)

    def expected(tile: TensorTile) -> float:
        return expected_s(Plan(matrices, tile), arch)

    ways = sorted(possible(matrices, arch), key=expected)[:KEPT]
    if not ways:
        return None
    figures = figures_of(Plan(matrices, ways[0]))
    # There is nothing to schedule: the kernel is written whole once the point is known.
    return FewWays(FAMILY, workload, ways, expected, lambda _schedule, _tile: None, figures)


def in_full(function: Any, target: Target, point: str) -> Any:
    """The kernel that `point`, in words, is of `function`.

    Raises:
        ValueError: it is none of this family, or does not fit the kernel or the target.
    """
    product, tile = (
        product_of(tvm.IRModule({"main": function})),
        from_words(TensorTile, FAMILY, point),
    )
    if product is None or not Plan(matrices_of(product), tile).fits(arch_of(target)):
        raise ValueError(f"does not fit: {point}")
    return written(function, product, tile)
