"""Tiles of products on a GPU's tensor cores: what fits, where elements lie, which kernels are
products, and that a trace stands for one kernel. What these compute:
``tests/measure/cuda/emulator/test_tiles.py``."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunefarm.devices.gpu import arch_of, completed
from tunefarm.devices.target import parse_target
from tunefarm.search.spaces.tensor_tile.tile import (
    Cores,
    Feed,
    Plan,
    TensorTile,
    expected_s,
    possible,
)
from tunefarm.search.spaces.tensor_tile.tiling import Matrices, figures_of

A100, H100, TURING = (arch_of(parse_target(f"cuda:arch=sm_{n}")) for n in (80, 90, 75))
SQUARE = Matrices(1, 4096, 4096, 4096, "float16", "float32", 2, True, False, (16, 16), True)
TILE = TensorTile(Cores.WARPS, 128, 128, 32, 4, 2, 2)
GROUPS = TensorTile(Cores.GROUPS, 128, 256, 64, 4, 8, 1)
FED = replace(GROUPS, feed=Feed.ENGINE)

matrices = st.builds(
    Matrices,
    batches=st.integers(1, 16),
    rows=st.integers(1, 5000),
    columns=st.integers(16, 5000),
    length=st.integers(16, 9000),
    dtype=st.just("float16"),
    sums=st.just("float32"),
    element_bytes=st.just(2),
    left_deep=st.booleans(),
    right_deep=st.booleans(),
    pieces=st.sampled_from([(16, 16), (8, 16), (4, 4), (2, 16), (2, 2)]),
    boxes=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=15)
@given(matrices, st.sampled_from([A100, H100]))
def test_every_tile_fits_and_wastes_no_block(of: Matrices, arch: Any) -> None:
    found = list(possible(of, arch))
    assert len(set(found)) == len(found)
    for tile in found:
        plan = Plan(of, tile)
        assert plan.fits(arch)
        assert plan.shared_bytes <= arch.shared
        down, across = plan.grid
        assert (down - 1) * tile.rows < of.rows <= down * tile.rows
        assert (across - 1) * tile.columns < of.columns <= across * tile.columns
        assert plan.steps * tile.depth * tile.split >= of.length
        assert plan.steps * tile.depth * (tile.split - 1) < of.length, "the last has terms too"
        assert tile.cores is Cores.WARPS or arch.warp_groups
        assert tile.feed is Feed.THREADS or (of.boxes and tile.cores is Cores.GROUPS)
        assert tile.cluster == 1 or (tile.feed is Feed.ENGINE and down % tile.cluster == 0)
        least = of.batches * of.rows * of.columns * of.length
        peak = arch.tensor_lanes * arch.multiprocessors * 1.4e9
        assert expected_s(plan, arch) > least / peak, "nothing is faster than the multiplying"


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 120},
        {"columns": 120},
        {"depth": 24},
        {"stages": 1},
        {"depth": 0},
        {"across": 0},
        {"split": 0},
        {"band": -1},
        {"stages": 16},
        {"down": 1, "across": 1},
        {"down": 16, "across": 4},
        {"rows": 512, "columns": 512},
        {"cores": Cores.GROUPS},
    ],
)
def test_what_no_block_can_have_does_not_fit(change: dict[str, Any]) -> None:
    assert Plan(SQUARE, TILE).fits(A100)
    assert not Plan(SQUARE, replace(TILE, **change)).fits(A100)


@pytest.mark.parametrize(
    "change",
    [{"down": 4}, {"across": 2}, {"stages": 2}, {"columns": 512}, {"rows": 96, "down": 6}],
)
def test_groups_are_of_four_warps_each_with_sixteen_rows(change: dict[str, Any]) -> None:
    assert Plan(SQUARE, GROUPS).fits(H100)
    assert not Plan(SQUARE, GROUPS).fits(A100)
    assert not Plan(SQUARE, replace(GROUPS, **change)).fits(H100)
    if "stages" not in change:  # of which the engine needs one less
        assert not Plan(SQUARE, replace(FED, **change)).fits(H100)


def test_the_copy_engine_feeds_groups_whose_operands_are_boxes() -> None:
    assert Plan(SQUARE, FED).fits(H100)
    assert Plan(SQUARE, FED).tile.threads == GROUPS.threads + 32
    assert not Plan(SQUARE, replace(FED, stages=1)).fits(H100)
    assert not Plan(replace(SQUARE, boxes=False), FED).fits(H100)
    assert not Plan(SQUARE, replace(TILE, feed=Feed.ENGINE)).fits(H100)
    plan = Plan(SQUARE, FED)
    assert plan.barriers_at % 8 == 0
    assert plan.barriers_at >= max(FED.stages * plan.stage_bytes, FED.rows * plan.laid_row)


@pytest.mark.parametrize(
    ("change", "of"),
    [
        ({"feed": Feed.THREADS}, {}),
        ({"split": 2}, {}),
        ({"cluster": 3}, {}),  # of 32 tiles by rows
        ({"cluster": 16}, {}),
        ({"cluster": 0}, {}),
        ({}, {"rows": 4096 + 128}),
        ({"columns": 64, "cluster": 8}, {"right_deep": True}),  # eight lines, but of 64 bytes
    ],
)
def test_blocks_of_a_cluster_have_whole_shares(change: dict[str, Any], of: dict[str, Any]) -> None:
    pairs = replace(FED, cluster=2)
    assert Plan(SQUARE, pairs).fits(H100)
    assert Plan(SQUARE, replace(FED, cluster=4)).fits(H100)
    changed = replace(SQUARE, **of)
    depth = {"depth": 32} if "right_deep" in of else {}
    assert not Plan(changed, replace(pairs, **depth, **change)).fits(H100)
    assert expected_s(Plan(SQUARE, pairs), H100) < expected_s(Plan(SQUARE, FED), H100)


@pytest.mark.slow
def test_bytes_that_would_have_to_be_turned_have_no_tiles() -> None:
    whole = replace(SQUARE, dtype="int8", sums="int32", element_bytes=1)
    assert not list(possible(whole, A100))
    assert any(possible(replace(whole, right_deep=True), A100))
    single = replace(SQUARE, dtype="float32", element_bytes=4)
    assert any(possible(single, A100))
    assert not list(possible(replace(single, left_deep=False), A100))
    grouped = [tile for tile in possible(single, H100) if tile.cores is Cores.GROUPS]
    assert {tile.feed for tile in grouped} == {Feed.ENGINE}, "which rounds them"
    assert not any(
        tile.cores is Cores.GROUPS for tile in possible(replace(single, boxes=False), H100)
    )


def test_words_across_the_sum_change_places_with_those_along_it() -> None:
    """Threads read them for a group's rows, each of another bank, and once each."""
    single = replace(SQUARE, dtype="float32", element_bytes=4)
    tile = replace(FED, rows=192, columns=128, depth=32)
    plan = Plan(single, tile)
    assert plan.fits(H100)
    assert (plan.shape.left, plan.shape.right) == plan.sides[::-1]
    assert plan.held == 96
    deep = Plan(replace(single, right_deep=True), replace(tile, rows=128, columns=256))
    assert deep.fits(H100)
    assert (deep.shape.left, deep.shape.right) == deep.sides
    assert not Plan(single, deep.tile).fits(H100), "columns are a group's rows"
    right, read = plan.sides[1], set()
    for warp, (row, step) in itertools.product(range(8), itertools.product((0, 8), range(4))):
        for later in (0, 4):
            places = [
                (turned_line(32 * warp + lane, row), 8 * step + lane % 4 + later)
                for lane in range(32)
            ]
            assert len({right.offset(*place) % 128 for place in places}) == 32
            read |= set(places)
    assert read == set(itertools.product(range(128), range(32)))


