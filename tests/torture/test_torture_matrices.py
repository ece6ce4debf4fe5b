"""Attention in matrix registers, of sizes and points that are drawn, on a processor that has them:
each is held against the same kernel without a schedule."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.bench import Bench, needs, pair_of_workers
from tunefarm.devices.target import parse_target
from tunefarm.frontend.program import ATTENTION, Program, TuningTask

pytestmark = pytest.mark.torture

KERNELS = int(os.environ.get("TUNEFARM_TORTURE_KERNELS", "200"))
"""Two points of each."""
SEED = int(os.environ.get("TUNEFARM_TORTURE_SEED", "1"))
SCORES = ("", "scale", "mask", "causal", "lowest", "infinite", "all")
"""What is done to them: `tests.products.whole_attention`."""


@pytest.mark.timeout(3600)
def test_attention_in_matrix_registers_is_right(tmp_path: Path, report: Any) -> None:
    needs("amx_bf16")
    target = parse_target("llvm:mcpu=sapphirerapids:num-cores=2:precision=bfloat16")
    counts: Counter[str] = Counter()
    with pair_of_workers() as workers:
        while counts["kernels"] < KERNELS:
            _drawn(counts, random.Random(SEED + counts["drawn"]), target, workers, tmp_path)
    report(**counts)


def _drawn(
    counts: Counter[str], rng: random.Random, target: Any, workers: Any, directory: Path
) -> None:
    """One kernel, two points of it."""
    from tests.products import whole_attention
    from tunefarm.search.spaces.matrix_attention.space import MATRIX_ATTENTIONS

    counts["drawn"] += 1
    sizes = (rng.randint(1, 150), rng.randint(1, 250), rng.randint(1, 140), rng.randint(1, 140))
    scores, apart = rng.choice(SCORES), rng.random() < 0.4
    packed = not apart and rng.random() < 0.3
    if packed:  # all of as many
        sizes = (sizes[0], sizes[0], sizes[2], sizes[2])
    if scores in ("infinite", "lowest") and sizes[1] <= 40:
        return  # nothing would be left
    words = ("bfloat16", rng.randint(1, 3), rng.randint(1, 4), sizes, scores, apart, packed)
    module = whole_attention(*words)
    space = MATRIX_ATTENTIONS.space(module, target)
    assert space is not None, words
    bench = _bench(module, counts["kernels"], target, workers, directory)
    for number in rng.sample(range(len(space.ways)), min(2, len(space.ways))):
        proposal = space.realise(space.modelled()[number].point, 0)
        assert proposal is not None
        try:
            bench.check(proposal, str(number)).path.unlink()
        except AssertionError as error:
            raise AssertionError(f"{words} {space.ways[number]}: {error}") from error
        counts["points"] += 1
    counts["kernels"] += 1
    counts[scores or "products alone"] += 1
    counts["apart"] += apart
    counts["packed"] += packed


def _bench(module: Any, number: int, target: Any, workers: Any, directory: Path) -> Bench:
    import tvm

    from tunefarm.frontend.relax.tir import argument_specs

    (directory / "workloads").mkdir(exist_ok=True)
    name = f"k{number}"
    task = TuningTask(name, ATTENTION, (ATTENTION,), 1, 0.0, 1, argument_specs(module["main"]))
    program = Program(directory, (), (), (task,), {})
    program.workload(name).write_text(tvm.ir.save_json(module))
    return Bench(program, task, target, workers, directory)
