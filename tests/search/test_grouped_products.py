"""Products of which each filter reads a part of the channels, in registers: what they compute."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.bench import fitting, imported, needs
from tests.float_network import Network
from tests.quantised_models import Quantised
from tunefarm.devices.target import Target, parse_target
from tunefarm.frontend.program import Program

pytestmark = pytest.mark.tvm

MATRICES = parse_target("llvm:mcpu=sapphirerapids:num-cores=2")
ROUNDING = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
VNNI = parse_target("llvm:mcpu=icelake-server:num-cores=2")
AVX2 = parse_target("llvm:mcpu=haswell:num-cores=2")


def _rounded(directory: Path) -> Program:
    """Three groups of 32 filters and their channels, four of 8; lines of 18 and of 17."""
    one = Network()
    x = one.add("Relu", one.add("Conv", "x", one.constant(96, 8, 1, 1)))
    x = one.add("Relu", one.add("Conv", x, one.constant(96, 32, 3, 3), pads=[1] * 4, group=3))
    x = one.add("Relu", one.add("Conv", x, one.constant(32, 96, 2, 2)))
    one.add("Conv", x, one.constant(32, 8, 3, 3), pads=[1] * 4, group=4)
    model = one.write(directory / "m.onnx", [1, 8, 18, 18], [1, 32, 17, 17])
    return imported(directory, model, ROUNDING)


def _quantised(directory: Path, target: Target) -> Program:
    one = Quantised(seed=5)
    x = one.rounded("x", 1 / 100, 120)
    x = one.add("Conv", x, one.weights(96, 32, 3, 3), one.bias(96), pads=[1] * 4, group=3)
    x = one.rounded(one.add("Relu", x), 1 / 60)
    x = one.rounded(one.add("Relu", one.add("Conv", x, one.weights(32, 96, 2, 2))), 1 / 40)
    one.add("Conv", x, one.weights(32, 8, 3, 3), pads=[1] * 4, group=4)
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 96, 18, 18])], [("y", [1, 32, 17, 17])])
    path = directory / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return imported(directory, path, target)


@pytest.mark.parametrize(
    ("target", "feature", "family"),
    [
        (ROUNDING, "amx_bf16", "matrix"),
        (ROUNDING, "amx_bf16", "overlapped"),
        (MATRICES, "amx_int8", "matrix"),
        (MATRICES, "amx_int8", "overlapped"),
        (VNNI, "avx512_vnni", "register"),
        (AVX2, "avx2", "register"),
        (AVX2, "avx2", "winograd"),
    ],
)
def test_points_compute_what_the_untuned_kernel_computes(
    target: Target, feature: str, family: str, workers, tmp_path: Path
) -> None:
    from tunefarm.search.spaces import matrix_tile, register_tile
    from tunefarm.search.spaces.winograd import winograd_space

    needs(feature)
    spaces = {
        "matrix": matrix_tile.matrix_tile_space,
        "overlapped": matrix_tile.overlapped_matrix_tile_space,
        "register": register_tile.register_tile_space,
        "winograd": winograd_space,
    }
    program = _rounded(tmp_path) if target is ROUNDING else _quantised(tmp_path, target)
    grouped = 0
    for task, bench, space in fitting(program, spaces[family], target, workers, tmp_path):
        (weights,) = (arg.shape for arg in task.args if len(arg.shape) > 4)
        terms = weights[2]
        for size in weights[4:]:
            terms *= size
        if task.args[0].shape[-1] == terms:
            continue
        grouped += 1
        known = sorted(space.modelled(), key=lambda one: one.seconds)
        for number, one in enumerate([known[0], known[-1], *random.Random(2).sample(known, 3)]):
            proposal = space.realise(one.point, number)
            assert proposal is not None
            assert space.locate(proposal.trace) == one.point
            bench.check(proposal, f"{family}-{task.id}-{number}")
    assert grouped == (1 if family == "overlapped" else 2)


def test_the_hardware_model_reads_one_number_for_the_columns_of_a_tile() -> None:
    """As it does without groups: a tile is within one."""
    from tests.search.test_winograd import convolution
    from tunefarm.search.spaces.form import reduction_of
    from tunefarm.search.spaces.hardware import hardware
    from tunefarm.search.spaces.tile import Before, Tile
    from tunefarm.search.spaces.tile_estimate import loads_of_step

    tile = Tile(4, 1, 2, 8, 1, True, False, True, Before.APART)
    loads = []
    for channels in (16, 8):
        form = reduction_of(convolution((1, 10, 10, channels), (3, 3, 8, 32)))
        assert form is not None
        loads.append(loads_of_step(form, tile, hardware(AVX2)))
    assert loads[0] == loads[1]


@pytest.mark.parametrize(("step", "takes"), [(4, True), (3, False)])
def test_a_part_of_the_channels_begins_where_terms_do(step: int, takes: bool) -> None:
    """Else a pair of a filter's would lie in two pairs of the data's."""
    import tvm
    from tvm import te

    from tunefarm.search.spaces.neighbours import sums_of

    x = te.placeholder((12, 8), "bfloat16", name="x")
    w = te.placeholder((2, 32, 2), "bfloat16", name="w")
    k, one = te.reduce_axis((0, 2), name="k"), te.reduce_axis((0, 2), name="one")
    y = te.compute(
        (12, 32),
        lambda i, j: te.sum(
            x[i, j // 16 * step + k * 2 + one].astype("float32") * w[k, j, one].astype("float32"),
            axis=[k, one],
        ),
        name="y",
    )
    function = te.create_prim_func([x, w, y], index_dtype_override="int64")
    free = function.with_attr("layout_free_buffers", [1])
    form = sums_of(tvm.IRModule({"main": free}))
    assert (form is not None and form.rounded and form.limits[form.column] == 16) is takes