def turned_line(thread: int, row: int) -> int:
    """Which line of a tile a thread reads for a row of the fragment that its warp has: what the
    text computes (`device_text._PIECE`)."""
    lane = thread % 32
    piece = thread // 64 * 8 + thread // 32 % 2 * 2 + lane // 16 * 4 + row // 8
    return piece * 4 + lane // 4 % 4


@pytest.mark.slow
def test_the_hardware_model_prefers_what_people_would() -> None:
    def best(of: Matrices, arch: Any) -> TensorTile:
        return min(possible(of, arch), key=lambda tile: expected_s(Plan(of, tile), arch))

    assert best(SQUARE, H100).cores is Cores.GROUPS
    assert best(SQUARE, H100).feed is Feed.ENGINE
    assert best(replace(SQUARE, boxes=False), H100).feed is Feed.THREADS
    large = best(SQUARE, A100)
    assert large.rows * large.columns >= 128 * 128
    assert large.split == 1
    deep = replace(SQUARE, rows=128, columns=128, length=16384)
    assert best(deep, A100).split > 1, "two hundred steps for one block, and a hundred idle ones"
    small = best(replace(SQUARE, rows=64, columns=64, length=64), A100)
    assert small.rows * small.columns < 64 * 64
    short = replace(SQUARE, batches=12, rows=512, columns=64, length=512)
    assert best(short, H100).feed is Feed.THREADS, "the engine has to be told of it first"


