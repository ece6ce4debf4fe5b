"""The family: every way to lay a kernel's rows on warps, in the order of what the hardware model
expects."""

from __future__ import annotations

from typing import Any

import tvm

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.search.spaces.family import FewWays, from_words
from tunefarm.search.spaces.warp_rows.point import (
    WarpRows,
    expected_s,
    figures_of,
    fits,
    possible,
)
from tunefarm.search.spaces.warp_rows.rows import row_kernel_of
from tunefarm.search.spaces.warp_rows.writer import figures, written

FAMILY = "warp-rows"


def warp_rows_space(workload: Any, target: Target) -> FewWays[WarpRows] | None:
    """The space of `workload`, None where its stages are no rows, or rows that no warps hold."""
    if target.kind != "cuda":
        return None
    arch, kernel = arch_of(target), row_kernel_of(workload)
    if kernel is None:
        return None
    of = figures(kernel)

    def expected(one: WarpRows) -> float:
        return expected_s(one, of, arch)

    ways = sorted(possible(of, arch), key=expected)
    if not ways:
        return None
    # There is nothing to schedule: the kernel is written whole once the point is known.
    return FewWays(FAMILY, workload, ways, expected, lambda _schedule, _one: None, figures_of(of))


def in_full(function: Any, target: Target, point: str) -> Any:
    """The kernel that `point`, in words, is of `function`.

    Raises:
        ValueError: it is none of this family, or does not fit the kernel or the target.
    """
    kernel, one = (
        row_kernel_of(tvm.IRModule({"main": function})),
        from_words(WarpRows, FAMILY, point),
    )
    if kernel is None or not fits(one, figures(kernel), arch_of(target)):
        raise ValueError(f"does not fit: {point}")
    return written(function, kernel, one)
