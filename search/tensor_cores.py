"""Tensor cores: TVM's sketches for them, and of bfloat16, which it has none of, the same."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import SBlock, TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_walk

RULES = "cuda-tensorcore"
"""TVM's name of the rules for them; those of a target's kind have the kind's name."""
PRODUCTS = frozenset({"float16", "bfloat16", "int8"})
"""Element types that there are sketches for."""
_SIDES = ("", "_trans")
_VECTORS = [1, 2, 4, 8, 16]
"""Lengths of a vector; TVM's rule has 3 as well, of which there is no code for bfloat16."""


def register_bfloat16() -> None:
    """Register the intrinsics that TVM has of float16; they need those of float32 sums, which
    `tvm.s_tir.tensor_intrin.cuda` registers."""
    from tvm.s_tir.tensor_intrin.cuda import get_wmma_load_intrin, get_wmma_sync_intrin

    if TensorIntrin.get(_sync(""), allow_missing=True) is not None:
        return
    shape, scope = (16, 16, 16), "shared.dyn"
    made = {_load("a", ""): get_wmma_load_intrin(*shape, "bfloat16", scope, False, False)}
    for side in _SIDES:
        turned = bool(side)
        made[_load("b", side)] = get_wmma_load_intrin(*shape, "bfloat16", scope, True, turned)
        made[_sync(side)] = get_wmma_sync_intrin(*shape, "bfloat16", "float32", turned)
    for name, pair in made.items():
        TensorIntrin.register(name, *pair)


def _load(operand: str, side: str) -> str:
    return f"wmma_load_16x16x16_bf16_{operand}{side}_shared_dyn"


def _sync(side: str) -> str:
    return f"wmma_sync_16x16x16_bf16bf16f32{side}"


def schedule_rules() -> list[Any]:
    """TVM's for tensor cores, and one of the same tiling for products of bfloat16."""
    rule = ms.schedule_rule
    groups = [
        {
            "init": "wmma_fill_16x16x16_f32",
            "load_a": _load("a", ""),
            "load_b": _load("b", side),
            "compute": _sync(side),
            "store": "wmma_store_16x16x16_f32_shared_dyn",
        }
        for side in _SIDES
    ]
    ours = rule.MultiLevelTilingTensorCore(
        groups,
        "SSSRRSRS",
        tile_binds=["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        max_innermost_factor=4,
        vector_load_lens=_VECTORS,
        reuse_read=rule.ReuseType("must", [4], "shared.dyn"),
        reuse_write=rule.ReuseType("must", [2], "shared.dyn"),
    )
    rules = list(ms.ScheduleRule.create(RULES))
    first = next(i for i, one in enumerate(rules) if isinstance(one, type(ours)))
    return [*rules[:first], ours, *rules[first:]]


def pad_rows(schedule: Any) -> None:
    """Let the rows of bfloat16 operands in shared memory begin in different banks, as TVM's rule
    does for other types."""
    names: list[str] = []

    def look(block: Any) -> None:
        for region in block.writes:
            buffer = region.source if hasattr(region, "source") else region.buffer
            if str(buffer.dtype) == "bfloat16" and buffer.scope() == "shared.dyn":
                names.append(block.name_hint)

    structural_walk(schedule.mod["main"].body, (SBlock, look))
    for name in names:
        schedule.storage_align(schedule.get_sblock(name), 0, axis=-2, factor=32, offset=8)
