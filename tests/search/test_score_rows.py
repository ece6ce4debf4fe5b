"""Attention a block of queries at a time: the right result, however a network has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.bench import Bench, whole_answer
from tests.frontend import test_relax_attention as attentions
from tunefarm.devices.target import parse_target
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.program import load_program
from tunefarm.frontend.relax import one_attention

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        *((kind, 24) for kind in ("plain", "batches", "scaled", "masked", "chosen", "factor")),
        *((kind, 24) for kind in ("by", "shared", "packed", "grouped", "blind", "seeing")),
        *(
            (kind, 22) for kind in ("plain", "scaled", "by", "shared", "seeing")
        ),  # that fill no whole tiles of keys
    ],
)
def test_attention_in_rows_of_scores_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target, workers, kind: str, tokens: int
) -> None:
    from tunefarm.search.spaces import design_space

    monkeypatch.setattr(one_attention, "FAR", 0)
    monkeypatch.setattr(attentions, "TOKENS", tokens)
    model = tmp_path / "m.onnx"
    model.write_bytes(attentions.network(kind).SerializeToString())
    run_import(ImportRequest(model, tmp_path / "program", target))
    program = load_program(tmp_path / "program")
    (task,) = (one for one in program.tasks if one.name == "attention")
    bench = Bench(program, task, target, workers, tmp_path)
    bench.check_some(design_space(bench.workload, target), "score-rows")


def test_queries_that_see_nothing_are_given_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target
) -> None:
    """Masked throughout by infinity, where the network has a guard for that."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    monkeypatch.setattr(one_attention, "FAR", 0)
    program = attentions.imported("blind", tmp_path, "float32", target.text)
    (task,) = (one for one in program.tasks if one.name == "attention")
    workload = replay.load_workload(program.workload(task.id))
    space = design_space(workload, target)
    best = min(space.modelled(), key=lambda one: one.seconds).point
    assert space.describe(best).family == "score-rows"
    proposal = space.realise(best, 0)
    x = np.random.default_rng(0).normal(size=(1, 24, 48)).astype(np.float32)
    given = whole_answer(program, target, {task.id: proposal.trace}, tmp_path / "m.so", [x])
    session = onnxruntime.InferenceSession(attentions.network("blind").SerializeToString())
    (wanted,) = session.run(None, {"hidden": x})
    assert not wanted[0, 2].any()
    np.testing.assert_array_equal(given[0][0, 2], wanted[0, 2])
    np.testing.assert_allclose(given[0], wanted, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize(
    ("kind", "tokens", "heads", "size", "one_kernel"),
    [
        ("plain", 1024, 1, 16, True),
        ("plain", 1016, 1, 16, False),  # too few scores
        ("plain", 1021, 2, 16, False),  # a prime: there is no block of them
        ("plain", 901, 2, 16, False),  # 17 times 53: no tile has as many rows
        ("plain", 1040, 1, 12, False),  # values that fill no vectors
        ("plain", 1030, 1, 16, True),  # keys that fill none: scores are products by a factor
        ("more", 1030, 1, 16, False),  # and here they are not
        ("less", 1030, 1, 16, False),  # nor is the largest product the largest score
        ("more", 1032, 1, 8, True),
        ("masked", 1032, 1, 16, True),  # keys that fill vectors of eight, not of sixteen
        ("masked", 1030, 1, 16, False),
    ],
)
@pytest.mark.parametrize("processor", ["x86-64-v3", "x86-64-v4", "x86-64"])
def test_attention_is_one_kernel_where_its_scores_are_many_and_there_are_blocks_of_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processor: str,
    kind: str,
    tokens: int,
    heads: int,
    size: int,
    one_kernel: bool,
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    target = parse_target(f"llvm:mcpu={processor}:num-cores=2")
    for name, value in (("TOKENS", tokens), ("HEADS", heads), ("SIZE", size)):
        monkeypatch.setattr(attentions, name, value)
    monkeypatch.setattr(attentions, "HIDDEN", heads * size)
    model = tmp_path / "m.onnx"
    model.write_bytes(attentions.network(kind).SerializeToString())
    run_import(ImportRequest(model, tmp_path / "program", target))
    program = load_program(tmp_path / "program")
    names = {task.name for task in program.tasks}
    assert ("attention" in names) == one_kernel
    assert any(name.startswith("softmax") for name in names) != one_kernel
    for task in program.tasks:
        if task.name == "attention":
            workload = replay.load_workload(program.workload(task.id))
            assert design_space(workload, target).modelled()
