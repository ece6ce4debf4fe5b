"""Tiles of attention: what fits, which kernels are attention, and that a trace stands for one
kernel. What these compute: ``tests/measure/cuda/emulator/test_attention.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.devices.gpu import arch_of, completed
from tunefarm.devices.target import parse_target
from tunefarm.frontend.relax.one_attention import FEWEST_ROWS, MOST_DEEP
from tunefarm.search.spaces.attention_tile.tile import (
    AttentionTile,
    Figures,
    Plan,
    expected_s,
    figures_of,
    possible,
)
from tunefarm.search.spaces.tensor_tile.tile import Cores, Feed

CUDA = completed(parse_target("cuda:arch=sm_80"))
ARCHS = {n: arch_of(parse_target(f"cuda:arch=sm_{n}")) for n in (75, 80, 86, 90, 120)}
LONG = Figures(32, 4096, 4096, 64, 64, "float16", (True, True, False), (16, 16, 16))
TILE = AttentionTile(4, 1, 64, 2)

figures = st.builds(
    Figures,
    batches=st.integers(1, 100_000),
    rows=st.integers(FEWEST_ROWS, 5000),
    keys=st.integers(1, 5000),
    depth=st.integers(1, MOST_DEEP),
    columns=st.integers(1, MOST_DEEP),
    dtype=st.just("float16"),
    deep=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    pieces=st.tuples(*[st.sampled_from([2, 4, 8, 16])] * 3),
    boxes=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(figures, st.sampled_from([80, 86, 90, 120]))
def test_all_that_is_gathered_has_tiles_that_fit(of: Figures, number: int) -> None:
    arch = ARCHS[number]
    found = list(possible(of, arch))
    assert found, "else its kernel would have no schedule"
    assert len(set(found)) == len(found)
    for tile in found:
        plan = Plan(of, tile)
        assert plan.fits(arch)
        assert plan.shared_bytes <= arch.shared
        assert (plan.blocks - 1) * tile.rows < of.rows <= plan.blocks * tile.rows
        assert (plan.steps - 1) * tile.keys < of.keys <= plan.steps * tile.keys
        assert tile.stages <= plan.steps
        assert tile.cores is Cores.WARPS or arch.warp_groups
        assert tile.feed is Feed.THREADS or (of.boxes and tile.cores is Cores.GROUPS)
        more, fewer = plan.shared_registers or (plan.registers, plan.registers)
        beside = tile.threads - tile.multiplying
        assert tile.multiplying * more + beside * fewer <= arch.registers
        assert plan.values_at % 1024 == plan.stage_bytes % 1024 == 0, "where tiles may begin"
        least = of.batches * of.rows * of.keys * (of.depth + of.columns)
        peak = arch.tensor_lanes * arch.multiprocessors * 1.4e9
        assert expected_s(plan, arch) > least / peak, "nothing is faster than the multiplying"


@pytest.mark.parametrize(
    "change",
    [
        {"keys": 24},
        {"keys": 0},
        {"warps": 64},
        {"down": 4, "keys": 128},  # registers
        {"stages": 1},
        {"stages": 65},
        {"keys": 128, "stages": 8},  # shared memory
        {"warps": 16, "keys": 32, "cores": Cores.GROUPS, "feed": Feed.ENGINE},
    ],
)
def test_what_no_block_can_have_does_not_fit(change: dict[str, int]) -> None:
    assert Plan(LONG, TILE).fits(ARCHS[80])
    assert not Plan(LONG, replace(TILE, **change)).fits(ARCHS[80])
    assert not Plan(LONG, TILE).fits(ARCHS[75]), "which copies nothing aside"


def test_groups_are_hoppers_and_whole_and_the_engine_feeds_nobody_else() -> None:
    boxes = replace(LONG, boxes=True)
    groups = AttentionTile(8, 1, 64, 3, Cores.GROUPS)
    fed = replace(groups, feed=Feed.ENGINE)
    for tile in (groups, fed, replace(groups, warps=12), replace(fed, stages=2)):
        assert Plan(boxes, tile).fits(ARCHS[90])
        assert not Plan(boxes, tile).fits(ARCHS[120])
        assert not Plan(boxes, replace(tile, down=2)).fits(ARCHS[90])
        assert not Plan(boxes, replace(tile, warps=6)).fits(ARCHS[90])
    assert not Plan(boxes, replace(groups, stages=2)).fits(ARCHS[90]), "one is mixed meanwhile"
    assert not Plan(LONG, fed).fits(ARCHS[90])
    assert not Plan(boxes, replace(fed, cores=Cores.WARPS)).fits(ARCHS[90])
    wide = replace(boxes, depth=128, columns=128)
    assert Plan(wide, fed).shared_registers is None
    assert Plan(wide, replace(fed, keys=128)).shared_registers == (240, 24)
    best = min(possible(wide, ARCHS[90]), key=lambda one: expected_s(Plan(wide, one), ARCHS[90]))
    assert best.feed is Feed.ENGINE


def test_one_step_needs_one_stage() -> None:
    short = replace(LONG, keys=64)
    assert Plan(short, replace(TILE, stages=1)).fits(ARCHS[80])
    assert not Plan(short, TILE).fits(ARCHS[80])


def test_the_hardware_model_reads_keys_for_many_queries_at_a_time() -> None:
    best = min(possible(LONG, ARCHS[80]), key=lambda one: expected_s(Plan(LONG, one), ARCHS[80]))
    assert best.rows >= 64
    few = replace(LONG, batches=4, rows=64)
    alone = min(possible(few, ARCHS[80]), key=lambda one: expected_s(Plan(few, one), ARCHS[80]))
    assert alone.rows < best.rows, "blocks for more of the multiprocessors"
    assert figures_of(few) != figures_of(LONG)


@pytest.mark.tvm
def test_kernels_are_read_as_attention() -> None:
    """Wherever heads lie, and whatever is done to the scores."""
    from tests.products import whole_attention
    from tunefarm.search.spaces.attention_tile.attention import attention_of

    one = attention_of(whole_attention("float16", 2, 3, (50, 70, 40, 24)))
    assert one is not None
    assert (one.batches, one.sizes, one.dtype) == (6, (50, 70, 40, 24), "float16")
    assert (one.queries.deep, one.keys.deep, one.values.deep) == (True, True, False)
    assert one.factor == pytest.approx(40**-0.5)
    assert one.sides[0].tensor is not None
    apart = attention_of(whole_attention("bfloat16", 1, 2, (50, 70, 40, 24), "", apart=True))
    assert apart is not None
    assert (apart.keys.deep, apart.factor) == (False, 1.0)
    for scores in ("mask", "causal"):
        other = attention_of(whole_attention("float16", 1, 2, (50, 70, 40, 24), scores))
        assert other is not None
        assert other.factor is None


@pytest.mark.tvm
def test_other_kernels_are_no_attention() -> None:
    from tests.products import product, whole_attention
    from tests.rows import softmax
    from tunefarm.search.spaces.attention_tile.attention import attention_of
    from tunefarm.search.spaces.attention_tile.space import ATTENTION_TILES

    assert attention_of(product("float16", (32, 32, 32))) is None
    assert attention_of(softmax("float16", 32, 64)) is None
    assert attention_of(whole_attention("float32", 1, 1, (32, 32, 32, 32))) is None
    module = whole_attention("float16", 1, 1, (32, 32, 32, 32))
    assert ATTENTION_TILES.space(module, CUDA) is not None
    assert ATTENTION_TILES.space(module, parse_target("llvm")) is None
    assert ATTENTION_TILES.space(module, completed(parse_target("cuda:arch=sm_75"))) is None


@pytest.mark.tvm
def test_results_of_anything_else_are_no_attention() -> None:
    """Of another stage than the last product, or of fewer axes."""
    from tvm import te, topi

    from tests.paper_gpu import workload
    from tunefarm.search.spaces.attention_tile.attention import attention_of

    x = te.placeholder((4, 8, 16), "float32", "x")
    total = topi.sum(topi.abs(x), axis=-1)
    beside = topi.subtract(total, topi.max(total, axis=-1, keepdims=True))
    assert attention_of(workload([x, topi.sum(topi.sum(beside, axis=-1))])) is None
    assert attention_of(_attention_and("")) is not None
    assert attention_of(_attention_and("argument")) is not None
    for other in ("scores", "stage"):
        found = attention_of(_attention_and(other))
        assert found is None or other == "stage", other
        if found is not None:  # what it was made of was put in its place
            assert {str(one.source.name) for one in _loads(found.finished)} == {"mixed", "other"}


def _loads(value: Any) -> list[Any]:
    from tunefarm.search.spaces.expressions import loads_of

    return loads_of(value)


def _attention_and(other: str) -> Any:
    """One head of 32 queries, keys and columns, and something added to the result: an argument, a
    stage that is made of one before anything else, or the scores."""
    from tvm import te, topi

    from tests.paper_gpu import workload

    q, k, v, o = (te.placeholder((32, 32), "float16", name) for name in ("q", "k", "v", "other"))
    early = topi.nn.relu(o)
    d, j = te.reduce_axis((0, 32), "d"), te.reduce_axis((0, 32), "j")

    def wide(tensor: Any, *place: Any) -> Any:
        return tensor[place].astype("float32")

    scores = te.compute((32, 32), lambda i, j: te.sum(wide(q, i, d) * wide(k, j, d), d), "scores")
    weights = topi.cast(topi.nn.softmax(scores, axis=-1), "float16")
    mixed = te.compute(
        (32, 32), lambda i, c: te.sum(wide(weights, i, j) * wide(v, j, c), j), "mixed"
    )
    made = topi.cast(mixed, "float16")
    beside = {"argument": o, "stage": early, "scores": topi.cast(scores, "float16")}.get(other)
    inputs = [q, k, v] if other in ("", "scores") else [q, k, v, o]
    return workload([*inputs, made if beside is None else topi.add(made, beside)])


def _changed(text: str, old: str, new: str) -> Any:
    import tvm

    assert text.count(old) == 1, (text, old)
    return tvm.script.from_source(text.replace(old, new))


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The largest of something else than what is weighed.
        ("T.max(T_softmax_maxelem[v_i0, v_i1, v_i2], T_multiply[v_i0, v_i1, v_i2, v_k])",
         "T.max(T_softmax_maxelem[v_i0, v_i1, v_i2], scores[v_i0, v_i1, v_i2, v_k])"),
        # No exponential.
        ("T.exp(", "T.tanh("),
        # Not by the sum.
        ("T_softmax_exp[v_i0, v_i1, v_i2, v_i3] / T_softmax_expsum[v_i0, v_i1, v_i2]",
         "T_softmax_exp[v_i0, v_i1, v_i2, v_i3] / T_softmax_maxelem[v_i0, v_i1, v_i2]"),
        # By another row's.
        ("T_softmax_exp[v_i0, v_i1, v_i2, v_i3] / T_softmax_expsum[v_i0, v_i1, v_i2]",
         "T_softmax_exp[v_i0, v_i1, v_i2, v_i3] / T_softmax_expsum[v_i0, v_i1, 31 - v_i2]"),
        # Sums that begin with something.
        ("T_softmax_expsum[v_i0, v_i1, v_i2] = T.float32(0.0)",
         "T_softmax_expsum[v_i0, v_i1, v_i2] = T.float32(1.0)"),
        ("mixed[v_b, v_h, v_i, v_c] = T.float32(0.0)",
         "mixed[v_b, v_h, v_i, v_c] = T.float32(1.0)"),
        # A largest that may be too large.
        ("T.float32(-340282346638528859811704183484516925440.0)", "T.float32(0.0)"),
        # A result that is not all of it.
        ("T_transpose[v_ax0, v_ax1, v_ax2, v_ax3] = compute_1[v_ax0, v_ax2, v_ax1, v_ax3]",
         "T_transpose[v_ax0, v_ax1, v_ax2, v_ax3] = compute_1[v_ax0, v_ax2, v_ax1, T.int64(0)]"),
    ],
    ids=["largest", "weight", "divisor", "row", "first sum", "first mixed", "bound", "result"],
)  # fmt: skip
def test_what_only_looks_like_attention_is_none(old: str, new: str) -> None:
    from tests.products import whole_attention
    from tunefarm.search.spaces.attention_tile.attention import attention_of

    text = whole_attention("float16", 1, 2, (32, 32, 32, 32)).script()
    assert attention_of(_changed(text, old, new)) is None


@pytest.mark.tvm
def test_what_ends_in_something_that_nobody_reads_is_none() -> None:
    """Its result is the weights, and what they are multiplied for is thrown away."""
    import tvm

    from tunefarm.search.spaces.attention_tile.attention import attention_of

    text = _attention_and("").script()
    result, weights = "compute: T.Buffer(", "compute_1 = T.sblock_alloc_buffer("
    assert text.count(result) == text.count(weights) == 1
    swapped = text.replace(weights, weights.replace("_1", ""))
    swapped = swapped.replace(result, result.replace("compute", "compute_1"))
    assert attention_of(tvm.script.from_source(swapped)) is None


@pytest.mark.tvm
def test_a_trace_stands_for_one_kernel() -> None:
    from tests.products import whole_attention
    from tests.written import traces_stand_for_kernels
    from tunefarm.search import replay
    from tunefarm.search.spaces import design_space
    from tunefarm.search.spaces.attention_tile.space import ATTENTION_TILES

    module = whole_attention("float16", 1, 2, (64, 96, 64, 64), "mask")
    space = ATTENTION_TILES.space(module, CUDA)
    assert space is not None
    traces_stand_for_kernels(space, module, CUDA, (0, len(space.ways) - 1))
    whole = design_space(module, CUDA)
    about = whole.describe(min(whole.modelled(), key=lambda one: one.seconds).point)
    assert about is not None
    assert about.family == "attention-tile"
    function = module["main"]
    good = "attention-tile warps=2 down=1 keys=32 stages=2"
    assert not replay.in_full(function, CUDA, good).same_as(function)
    for words in ("attention-tile warps=2", good.replace("keys=32", "keys=24"), f"{good} a=1"):
        with pytest.raises(replay.InvalidTrace):
            replay.in_full(function, CUDA, words)
