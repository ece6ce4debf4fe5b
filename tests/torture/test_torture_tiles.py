"""Kernels that are written whole, of sizes and points that are drawn, on a GPU of paper: each is
held against the same kernel on the processor."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cuda import needs_compiler

pytestmark = [pytest.mark.torture, needs_compiler]

KERNELS = int(os.environ.get("TUNEFARM_TORTURE_KERNELS", "60"))
"""Of each kind; three points of each."""
SEED = int(os.environ.get("TUNEFARM_TORTURE_SEED", "1"))


def picked(ways: Sequence[Any], rng: random.Random) -> list[int]:
    """Three, or one of each kind of cores, and of who feeds them, alone or in clusters."""
    drawn = rng.sample(list(enumerate(ways)), len(ways))
    kinds = {kind_of(way): number for number, way in drawn}
    others = rng.sample(range(len(ways)), min(3, len(ways)))
    return list(dict.fromkeys([*kinds.values(), *others]))[: max(3, len(kinds))]


def kind_of(way: Any) -> str:
    if not hasattr(way, "cores"):
        return "plain"
    clusters = " clusters" if getattr(way, "cluster", 1) > 1 else ""
    return f"{way.cores} {way.feed}{clusters}"


def are_right(stack: Any, module: Any, space: Any, numbers: Sequence[int], words: Any) -> None:
    """The kernel's points of these numbers."""
    from tunefarm.search.space import Point

    kernel = stack.kernel(module)
    for number in numbers:
        made = space.realise(Point(0, (number,)), 1)
        assert made is not None
        outcome = stack.screened(kernel, made.trace)
        assert outcome.failure is None, (outcome.failure, words, space.ways[number])


_TYPES = os.environ.get("TUNEFARM_TORTURE_TYPES", "float16 float16 bfloat16 int8 float32")
DTYPES = {"tensor-tile": _TYPES.split(), "plain-tile": ["float32"]}
"""Of `tensor-tile` those that are drawn, as often as they are named; float32 as tf32."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", DTYPES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tiles_of_products_are_right(arch: str, family: str, tmp_path: Path, report) -> None:
    from tests.paper_gpu import stack_on_paper
    from tests.products import drawn
    from tunefarm.devices.gpu import completed
    from tunefarm.devices.target import parse_target
    from tunefarm.search.spaces.plain_tile.space import PLAIN_TILES
    from tunefarm.search.spaces.tensor_tile.space import TENSOR_TILES

    tiles = {one.name: one for one in (TENSOR_TILES, PLAIN_TILES)}[family]
    rng = random.Random(SEED)
    target = completed(parse_target(f"cuda:arch={arch}:precision=tf32"))
    counts: Counter[str] = Counter()
    with stack_on_paper(tmp_path, target) as stack:
        while counts["kernels"] < KERNELS:
            words, module = drawn(rng, rng.choice(DTYPES[family]))
            space = tiles.space(module, target)
            if space is None:
                counts["no tile"] += 1
                continue
            counts["kernels"] += 1
            numbers = picked(space.ways, rng)
            are_right(stack, module, space, numbers, words)
            for number in numbers:
                counts[kind_of(space.ways[number])] += 1
                counts["shared sums"] += space.ways[number].split > 1
    report(**counts)


@pytest.mark.timeout(3600)
def test_rows_on_warps_are_right(tmp_path: Path, report) -> None:
    from tests.paper_gpu import TARGET, stack_on_paper
    from tests.rows import layer_norm, softmax, spread
    from tunefarm.search.spaces.warp_rows.space import WARP_ROWS

    rng = random.Random(SEED)
    counts: Counter[str] = Counter()
    with stack_on_paper(tmp_path, TARGET) as stack:
        while counts["kernels"] < KERNELS:
            make = rng.choice([softmax, layer_norm, spread])
            dtype = rng.choice(["float32", "float16", "bfloat16"])
            sizes = rng.randint(1, 70), rng.choice([1, 2, 4, 8]) * rng.randint(2, 300)
            module = make(dtype, *sizes)
            space = WARP_ROWS.space(module, TARGET)
            assert space is not None, (make.__name__, sizes)
            counts["kernels"] += 1
            numbers = rng.sample(range(len(space.ways)), min(3, len(space.ways)))
            are_right(stack, module, space, numbers, (make.__name__, dtype, sizes))
            counts[make.__name__] += len(numbers)
    report(**counts)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_attention_is_right(arch: str, tmp_path: Path, report) -> None:
    from tests.paper_gpu import stack_on_paper
    from tests.products import whole_attention
    from tunefarm.devices.gpu import completed
    from tunefarm.devices.target import parse_target
    from tunefarm.frontend.relax.one_attention import FEWEST_ROWS, MOST_DEEP
    from tunefarm.search.spaces.attention_tile.space import ATTENTION_TILES

    rng = random.Random(SEED)
    target = completed(parse_target(f"cuda:arch={arch}"))
    counts: Counter[str] = Counter()
    with stack_on_paper(tmp_path, target) as stack:
        while counts["kernels"] < KERNELS:
            step = rng.choice([1, 2, 8, 16])
            deep = [step * rng.randint(1, MOST_DEEP // step) for _ in range(2)]
            sizes = (rng.randint(FEWEST_ROWS, 150), step * rng.randint(1, 200 // step), *deep)
            scores, apart = rng.choice(["", "scale", "mask", "causal"]), rng.random() < 0.4
            dtype = rng.choice(["float16", "bfloat16"])
            heads = rng.randint(1, 2), rng.randint(1, 3)
            words = (dtype, *heads, sizes, scores, apart)
            module = whole_attention(*words)
            space = ATTENTION_TILES.space(module, target)
            assert space is not None, words
            counts["kernels"] += 1
            numbers = picked(space.ways, rng)
            are_right(stack, module, space, numbers, words)
            for number in numbers:
                counts[kind_of(space.ways[number])] += 1
    report(**counts)