def test_figures_tell_products_and_tiles_apart() -> None:
    other = replace(SQUARE, right_deep=True)
    assert figures_of(SQUARE) != figures_of(other)
    assert TILE.coordinates() != replace(TILE, stages=5).coordinates()
    assert GROUPS.coordinates() != FED.coordinates()


# ------------------------------------------------------------------------- with the compiler

CUDA = completed(parse_target("cuda:arch=sm_80"))


@pytest.mark.tvm
def test_kernels_are_read_as_products() -> None:
    from tests.products import convolution, product
    from tunefarm.search.spaces.tensor_tile.product import product_of

    def read(module: Any) -> tuple[Any, ...] | None:
        found = product_of(module)
        if found is None:
            return None
        sides = (found.left, found.right)
        return (
            *(found.batches, found.rows, found.columns, found.length, len(found.after)),
            *((one.deep, one.piece, one.condition is not None) for one in sides),
        )

    deep, flat = (True, 8, False), (False, 8, False)
    assert read(product("float16", (64, 96, 128))) == (1, 64, 96, 128, 1, deep, flat)
    both = product("float16", (64, 96, 128), (True, True), 3, "bias")
    assert read(both) == (3, 64, 96, 128, 3, flat, deep)
    assert read(product("int8", (64, 96, 64), (False, True))) == (
        *(1, 64, 96, 64, 0),
        *((True, 16, False), (True, 16, False)),
    )
    odd = product("float16", (33, 36, 34))
    assert read(odd) == (1, 33, 36, 34, 1, (True, 2, False), (False, 4, False))
    padded = convolution("float16", (14, 14, 32), 64, 3, 2)
    assert read(padded) == (1, 49, 64, 288, 1, (True, 8, True), flat)
    assert read(convolution("float32", (14, 14, 32), 64, 1)) == (
        *(1, 196, 64, 32, 0),
        *((True, 4, False), (False, 4, False)),
    )
    singles = product("float16", (33, 35, 17))
    assert read(singles) == (1, 33, 35, 17, 1, (True, 1, False), (False, 1, False))
    colours = convolution("float16", (14, 14, 3), 64, 3)
    assert read(colours) == (1, 196, 64, 27, 1, (True, 1, True), (False, 8, False))
    assert read(product("int8", (33, 36, 17), (False, True))) is None, "nor four bytes"


@pytest.mark.tvm
def test_operands_are_boxes_of_tensors() -> None:
    """Innermost first: what a dimension counts, how many, how far apart, how many batches each."""
    from tests.products import attention, convolution, product
    from tunefarm.search.spaces.tensor_tile.box import Along, Dimension
    from tunefarm.search.spaces.tensor_tile.product import product_of
    from tunefarm.search.spaces.tensor_tile.writer import side_of

    lines, depth, batches = Along.LINES, Along.DEPTH, Along.BATCHES

    def read(module: Any) -> list[tuple[Dimension, ...] | None]:
        found = product_of(module)
        assert found is not None
        tensors = [side_of(found, operand).tensor for operand in (found.left, found.right)]
        return [None if one is None else one.dimensions for one in tensors]

    assert read(product("float16", (64, 96, 128))) == [
        (Dimension(depth, 128, 1), Dimension(lines, 64, 128)),
        (Dimension(lines, 96, 1), Dimension(depth, 128, 96)),
    ]
    turned = read(product("float16", (64, 96, 128), (True, True), 3))
    assert turned[0] == (
        *(Dimension(lines, 64, 1), Dimension(depth, 128, 64)),
        Dimension(batches, 3, 128 * 64),
    )
    heads, _ = read(attention("float16", 3, 100, 2, 64))
    assert heads == (
        *(Dimension(depth, 64, 1), Dimension(batches, 2, 64), Dimension(lines, 100, 128)),
        Dimension(batches, 3, 12800, within=2),
    )
    image, taps = read(convolution("float16", (14, 14, 32), 64, 1))
    assert image == (Dimension(depth, 32, 1), Dimension(lines, 196, 32))
    assert taps is not None
    strided = read(convolution("float16", (14, 14, 32), 64, 1, 2))
    assert strided[0] is None, "rows of pixels that are not side by side"
    padded = read(convolution("float16", (14, 14, 32), 64, 3))
    assert padded[0] is None, "padding, and windows"
    assert read(product("float16", (64, 96, 100)))[0] is None, "lines of 200 bytes"


