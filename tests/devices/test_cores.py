"""How far apart this machine's cores are, really asked."""

from __future__ import annotations

import os
import threading

import pytest

from tunefarm.devices.cores import LINES, exchange_s

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="one core hands nothing to another")
def test_lines_are_fetched_from_another_core() -> None:
    """No faster than a core issues its reads, no slower than from another machine's memory."""
    seconds = min(exchange_s() for _ in range(5))
    assert 0.2e-9 < seconds / LINES < 2e-6


def test_whoever_asks_may_run_where_it_could_before() -> None:
    threads = threading.active_count()
    exchange_s()
    assert sorted(os.sched_getaffinity(0)) == CORES
    assert threading.active_count() == threads


@pytest.mark.slow
@pytest.mark.parametrize("cores", [(), (CORES[0],), (CORES[0], 1 << 20), (1 << 20, CORES[-1])])
def test_where_it_cannot_be_told_it_is_not(cores: tuple[int, ...]) -> None:
    assert exchange_s(cores) == 0.0
