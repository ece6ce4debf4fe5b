"""Attention of bfloat16 in matrix registers: one kernel, and the right result, however a network
has it."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.bench import Bench, needs, whole_answer
from tests.frontend import test_relax_attention as attentions
from tunefarm.devices.target import parse_target
from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.frontend.importer import ImportRequest, run_import
from tunefarm.frontend.onnx.writer import Writer
from tunefarm.frontend.program import Program, TuningTask, load_program

pytestmark = pytest.mark.tvm

ROUNDING = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")


@pytest.fixture
def attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports a network with attention of a kind, and sizes."""

    def imported(
        kind: str, tokens: int, size: int = 16, heads: int = 3, target=ROUNDING
    ) -> tuple[Program, TuningTask]:
        sizes = {"TOKENS": tokens, "SIZE": size, "HEADS": heads, "HIDDEN": size * heads}
        for name, value in sizes.items():
            monkeypatch.setattr(attentions, name, value)
        model = tmp_path / "m.onnx"
        model.write_bytes(attentions.network(kind).SerializeToString())
        run_import(ImportRequest(model, tmp_path / "program", target))
        program = load_program(tmp_path / "program")
        (task,) = (one for one in program.tasks if one.name == "attention")
        return program, task

    return imported


@pytest.mark.parametrize(
    ("kind", "tokens", "size"),
    [
        *((kind, 48, 16) for kind in ("plain", "batches", "scaled", "masked", "chosen", "factor")),
        *((kind, 32, 16) for kind in ("by", "shared", "packed", "grouped", "less", "more")),
        *((kind, tokens, 16) for kind in ("blind", "seeing") for tokens in (32, 16)),
        ("deeper", 32, 16),
        *(("turned", tokens, 16) for tokens in (32, 37)),  # neighbours are far apart
        *((kind, 37, 16) for kind in ("plain", "masked", "chosen", "shared")),  # no whole registers
        *(("plain", tokens, size) for tokens, size in ((16, 64), (100, 40), (64, 96), (130, 33))),
    ],
)
def test_attention_in_matrix_registers_is_right(
    tmp_path: Path, workers, attention, kind: str, tokens: int, size: int
) -> None:
    from tunefarm.search.spaces import design_space

    needs("amx_bf16")
    program, task = attention(kind, tokens, size)
    bench = Bench(program, task, ROUNDING, workers, tmp_path)
    bench.check_some(design_space(bench.workload, ROUNDING), "matrix-attention")