@pytest.mark.tvm
def test_buffers_with_gaps_are_no_operands() -> None:
    """Of which addresses count on nothing but the shape."""
    import tvm

    from tests.products import product
    from tunefarm.search.spaces.tensor_tile.product import product_of

    text = product("float16", (64, 96, 128))["main"].script()
    whole = 'a: T.Buffer((64, 128), "float16")'
    assert whole in text, text
    for gap in ("strides=(256, 1)", "elem_offset=64"):
        function = tvm.script.from_source(text.replace(whole, f"{whole[:-1]}, {gap})"))
        assert product_of(tvm.IRModule({"main": function})) is None, gap


@pytest.mark.tvm
def test_kernels_fed_by_the_engine_are_well_formed() -> None:
    from tvm.s_tir import Schedule

    from tests.products import product
    from tunefarm.search.replay import in_full

    words = "tensor-tile cores=groups rows=64 columns=64 depth=64 stages=3 down=4 across=1"
    module = product("float16", (256, 256, 256), batches=2)
    target = completed(parse_target("cuda:arch=sm_90"))
    for feed in ("", " feed=engine", " feed=engine cluster=2"):
        Schedule(in_full(module["main"], target, words + feed), debug_mask="all")


@pytest.mark.tvm
def test_nobody_says_what_nobody_waits_for() -> None:
    """It might come to a block of the cluster that has ended: of four steps in three places, only
    the first one's place is wanted again."""
    from tests.products import product
    from tunefarm.search.replay import in_full

    words = "tensor-tile cores=groups rows=64 columns=64 depth=64 stages=3 down=4 across=1"
    module = product("float16", (256, 256, 256), batches=2)
    target = completed(parse_target("cuda:arch=sm_90"))
    text = in_full(module["main"], target, f"{words} feed=engine cluster=2").script()
    (line,) = (n for n, one in enumerate(text.split("\n")) if "tunefarm_read" in one)
    condition = text.split("\n")[line - 1]
    assert "1 <= step" in condition or "step >= 1" in condition, condition
    assert "step <= 1" in condition, condition


@pytest.mark.tvm
def test_other_kernels_are_no_products() -> None:
    from tvm import te, topi

    from tests.paper_gpu import workload
    from tunefarm.search.spaces.tensor_tile.product import product_of

    x = te.placeholder((64, 64), "float32", "x")
    assert product_of(workload([x, topi.nn.softmax(x)])) is None
    assert product_of(workload([x, topi.nn.relu(x)])) is None
    assert product_of(workload([x, topi.sum(x, axis=1)])) is None
    image = te.placeholder((1, 14, 14, 32), "float16", "image")
    taps = te.placeholder((3, 3, 32, 1), "float16", "taps")
    depthwise = topi.nn.depthwise_conv2d_nhwc(image, taps, 1, 1, 1)
    assert product_of(workload([image, taps, depthwise])) is None

    k = te.reduce_axis((0, 64), "k")
    table = te.placeholder((64, 64), "float32", "table")
    which = te.placeholder((64,), "int32", "which")
    gathered = te.compute(
        (64, 64), lambda i, j: te.sum(table[which[i], k] * x[k, j], k), "gathered"
    )
    assert product_of(workload([table, which, x, gathered])) is None
    alike = te.compute((64, 64), lambda i, j: te.sum(table[i, k] * x[i, k], k), "alike")
    assert product_of(workload([table, x, alike])) is None, "no operand has columns"
    plain = topi.nn.matmul(table, x)
    twice = topi.multiply(plain, te.const(2.0, "float32"))
    assert product_of(workload([table, x, twice])) is not None
    assert product_of(workload([table, x, plain, twice])) is None, "two results"


@pytest.mark.tvm
def test_what_ends_in_something_that_nobody_reads_is_no_product() -> None:
    """The product itself is the result, and what is made of it is thrown away."""
    import tvm

    from tests.products import product
    from tunefarm.search.spaces.tensor_tile.product import product_of

    text = product("float32", (64, 64, 64), after="bias").script()
    result, summed = "compute: T.Buffer(", "c = T.sblock_alloc_buffer("
    assert text.count(result) == text.count(summed) == 1
    swapped = text.replace(summed, "compute = T.sblock_alloc_buffer(")
    swapped = swapped.replace(result, "c: T.Buffer(")
    assert product_of(tvm.script.from_source(text)) is not None
    assert product_of(tvm.script.from_source(swapped)) is None


