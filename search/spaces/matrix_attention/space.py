"""The family: the blocks of attention that fit."""

from __future__ import annotations

from math import log2
from typing import Any

from tunefarm.devices.matrices import multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16
from tunefarm.search.candidate import MATRIX_ATTENTION
from tunefarm.search.spaces.attention_tile.attention import attention_of
from tunefarm.search.spaces.hardware import hardware
from tunefarm.search.spaces.matrix_attention.block import Block, Sizes, expected_s, ways
from tunefarm.search.spaces.matrix_attention.writer import AttentionWriter
from tunefarm.search.spaces.written import Family, Fitting, whole


def _fitting(workload: Any, target: Target) -> Fitting[Block] | None:
    attention = attention_of(workload, (BFLOAT16,)) if multiplies_halves(target) else None
    if attention is None:
        return None
    sizes, machine = Sizes(*attention.sizes), hardware(target)
    known = list(ways(sizes))

    def expected(way: Block) -> float:
        return expected_s(attention.batches, sizes, way, machine)

    def written(way: Block) -> Any:
        return whole(workload["main"], AttentionWriter(attention, sizes, way).kernel(), [])

    return Fitting(
        lambda: sorted(known, key=expected),
        lambda way: way in known,
        expected,
        (*map(log2, (attention.batches, *attention.sizes)), *machine.figures()),
        written,
    )


MATRIX_ATTENTIONS = Family(MATRIX_ATTENTION, Block, _fitting)
