"""Which of a register tile's loops the cores share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import models, odd_models
from tests.bench import imported

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize("make", [odd_models.single_rows, models.kernels])
def test_the_cores_share_what_the_hardware_model_says_they_do(
    target, tmp_path: Path, make: Any
) -> None:
    """In every order of the loops, whether rows or columns are a single tile or several."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space
    from tunefarm.search.spaces.tile import parallel_tasks, tile_counts

    seen = set()
    program = imported(tmp_path, make(tmp_path / "model.onnx"), target, "NHWC")
    for task in program.tasks:
        workload = replay.load_workload(program.workload(task.id))
        space = register_tile_space(workload, target)
        ways = {}
        for one in space.modelled() if space is not None else ():
            tile = space._tile(one.point.values)
            alone = tuple(count == 1 for count in tile_counts(space._form, tile))
            ways.setdefault((alone, tile.columns_first, tile.flat), (tile, one.point))
        for way, (tile, point) in ways.items():
            proposal = space.realise(point, 0)
            function = replay.scheduled_function(workload, target, proposal.trace)
            shared = parallel_tasks(space._form, tile)
            assert _parallel(function) == shared, (task.name, tile)
            seen.add(way)
    several, one_row, one_column = (False, False), (True, False), (False, True)
    assert (one_row, True, False) in seen, "the cores share the columns"
    assert (one_row, False, False) in seen, "one core has all of them"
    assert not {way for way in seen if way[2] and True in way[0]}
    if make is models.kernels:
        assert (one_column, False, False) in seen
        orders = {(several, first, flat) for first in (False, True) for flat in (False, True)}
        assert seen >= orders


def test_many_weights_of_a_single_row_are_shared(target, tmp_path: Path) -> None:
    """By all cores, so far as the hardware model has its way; few are left to one."""
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import register_tile_space
    from tunefarm.search.spaces.tile import parallel_tasks

    program = imported(tmp_path, odd_models.single_rows(tmp_path / "m.onnx"), target, "NHWC")
    tasks = {}
    for task in program.tasks:
        space = register_tile_space(load_workload(program.workload(task.id)), target)
        if space is not None:
            likeliest = min(space.modelled(), key=lambda one: one.seconds)
            tile = space._tile(likeliest.point.values)
            tasks[task.args[0].shape] = parallel_tasks(space._form, tile)
    cores = hardware(target).cores
    assert tasks[1, 512] >= min(cores, 16)
    if cores > 1:
        assert tasks[1, 1, 1, 48] == 1


def _parallel(function: Any) -> int:
    """Iterations of the parallel loop around the reduction."""
    from tvm import tirx
    from tvm.s_tir import SBlockRealize
    from tvm_ffi import structural_walk

    found = []

    def reduces(loop: Any) -> None:
        if loop.kind != tirx.ForKind.PARALLEL:
            return
        blocks: list[Any] = []
        structural_walk(loop.body, (SBlockRealize, blocks.append))
        if any(one.block.name_hint.endswith("_update") for one in blocks):
            found.append(int(loop.extent))

    structural_walk(function.body, (tirx.For, reduces))
    (shared,) = found
    return shared