@pytest.mark.parametrize("tokens", [48, 37])
def test_queries_that_see_nothing_are_given_nothing(tmp_path: Path, attention, tokens: int) -> None:
    """Masked throughout by infinity, where the network has a guard for that."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    needs("amx_bf16")
    program, task = attention("blind", tokens)
    workload = replay.load_workload(program.workload(task.id))
    space = design_space(workload, ROUNDING)
    proposal = space.realise(min(space.modelled(), key=lambda one: one.seconds).point, 0)
    x = np.random.default_rng(0).normal(size=(1, tokens, 48)).astype(np.float32)
    given = whole_answer(program, ROUNDING, {task.id: proposal.trace}, tmp_path / "m.so", [x])
    session = onnxruntime.InferenceSession(attentions.network("blind").SerializeToString())
    (wanted,) = session.run(None, {"hidden": x})
    assert not wanted[0, 2].any()
    assert wanted[0, 3].any()
    np.testing.assert_array_equal(given[0][0, 2], wanted[0, 2])
    np.testing.assert_allclose(given[0], wanted, atol=0.05 * abs(wanted).max())


@pytest.mark.parametrize(("kind", "moved"), [("plain", True), ("turned", False)])
def test_every_point_multiplies_in_registers_that_are_there(
    attention, kind: str, moved: bool
) -> None:
    """And what lies in rows is brought into order by instructions of vectors."""
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space

    program, task = attention(kind, 100, 40)
    workload = replay.load_workload(program.workload(task.id))
    known = design_space(workload, ROUNDING).modelled()
    assert len(known) > 10
    for one in known:
        proposal = design_space(workload, ROUNDING).realise(one.point, 0)
        assert proposal is not None
        text = str(replay.scheduled_function(workload, ROUNDING, proposal.trace))
        assert _products(text) == 2
        called = [f'"tunefarm_paired_{name}"' in text for name in ("turned", "woven", "laid")]
        assert called == [moved] * 3


def _products(text: str) -> int:
    """How many there are: each clears registers, loads others, multiplies, and stores the first."""
    number = r"T\.int8\((\d+)\)"
    kinds = "zero|loadd64|stored64|tdpbf16ps"
    called = re.findall(rf'\.(?:tile)?({kinds})", {number}(?:, {number}, {number})?', text)
    found, sums, stored = 0, set[int](), False
    for kind, *given in called:
        registers = {int(one) for one in given if one}
        assert registers <= set(range(8))
        if kind == "zero":
            found, sums = (
                (found + 1, registers) if stored or not found else (found, sums | registers)
            )
        elif kind == "tdpbf16ps":
            assert len(registers) == 3
            assert int(given[0]) in sums
            assert len(registers & sums) == 1
        else:
            assert (registers <= sums) == (kind == "stored64")
        stored = kind == "stored64"
    return found


def test_a_processor_without_such_registers_is_offered_none_and_refuses_its_points(
    attention,
) -> None:
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space
    from tunefarm.search.spaces.matrix_attention.space import MATRIX_ATTENTIONS

    program, task = attention("plain", 48)
    workload = replay.load_workload(program.workload(task.id))
    space = design_space(workload, ROUNDING)
    proposal = space.realise(space.modelled()[0].point, 0)
    assert proposal is not None
    without = parse_target("llvm:mcpu=znver4:num-cores=2:precision=bfloat16")
    assert MATRIX_ATTENTIONS.space(workload, without) is None
    with pytest.raises(replay.InvalidTrace, match="does not fit"):
        replay.scheduled_function(workload, without, proposal.trace)


def _across(batch: int, heads: int, sizes: tuple[int, int, int, int], mask: tuple[int, ...]) -> Any:
    """A network with attention of some rows to others.

    Args:
        sizes: queries, keys, terms of either, and what a value has.
        mask: the shape of what is added to scores, nothing for none.
    """
    queries, keys, deep, wide = sizes
    writer, hidden = Writer(3), 24

    def heads_of(x: str, count: int, size: int, order: list[int]) -> str:
        weights = writer.constant(writer.normal(hidden, heads * size) / np.sqrt(hidden))
        apart = writer.integers([batch, count, heads, size])
        made = writer.node("Reshape", writer.node("MatMul", x, weights), apart)
        return writer.node("Transpose", made, perm=order)

    def first(count: int) -> str:
        return writer.node("Slice", "hidden", *(writer.integers([n]) for n in (0, count, 1)))

    q = heads_of(first(queries), queries, deep, [0, 2, 1, 3])
    k = heads_of(first(keys), keys, deep, [0, 2, 3, 1])
    v = heads_of(first(keys), keys, wide, [0, 2, 1, 3])
    scores = writer.node("MatMul", q, k)
    if mask:
        scores = writer.node("Add", scores, writer.constant(writer.normal(*mask)))
    mixed = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), v)
    mixed = writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
    made = (batch, queries, heads * wide)
    result = writer.node("Reshape", mixed, writer.integers(made))
    given = (batch, max(queries, keys), hidden)
    return writer.model("m", ("hidden", given), ("result", result, made), opset=17)


@pytest.mark.parametrize(
    ("batch", "heads", "sizes", "mask"),
    [
        (1, 2, (20, 70, 16, 16), ()),
        (1, 2, (16, 49, 16, 40), (1, 49)),
        (1, 2, (75, 16, 24, 16), (75, 1)),
        (2, 3, (33, 35, 9, 21), (2, 1, 1, 35)),
        (2, 3, (48, 48, 200, 16), (3, 48, 48)),
        (3, 2, (17, 32, 64, 260), (1, 2, 1, 32)),
    ],
)
def test_sizes_are_told_from_each_other(
    tmp_path: Path,
    workers,
    batch: int,
    heads: int,
    sizes: tuple[int, int, int, int],
    mask: tuple[int, ...],
) -> None:
    """Queries from keys, terms from values, batches from heads, and what a mask is for."""
    needs("amx_bf16")
    model = tmp_path / "m.onnx"
    model.write_bytes(_across(batch, heads, sizes, mask).SerializeToString())
    run_import(ImportRequest(model, tmp_path / "program", ROUNDING))
    program = load_program(tmp_path / "program")
    (task,) = (one for one in program.tasks if one.name == "attention")
    bench = Bench(program, task, ROUNDING, workers, tmp_path)
    space = design_space_of(bench)
    known = space.modelled()
    assert {space.describe(one.point).family for one in known} == {"matrix-attention"}
    for place, one in enumerate(random.Random(1).sample(known, 2)):
        bench.check(space.realise(one.point, 0), str(place))


@pytest.mark.parametrize("sizes", [(20, 15, 16, 16), (15, 20, 16, 16)])
def test_fewer_than_fill_a_register_are_not_worth_it(
    tmp_path: Path, sizes: tuple[int, int, int, int]
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(_across(1, 2, sizes, ()).SerializeToString())
    run_import(ImportRequest(model, tmp_path / "program", ROUNDING))
    tasks = load_program(tmp_path / "program").tasks
    assert not [task for task in tasks if task.name == "attention"]


@pytest.mark.parametrize("tokens", [37, 48, 77])
@pytest.mark.parametrize("masked", ["least", "nothing", "both", "added"])
def test_rows_that_are_masked_throughout_are_what_they_are_in_the_network(
    tmp_path: Path, workers, attention, tokens: int, masked: str
) -> None:
    """By the least of numbers all keys count alike; by minus infinity nothing is a number; keys
    that only fill registers up count nowhere."""
    import tvm

    needs("amx_bf16")
    heads, size = 3, 16
    program, task = attention("masked", tokens, size, heads)
    bench = Bench(program, task, ROUNDING, workers, tmp_path)
    space = design_space_of(bench)
    library = bench.build(space.realise(space.modelled()[0].point, 0).trace, "any")
    rng, least = np.random.default_rng(0), np.finfo(np.float32).min
    given = [rng.normal(size=one.shape).astype(np.float32) for one in task.args[:3]]
    mask, fill = np.zeros(task.args[3].shape, np.float32), -np.inf
    if masked in ("least", "added"):
        fill = least
    mask[..., 5:] = mask[..., 3:9, :] = fill
    if masked == "both":
        mask[..., 3:9, 2] = least
    if masked == "added":
        mask[..., 4, :] = -np.inf
        mask[..., 4, 1] = least
    rounded = [one.astype(numpy_dtype("bfloat16")) for one in given]
    result = np.zeros(task.args[4].shape, numpy_dtype(task.args[4].dtype))
    tensors = [tvm.runtime.tensor(one) for one in (*rounded, mask, result)]
    tvm.runtime.load_module(str(library.path))["kernel"](*tensors)
    wanted = _mixed(rounded, tokens, heads, size, mask).reshape(result.shape)
    got = tensors[4].numpy().astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(np.nan_to_num(got), np.nan_to_num(wanted), rtol=0, atol=0.02)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 3000.0])
def test_scores_that_are_equal_or_far_apart_are_weighed_rightly(
    tmp_path: Path, workers, attention, scale: float
) -> None:
    """All of one size count alike, of those far apart the largest alone; nothing overflows."""
    import tvm

    needs("amx_bf16")
    tokens, heads, size = 75, 3, 16
    program, task = attention("plain", tokens, size, heads)
    bench = Bench(program, task, ROUNDING, workers, tmp_path)
    space = design_space_of(bench)
    proposal = space.realise(space.modelled()[0].point, 0)
    kernel = tvm.runtime.load_module(str(bench.build(proposal.trace, "any").path))
    rng, bfloat16 = np.random.default_rng(0), numpy_dtype("bfloat16")
    given = [rng.normal(size=spec.shape) for spec in task.args[:3]]
    given[0] *= scale
    rounded = [one.astype(np.float32).astype(bfloat16) for one in given]
    result = np.zeros(task.args[3].shape, numpy_dtype(task.args[3].dtype))
    tensors = [tvm.runtime.tensor(one) for one in (*rounded, result)]
    kernel["kernel"](*tensors)
    wanted = _mixed(rounded, tokens, heads, size).reshape(result.shape)
    np.testing.assert_allclose(tensors[3].numpy().astype(np.float64), wanted, rtol=0, atol=0.02)


def _mixed(given: Any, tokens: int, heads: int, size: int, mask: Any = 0.0) -> Any:
    """In double precision, but for scores, of which a mask leaves what single precision does."""
    q, k, v = (
        one.astype(np.float64).reshape(tokens, heads, size).transpose(1, 0, 2) for one in given
    )
    scores = (q @ k.transpose(0, 2, 1) / size**0.5).astype(np.float32)
    scores = (scores + np.asarray(mask, np.float32).reshape(-1, *np.shape(mask)[-1:])).astype("f8")
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2)


def design_space_of(bench: Bench) -> Any:
    from tunefarm.search.spaces import design_space

    return design_space(bench.workload, ROUNDING)
