"""Images that are stored with their padding: which are, and that the network computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.frontend.test_relax_operators import TARGET, computes_the_same
from tests.spelled import model_of, random
from tunefarm.devices.target import make_target
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import Program, load_program

pytestmark = pytest.mark.tvm


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


def imported(directory: Path, nodes, outputs=("y",), size=24, target=TARGET, **more) -> Program:
    constants = {
        "grow": random(16, 8, 1, 1),
        "each": random(16, 1, 3, 3),
        "wide": random(16, 1, 5, 5),
        "all": random(8, 16, 3, 3),
        "one": random(1, 16, 3, 3),
        "pairs": random(8, 2, 3, 3),
        "more": random(32, 1, 3, 3),
        "scale": random(16, 1, 1),
    }
    path = directory / "m.onnx"
    shape = (1, 8, size, size)
    model = model_of(nodes, {"x": np.zeros(shape, np.float32)}, outputs, constants)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, directory / "program", target, **more))
    program = load_program(directory / "program")
    if target.kind == "llvm":
        computes_the_same(program, path, shape)
    return program


MADE = [node("Conv", ["x", "grow"], "g"), node("Relu", ["g"], "i")]
EACH = {"group": 16, "pads": [1, 1, 1, 1]}


def given(program: Program) -> list[tuple[int, ...]]:
    """The shapes that are stored with zeros around them."""
    return sorted(task.args[-1].shape for task in program.tasks if task.name.endswith("_halo"))


def test_the_kernel_that_makes_an_image_pads_it(tmp_path: Path) -> None:
    program = imported(tmp_path, [*MADE, node("Conv", ["i", "each"], "y", **EACH)])
    assert given(program) == [(1, 26, 26, 16)]
    names = [task.name for task in program.tasks]
    assert names.count("halo") == 0
    (reader,) = (task for task in program.tasks if task.args[0].shape == (1, 26, 26, 16))
    assert reader.args[-1].shape == (1, 24, 24, 16)
    passes = {entry["pass"]: entry["detail"] for entry in program.evidence["passes"]}
    assert passes["relax.give_halos"] == "images stored with their padding: 1"


@pytest.mark.parametrize(
    ("pads", "padded"),
    [
        ([0, 1, 2, 1], (26, 26)),
        ([0, 0, 1, 1], (25, 25)),
        ([0, 2, 0, 0], (24, 26)),
        ([1, 0, 1, 0], (26, 24)),
    ],
)
def test_sides_may_differ(tmp_path: Path, pads: list[int], padded: tuple[int, int]) -> None:
    reader = node("Conv", ["i", "all"], "y", pads=pads, strides=[2, 2])
    assert given(imported(tmp_path, [*MADE, reader])) == [(1, *padded, 16)]


def test_a_channel_may_have_several_filters(tmp_path: Path) -> None:
    reader = node("Conv", ["i", "more"], "y", **EACH)
    assert given(imported(tmp_path, [*MADE, reader])) == [(1, 26, 26, 16)]


def test_the_turn_at_the_beginning_and_a_sum_pad_as_well(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "strided"], "s", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", ["s", "grow"], "g"),
        node("Conv", ["s", "grow"], "h"),
        node("Relu", ["h"], "r"),
        node("Add", ["g", "r"], "sum"),
        node("Mul", ["sum", "scale"], "i"),
        node("Conv", ["i", "each"], "y", **EACH),
    ]
    shape, path = (1, 3, 50, 50), tmp_path / "m.onnx"
    constants = {
        "strided": random(8, 3, 3, 3),
        "grow": random(16, 8, 1, 1),
        "scale": random(16, 1, 1),
        "each": random(16, 1, 3, 3),
    }
    model = model_of(nodes, {"x": np.zeros(shape, np.float32)}, ["y"], constants)
    path.write_bytes(model.SerializeToString())
    run_import(ImportRequest(path, tmp_path / "program", TARGET))
    program = load_program(tmp_path / "program")
    computes_the_same(program, path, shape)
    assert given(program) == [(1, 27, 27, 16), (1, 52, 52, 3)]


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(
            [node("Conv", ["i", "each"], "c", **EACH), node("Add", ["c", "i"], "y")],
            id="read twice",
        ),
        pytest.param([node("Conv", ["i", "all"], "y", pads=[1] * 4)], id="many channels"),
        pytest.param([node("Conv", ["i", "one"], "y", pads=[1] * 4)], id="a single filter"),
        pytest.param([node("Conv", ["i", "pairs"], "y", group=8, pads=[1] * 4)], id="two channels"),
        pytest.param([node("Conv", ["i", "wide"], "y", group=16, pads=[2] * 4)], id="many taps"),
        pytest.param(
            [node("Conv", ["i", "each"], "y", strides=[2, 2], **EACH)],
            id="a channel at a time, in steps",
        ),
        pytest.param([node("Conv", ["i", "each"], "y", group=16)], id="not padded"),
        pytest.param(
            [
                node("Identity", ["i"], "other"),
                node("Conv", ["other", "each"], "c", **EACH),
                node("Add", ["c", "i"], "y"),
            ],
            id="read by another name",
        ),
        pytest.param(
            [
                node("MaxPool", ["i"], "p", kernel_shape=[2, 2]),
                node("Conv", ["p", "each"], "y", **EACH),
            ],
            id="made by a kernel that ends",
        ),
    ],
)
def test_others_are_left_alone(tmp_path: Path, nodes: list) -> None:
    assert not given(imported(tmp_path, [*MADE, *nodes], size=48))


def test_small_images_and_results_are_left_alone(tmp_path: Path) -> None:
    reader = node("Conv", ["i", "each"], "y", **EACH)
    assert not given(imported(tmp_path, [*MADE, reader], size=14))
    (tmp_path / "result").mkdir()
    assert not given(imported(tmp_path / "result", [*MADE, reader], outputs=("y", "i")))


def test_so_are_channels_first_and_other_targets(tmp_path: Path) -> None:
    nodes = [*MADE, node("Conv", ["i", "each"], "y", **EACH)]
    assert not given(imported(tmp_path, nodes, layout="NCHW"))
    (tmp_path / "gpu").mkdir()
    gpu = make_target("cuda", {"arch": "sm_90"})
    assert not given(imported(tmp_path / "gpu", nodes, target=gpu))
