"""Windows of one channel at a time whose steps are all in a tile's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import Bench, imported, needs
from tests.float_network import Network
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

WINDOWS = {
    "lines": {"kernel": 3},
    "steps": {"kernel": 3, "strides": [2, 2]},
    "apart": {"kernel": 3, "dilations": [2, 2], "pads": [2] * 4},
    "large": {"kernel": 5, "pads": [2] * 4},
}


def _program(directory: Path, target, kind: str) -> Program:
    settings = {"pads": [1] * 4, "strides": [1, 1], **WINDOWS[kind]}
    size = settings.pop("kernel")
    one = Network()
    x = one.add("Conv", "x", one.constant(32, 1, size, size), group=32, **settings)
    one.add("Relu", one.add("Add", x, one.constant(32, 1, 1)))
    side = 12 // settings["strides"][0]
    model = one.write(directory / "m.onnx", [1, 32, 12, 12], [1, 32, side, side])
    return imported(directory, model, target, "NHWC")


def _space(program: Program, target):
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    (task,) = (one for one in program.tasks if one.name.startswith("conv2d"))
    workload = replay.load_workload(program.workload(task.id))
    return task, workload, register_tile_space(workload, target)


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_line_and_the_whole_of_it_compute_the_same(
    kind: str, target, workers, tmp_path: Path
) -> None:
    program = _program(tmp_path, target, kind)
    task, _, space = _space(program, target)
    bench = Bench(program, task, target, workers, tmp_path)
    likeliest = {}
    for one in sorted(space.modelled(), key=lambda one: one.seconds):
        tile = space._tile(one.point.values)
        likeliest.setdefault((tile.unroll, tile.before), one)
    size = WINDOWS[kind]["kernel"]
    assert {unroll for unroll, _ in likeliest} == {1, size, size**2}
    for number, one in enumerate(likeliest.values()):
        proposal = space.realise(one.point, number)
        assert proposal is not None
        assert space.locate(proposal.trace) == one.point
        bench.check(proposal, str(number))


def test_nothing_is_left_to_step_through(target, tmp_path: Path) -> None:
    from tvm import tirx
    from tvm_ffi import structural_walk

    from tunefarm.search import replay

    _, workload, space = _space(_program(tmp_path, target, "lines"), target)
    loops = {}
    for one in space.modelled():
        tile = space._tile(one.point.values)
        if tile.unroll in loops or min(tile.rows, tile.planes) == 1:
            continue
        proposal = space.realise(one.point, 0)
        function = replay.scheduled_function(workload, target, proposal.trace)
        found: list[int] = []

        def serial(loop, found=found) -> None:
            if loop.kind == tirx.ForKind.SERIAL and int(loop.extent) == 3:
                found.append(int(loop.extent))

        structural_walk(function.body, (tirx.For, serial))
        loops[tile.unroll] = len(found)
    assert (loops[1] - loops[9], loops[3] - loops[9]) == (2, 1), "beside those that pack weights"


@pytest.mark.parametrize(
    ("kind", "unroll", "share"),
    [
        *(("lines", 1, 1.0), ("lines", 3, 6 / 12), ("lines", 9, 6 / 12 * 4 / 6)),
        *(("steps", 3, 9 / 12), ("steps", 9, 9 / 12 * 5 / 6)),
        *(("large", 5, 8 / 20), ("large", 25, 8 / 20 * 6 / 10)),
        ("apart", 9, 1.0),
    ],
)
def test_what_is_read_alike_is_loaded_once(
    kind: str, unroll: int, share: float, target, tmp_path: Path
) -> None:
    """Of four rows in two lines. Rows that are two apart share what those between them do not,
    which the hardware model leaves out."""
    from tunefarm.search.spaces.tile import Before, Tile, distinct

    _, _, space = _space(_program(tmp_path, target, kind), target)
    tile = Tile(4, 2, 1, 8, unroll, False, False, True, Before.INLINE)
    assert distinct(space._form, tile) == pytest.approx(share)


def test_channels_that_are_added_up_are_stepped_through(target, tmp_path: Path) -> None:
    one = Network()
    one.add("Relu", one.add("Conv", "x", one.constant(32, 32, 3, 3), pads=[1] * 4))
    model = one.write(tmp_path / "m.onnx", [1, 32, 12, 12], [1, 32, 12, 12])
    _, _, space = _space(imported(tmp_path, model, target, "NHWC"), target)
    tiles = (space._tile(one.point.values) for one in space.modelled())
    assert {tile.unroll for tile in tiles} <= {1, 2, 4, 8}


@pytest.mark.parametrize("pads", [0, 1])
def test_the_largest_of_bfloat16_is_in_vectors_and_in_one_text(
    pads: int, workers, tmp_path: Path
) -> None:
    """Which is made wide but once. Of float32 it is stepped through: nothing is saved."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.register_tile import register_tile_space

    target = parse_target("llvm:mcpu=znver4:num-cores=2:precision=bfloat16")
    one = Network()
    x = one.add("Conv", "x", one.constant(32, 8, 1, 1))
    x = one.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[pads] * 4)
    one.add("Conv", x, one.constant(16, 32, 1, 1))
    size = 6 + pads
    model = one.write(tmp_path / "m.onnx", [1, 8, 13, 13], [1, 16, size, size])
    spaces = {}
    for precision, of in (("bfloat16", target), ("float32", target.hardware)):
        program = imported(tmp_path / precision, model, of)
        (task,) = (one for one in program.tasks if one.name.startswith("max_pool2d"))
        workload = replay.load_workload(program.workload(task.id))
        space = register_tile_space(workload, of)
        assert space is not None
        assert {arg.dtype for arg in task.args} == {precision}
        spaces[precision] = program, task, space
    _, _, plain = spaces["float32"]
    tiles = (plain._tile(one.point.values) for one in plain.modelled())
    assert {tile.unroll for tile in tiles} == {1}
    needs("avx512_bf16")
    program, task, space = spaces["bfloat16"]
    bench = Bench(program, task, target, workers, tmp_path)
    likeliest = {}
    for one in sorted(space.modelled(), key=lambda one: one.seconds):
        tile = space._tile(one.point.values)
        likeliest.setdefault((tile.unroll, tile.before), one)
    assert {unroll for unroll, _ in likeliest} == {1, 3, 9}
    for number, one in enumerate(likeliest.values()):
        bench.check(space.realise(one.point, number), str(number))


def test_rows_of_bfloat16_are_folded(workers, tmp_path: Path) -> None:
    """Of which the last axis is pooled, on the way to a product."""
    from tunefarm.search import replay
    from tunefarm.search.spaces.fold import fold_space

    target = parse_target("llvm:mcpu=znver4:num-cores=2:precision=bfloat16")
    one = Network()
    x = one.add("MaxPool", one.add("Relu", "x"), kernel_shape=[3, 3], strides=[2, 2])
    one.add("MatMul", one.add("Reshape", x, one.whole([8, 961])), one.constant(961, 16))
    model = one.write(tmp_path / "m.onnx", [1, 8, 63, 63], [8, 16])
    program = imported(tmp_path, model, target, "NCHW")
    (task,) = (one for one in program.tasks if one.name.startswith("max_pool2d"))
    assert {arg.dtype for arg in task.args} == {"bfloat16"}
    needs("avx512_bf16")
    bench = Bench(program, task, target, workers, tmp_path)
    space = fold_space(replay.load_workload(program.workload(task.id)), target)
    assert space is not None
    for number, one in enumerate(space.modelled()):
        bench.check(space.realise(one.point, number), str(number))
