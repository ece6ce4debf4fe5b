"""The family: the blocks of attention that fit."""

from __future__ import annotations

from math import log2
from typing import Any

from tunefarm.devices.matrices import multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16
from tunefarm.search.candidate import MATRIX_ATTENTION
from tunefarm.search.spaces.attention_tile.attention import Attention, attention_of
from tunefarm.search.spaces.hardware import hardware
from tunefarm.search.spaces.matrix_attention.block import Block, HeadSizes, expected_s, ways
from tunefarm.search.spaces.matrix_attention.operand import HeadMatrix
from tunefarm.search.spaces.matrix_attention.writer import BlockWriter
from tunefarm.search.spaces.written import Family, Fitting, number, whole


def _fitting(workload: Any, target: Target) -> Fitting[Block] | None:
    if not multiplies_halves(target):
        return None
    attention = attention_of(workload, (BFLOAT16,), singly=True, whole=True)
    operands = (attention.queries, attention.keys, attention.values) if attention else ()
    if attention is None or any(one.condition is not None for one in operands):
        return None
    sizes, machine = HeadSizes(*attention.sizes), hardware(target)
    known = list(ways(sizes))
    apart = _apart(attention, sizes)

    def expected(way: Block) -> float:
        return expected_s(attention.batches, sizes, way, machine, apart)

    def written(way: Block) -> Any:
        return whole(workload["main"], BlockWriter(attention, sizes, way).kernel(), [])

    return Fitting(
        lambda: sorted(known, key=expected),
        lambda way: way in known,
        expected,
        (*map(log2, (attention.batches, *attention.sizes)), *machine.figures()),
        written,
    )


def _apart(of: Attention, sizes: HeadSizes) -> int:
    """Keys' and values' numbers that do not lie side by side."""
    nowhere = [number(0)] * len(of.batch)
    keys = HeadMatrix(of.keys, of.first, nowhere).pitch(near=1, far=0)
    values = HeadMatrix(of.values, of.second, nowhere).pitch(near=0, far=1)
    return sizes.keys * ((keys is None) * sizes.depth + (values is None) * sizes.wide)


MATRIX_ATTENTIONS = Family(MATRIX_ATTENTION, Block, _fitting)
