"""Register tiles of rows that overlap, in lines and across their ends, and of a single row."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from tests import models, odd_models
from tests.bench import fitting, imported
from tunefarm.search.space import Point

pytestmark = pytest.mark.tvm


@pytest.mark.long
@pytest.mark.parametrize("across", [False, True])
def test_tiles_of_rows_that_overlap_are_right(
    target, workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, across: bool
) -> None:
    """In lines and across their ends; wherever stages before them are computed, in every order of
    the loops; whatever a processor's registers promise of them."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import register_tile
    from tunefarm.search.spaces.tile import Before

    program = imported(tmp_path, odd_models.convolutions(tmp_path / "primes.onnx"), target, "NHWC")
    monkeypatch.setattr(register_tile, "GAIN", math.inf)
    fit = register_tile.overlappable
    monkeypatch.setattr(
        *(register_tile, "overlappable"), lambda form, n, way: way is across and fit(form, n, way)
    )
    seen: set[tuple[str, str]] = set()
    for task, bench, space in fitting(
        program, register_tile.overlapped_tile_space, target, workers, tmp_path
    ):
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        ways: dict[tuple[Any, ...], Point] = {}
        for one in known:
            tile = space._tile(one.point.values)
            assert tile is not None
            ways.setdefault((tile.before, tile.columns_first, tile.flat), one.point)
        points = [*ways.values(), known[-1].point]
        traces = []
        for number, point in enumerate(points):
            proposal = space.realise(point, number)
            assert proposal is not None, (task.name, point)
            traces.append(proposal.trace)
            assert space.locate(proposal.trace) == point
            note = replay.completed_by(proposal.trace) or ""
            assert note.startswith("overlapped-tile")
            bench.check(proposal, str(number))
            seen.add((task.name, note.rpartition("before=")[2]))
        assert [space.realise(point, 0).trace for point in points] == traces, "whatever came before"
    of_one_line = {"conv2d_fast_tanh", "conv2d_tir_sigmoid", "matmul_add"}
    of_images = {"conv2d_add_relu", "conv2d_add", "conv2d"}
    assert {name for name, _ in seen} == of_images | (set() if across else of_one_line)
    before = {where for name, where in seen if name == "conv2d_add_relu"}
    assert before == {Before.APART, Before.LOCAL}


def test_short_lines_have_tiles_across_their_ends(tmp_path: Path) -> None:
    """Where sixteen registers have no good tile of a line; with 32 there is one."""
    from tunefarm.devices.target import parse_target
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces.register_tile import overlapped_tile_space

    found = {}
    for cpu in ("haswell", "cascadelake"):
        narrow = parse_target(f"llvm:mcpu={cpu}:num-cores=2")
        program = imported(tmp_path / cpu, odd_models.short_lines(tmp_path / "m.onnx"), narrow)
        (task,) = (task for task in program.tasks if "conv2d" in task.name)
        found[cpu] = overlapped_tile_space(load_workload(program.workload(task.id)), narrow)
    assert found["cascadelake"] is None
    assert found["haswell"] is not None
    likeliest = min(found["haswell"].modelled(), key=lambda one: one.seconds)
    proposal = found["haswell"].realise(likeliest.point, 0)
    assert proposal is not None
    assert "across 5" in proposal.trace


def test_weights_of_a_single_row_are_read_in_streams(target, workers, tmp_path: Path) -> None:
    """As many as a tile has vectors, filled up or not; weights that several rows use are not."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.register_tile import filled_tile_space, register_tile_space

    program = imported(tmp_path, odd_models.single_rows(tmp_path / "single.onnx"), target, "NHWC")
    seen = set()
    families = (register_tile_space, filled_tile_space)
    made = [fitting(program, family, target, workers, tmp_path) for family in families]
    for task, bench, space in itertools.chain(*made):
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        tiles = [(one.point, space._tile(one.point.values)) for one in known]
        streams = [(point, tile) for point, tile in tiles if tile.streams]
        for number, (point, tile) in enumerate(streams[:: max(1, len(streams) // 4)]):
            assert tile.vectors > 1
            assert tile.pack
            proposal = space.realise(point, number)
            assert proposal is not None
            assert space.locate(proposal.trace) == point
            note = replay.completed_by(proposal.trace) or ""
            assert "streams=True" in note
            # Two families have this kernel: a file is loaded once, whatever is in it later.
            library = bench.check(proposal, f"{note.partition(' ')[0]}-{number}")
            ((_, weights),) = library.packed
            assert weights.shape[-1] == tile.lanes, "a vector's columns lie by themselves"
            seen.add((note.partition(" ")[0], task.name, task.args[0].shape[-2:]))
    assert seen >= {
        ("register-tile", "matmul_add_relu", (1, 96)),
        ("register-tile", "conv2d_tir_sigmoid", (1, 48)),
    }
    if hardware(target).lanes > 4:  # 77 columns are vectors of eight and five more
        assert ("filled-tile", "matmul", (1, 96)) in seen
    assert not {shape for *_, shape in seen} & {(6, 96)}, "weights that are used again"


def test_kernels_that_tiles_divide_have_no_overlapping_ones(target, tmp_path: Path) -> None:
    """Nor those whose dividing tiles are expected to do nearly as well."""
    from tunefarm.search.replay import load_workload
    from tunefarm.search.spaces.register_tile import overlapped_tile_space

    program = imported(tmp_path, models.activated(tmp_path / "even.onnx"), target, "NHWC")
    products = [task for task in program.tasks if "conv2d" in task.name]
    assert products
    for task in products:
        assert overlapped_tile_space(load_workload(program.workload(task.id)), target) is None
