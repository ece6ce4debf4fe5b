"""Groups of convolutions that are done by registers wider than one: which are made one, and that
the network computes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.float_network import Network
from tests.quantised_models import Quantised, outputs_of
from tunefarm.devices.target import parse_target

pytestmark = pytest.mark.tvm

PLAIN = "llvm:mcpu=sapphirerapids:num-cores=2"
ROUNDING = f"{PLAIN}:precision=bfloat16"
IN_VECTORS = "llvm:mcpu=znver4:num-cores=2:precision=bfloat16"
GROUPS = [(2, 16, 16), (4, 8, 8), (4, 6, 12), (8, 4, 4), (2, 8, 8), (2, 16, 48)]
"""How many, and channels and filters of each; of the fifth both are made one."""
OTHERS = [(16, 1, 1), (16, 1, 4), (16, 2, 2), (3, 8, 8), (2, 3, 8)]
"""Which stay apart: single channels, or what would be most of it zeros, or groups that no number of
them fills, or that have no whole number of pairs."""


def _of_floats(path: Path, groups: int, terms: int, columns: int) -> Path:
    one = Network()
    inside, made = groups * terms, groups * columns
    x = one.add("Relu", one.add("Conv", "x", one.constant(inside, 8, 1, 1)))
    settings = {"pads": [1] * 4, "strides": [2, 2], "group": groups}
    x = one.add("Relu", one.add("Conv", x, one.constant(made, terms, 3, 3), **settings))
    one.add("Conv", x, one.constant(32, made, 1, 1))
    return one.write(path, [1, 8, 13, 13], [1, 32, 7, 7])


def _quantised(path: Path, groups: int, terms: int, columns: int, most: int = 127) -> Path:
    """With zeros of data that are none, and without anything around the image."""
    one = Quantised(seed=3, most=most)
    inside, made = groups * terms, groups * columns
    x = one.rounded(one.add("Conv", "x", one.constant(_drawn(inside, 8, 1, 1))), 1 / 60, 120)
    settings = {"pads": [1] * 4, "strides": [2, 2], "group": groups}
    x = one.add("Conv", x, one.weights(made, terms, 3, 3), one.bias(made), **settings)
    x = one.rounded(x, 1 / 40, 110)
    one.add("Conv", x, one.weights(made, columns, 3, 3), group=groups)
    one.nodes[-1].output[0] = "y"
    model = one.model([("x", [1, 8, 13, 13])], [("y", [1, made, 5, 5])])
    path.write_bytes(model.SerializeToString())
    return path


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)


def _results(directory: Path, model: Path, target: str) -> tuple[list[str], np.ndarray]:
    """Names of the kernels that are convolutions, and what the network makes, by code for whatever
    x86 this runs on."""
    import tvm
    from tvm import relax

    from tests.bench import imported
    from tunefarm.frontend.stored import load_program_module
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay

    directory.mkdir()
    program = imported(directory, model, parse_target(target))
    anywhere = parse_target("llvm:mcpu=x86-64:num-cores=2")
    how = {"tir_pipeline": pipeline(anywhere)}
    module = load_program_module(program.module)
    machine = relax.VirtualMachine(
        relax.build(module, replay.tvm_target(anywhere), **how), tvm.cpu()
    )
    x = np.random.default_rng(1).uniform(-1, 1, (1, 8, 13, 13)).astype(np.float32)
    names = [task.name for task in program.tasks if "conv2d" in task.name]
    return names, machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_of_whole_registers_are_of_bfloat16(groups, tmp_path: Path) -> None:
    model = _of_floats(tmp_path / "m.onnx", *groups)
    names, rounded = _results(tmp_path / "rounded", model, ROUNDING)
    assert len(names) == 3
    assert all("halves" in name for name in names)
    _, exact = _results(tmp_path / "exact", model, PLAIN)
    off = np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))
    assert 1e-4 < off < 2e-2


@pytest.mark.parametrize("groups", OTHERS)
def test_others_stay_in_float32(groups, tmp_path: Path) -> None:
    from tests.bench import imported

    model = _of_floats(tmp_path / "m.onnx", *groups)
    program = imported(tmp_path, model, parse_target(ROUNDING))
    assert sum("halves" in task.name for task in program.tasks) == 2


def test_vectors_of_bfloat16_leave_groups_alone(tmp_path: Path) -> None:
    """Where they do two terms at the price of two they are no gain."""
    from tests.bench import imported

    model = _of_floats(tmp_path / "m.onnx", 2, 16, 16)
    program = imported(tmp_path, model, parse_target(IN_VECTORS))
    assert sum("halves" in task.name for task in program.tasks) == 2


@pytest.mark.parametrize(
    ("groups", "mcpu"),
    [
        *((groups, mcpu) for groups in GROUPS for mcpu in ("sapphirerapids", "icelake-server")),
        *((groups, "haswell") for groups in GROUPS if groups[2] % 8 == 0),
        *((groups, "nehalem") for groups in GROUPS),
    ],
)
def test_quantised_groups_are_products_of_integers(groups, mcpu: str, tmp_path: Path) -> None:
    model = _quantised(tmp_path / "m.onnx", *groups)
    names, found = _results(tmp_path / "found", model, f"llvm:mcpu={mcpu}:num-cores=2")
    integers = [name for name in names if "fours" in name or "pairs" in name or "narrow" in name]
    assert len(integers) == 2
    assert _off(model, found) <= 0.02


def _off(model: Path, found: np.ndarray) -> float:
    import onnx

    x = np.random.default_rng(1).uniform(-1, 1, (1, 8, 13, 13)).astype(np.float32)
    (wanted,) = outputs_of(onnx.load(model), {"x": x})
    assert np.abs(found - wanted).mean() <= 1e-3 * np.abs(wanted).max()
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_weights_whose_pairs_fit_16_bits_are_multiplied_so(tmp_path: Path) -> None:
    model = _quantised(tmp_path / "m.onnx", 2, 16, 16, most=63)
    names, found = _results(tmp_path / "found", model, "llvm:mcpu=haswell:num-cores=2")
    assert sum("narrow" in name for name in names) == 2
    assert _off(model, found) <= 0.02


@pytest.mark.parametrize(
    ("groups", "mcpu", "integers"),
    [((3, 8, 8), "sapphirerapids", 0), ((8, 4, 4), "haswell", 0), ((4, 1, 4), "sapphirerapids", 1)],
)
def test_other_groups_of_a_quantised_model_are_multiplied_in_float32(
    groups: tuple[int, int, int], mcpu: str, integers: int, tmp_path: Path
) -> None:
    """Of whole numbers, and by their scale afterwards. Pairs, which are twice as many as floats at
    the best, are not half filled with zeros; of the last network the second has four channels."""
    model = _quantised(tmp_path / "m.onnx", *groups)
    names, found = _results(tmp_path / "found", model, f"llvm:mcpu={mcpu}:num-cores=2")
    found_integers = [one for one in names if "fours" in one or "pairs" in one or "narrow" in one]
    assert (len(found_integers), len(names)) == (integers, 3)
    assert _off(model, found) <= 0.02


@given(data=st.data())
def test_merged_groups_multiply_the_same(data: st.DataObject) -> None:
    """By their definition: each filter has the numbers of its own group, and zeros for others'."""
    from tunefarm.frontend.relax.merged_groups import beside_zeros, merged

    count, parts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    terms, columns = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 2, 3, 4, 8]))
    groups = count * parts
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    weights = draw.integers(-9, 9, (2, terms, groups * columns))
    image = draw.integers(-9, 9, (groups * terms,))
    made = beside_zeros(weights, groups, count)
    assert made.shape == (2, count * terms, groups * columns)
    for column in range(groups * columns):
        own = column // columns * terms
        its = column // (columns * count) * terms * count
        apart = image[own : own + terms] @ weights[:, :, column].T
        together = image[its : its + terms * count] @ made[:, :, column].T
        assert np.array_equal(apart, together)
    whole, filled = data.draw(st.sampled_from([8, 16])), data.draw(st.sampled_from([2, 4]))
    fits = [
        one
        for one in range(1, 5)
        if (groups % one, columns * one % whole, terms * one % filled) == (0, 0, 0) and terms > 1
    ]
    assert merged(groups, terms, columns, whole, filled, 4) == next(iter(fits), None)
