"""The family: every way to lay a kernel's rows on warps, in the order of what the hardware model
expects."""

from __future__ import annotations

from typing import Any

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.search.spaces.warp_rows.point import (
    WarpRows,
    expected_s,
    figures_of,
    fits,
    possible,
)
from tunefarm.search.spaces.warp_rows.rows import row_kernel_of
from tunefarm.search.spaces.warp_rows.writer import figures, written
from tunefarm.search.spaces.written import Family, Fitting


def _fitting(workload: Any, target: Target) -> Fitting[WarpRows] | None:
    if target.kind != "cuda":
        return None
    arch, kernel = arch_of(target), row_kernel_of(workload)
    if kernel is None:
        return None
    of = figures(kernel)

    def expected(one: WarpRows) -> float:
        return expected_s(one, of, arch)

    return Fitting(
        lambda: sorted(possible(of, arch), key=expected),
        lambda one: fits(one, of, arch),
        expected,
        figures_of(of),
        lambda one: written(workload["main"], kernel, one),
    )


WARP_ROWS = Family("warp-rows", WarpRows, _fitting)