@pytest.mark.tvm
def test_a_trace_stands_for_one_kernel() -> None:
    from tests.products import product
    from tests.written import traces_stand_for_kernels
    from tunefarm.search.spaces.tensor_tile.space import KEPT, TENSOR_TILES

    module = product("float16", (256, 256, 256), after="bias")
    space = TENSOR_TILES.space(module, CUDA)
    assert space is not None
    seconds = [one.seconds for one in space.modelled()]
    assert seconds == sorted(seconds)
    assert len(seconds) == KEPT
    traces_stand_for_kernels(space, module, CUDA, (0, 100, 511))


@pytest.mark.tvm
@pytest.mark.parametrize(
    "words",
    [
        "tensor-tile cores=warps rows=128",
        "tensor-tile cores=warps rows=128 columns=128 depth=32 stages=4 down=2 across=2 more=1",
        "tensor-tile cores=all rows=128 columns=128 depth=32 stages=4 down=2 across=2",
        "tensor-tile cores=warps rows=100 columns=128 depth=32 stages=4 down=2 across=2",
        "tensor-tile cores=warps rows=128 columns=128 depth=32 stages=many down=2 across=2",
    ],
)
def test_words_that_are_no_point_are_refused(words: str) -> None:
    from tests.products import product
    from tunefarm.search.replay import InvalidTrace, in_full

    module = product("float16", (256, 256, 256))
    good = "tensor-tile cores=warps rows=128 columns=128 depth=32 stages=4 down=2 across=2"
    function = module["main"]
    assert not in_full(function, CUDA, good).same_as(function)
    for other in (None, "register-tile rows=3"):
        assert in_full(function, CUDA, other).same_as(function)
    with pytest.raises(InvalidTrace):
        in_full(function, CUDA, words)


@pytest.mark.tvm
def test_the_engine_is_told_to_round_words_and_nothing_else() -> None:
    from tests.products import product
    from tunefarm.search.replay import in_full

    words = "tensor-tile cores=groups rows=128 columns=128 depth={} stages=3 down=8 across=1"
    for dtype, precision, depth, kind in (
        ("float32", ":precision=tf32", 32, "11"),  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
        ("float16", "", 64, "-1"),  # what follows from the type
    ):
        target = completed(parse_target(f"cuda:arch=sm_90{precision}"))
        module = product(dtype, (256, 256, 256))
        text = in_full(module["main"], target, f"{words.format(depth)} feed=engine").script()
        assert re.findall(r"force_cu_dtype=(-?[0-9]+)", text) == [kind, kind]


@pytest.mark.tvm
def test_which_targets_have_such_tiles() -> None:
    from tests.products import product
    from tunefarm.search.spaces.tensor_tile.space import TENSOR_TILES

    half, single = (product(dtype, (64, 64, 64)) for dtype in ("float16", "float32"))
    assert TENSOR_TILES.space(half, CUDA) is not None
    assert TENSOR_TILES.space(half, completed(parse_target("cuda:arch=sm_75"))) is None
    assert TENSOR_TILES.space(half, parse_target("llvm")) is None
    assert TENSOR_TILES.space(single, CUDA) is None, "nobody has allowed it"
    allowed = completed(parse_target("cuda:arch=sm_80:precision=tf32"))
    assert TENSOR_TILES.space(single, allowed) is not None
    cores = {
        way.cores
        for target in (CUDA, completed(parse_target("cuda:arch=sm_90")))
        for way in TENSOR_TILES.space(product("float16", (512, 512, 512)), target).ways
    }
    assert cores == {*Cores}


@pytest.mark.tvm
def test_a_trace_is_no_way_around_what_a_target_allows() -> None:
    from tests.paper_gpu import trace_of
    from tests.products import product
    from tunefarm.search.replay import InvalidTrace, in_full, scheduled_function

    words = "tensor-tile cores=warps rows=64 columns=64 depth=32 stages=3 down=2 across=2"
    single, half = (product(dtype, (64, 64, 64)) for dtype in ("float32", "float16"))
    allowed = completed(parse_target("cuda:arch=sm_80:precision=tf32"))
    assert scheduled_function(single, allowed, trace_of(single, words)) is not None
    with pytest.raises(InvalidTrace):
        scheduled_function(single, CUDA, trace_of(single, words))
    with pytest.raises(InvalidTrace):
        in_full(half["main"], completed(parse_target("cuda:arch=sm_75")), words)
    turned = product("float32", (64, 64, 64), (True, False))
    with pytest.raises(InvalidTrace):
        in_full(turned["main"], allowed, words)
