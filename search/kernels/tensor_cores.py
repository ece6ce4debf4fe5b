"""Tensor cores: TVM's sketches for them, and of bfloat16, which it has none of, the same."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import SBlock, TensorIntrin
from tvm.s_tir import meta_schedule as ms
from tvm_ffi import structural_walk

from tunefarm.devices.gpu import Arch

TENSOR_CORES = "cuda-tensorcore"
"""TVM's name of the rules for them; those of a target's kind have the kind's name."""
PRODUCTS = frozenset({"float16", "bfloat16", "int8"})
"""Element types that there are sketches for."""
STAGES = "software_pipeline_stage"
"""TVM's name of the note that tells which step's part of a loop is done when."""
DEPTHS = (3, 4)
"""How many steps' operands a pipelined kernel holds."""
_SIDES = ("", "_trans")
_BFLOAT16 = ("bf16", "f32")
_SUMS = (("f16", "f32"), ("f16", "f16"), _BFLOAT16, ("s8", "s32"))
"""Types of operands and of their sums."""
_VECTORS = [1, 2, 4, 8, 16]
"""Lengths of a vector; TVM's rule has 3 as well, of which there is no code for bfloat16, and none
over 4."""


def register_bfloat16() -> None:
    """Register the intrinsics that TVM has of float16; they need those of float32 sums, which
    `tvm.s_tir.tensor_intrin.cuda` registers."""
    from tvm.s_tir.tensor_intrin.cuda import get_wmma_load_intrin, get_wmma_sync_intrin

    if TensorIntrin.get(_sync(*_BFLOAT16, ""), allow_missing=True) is not None:
        return
    shape, scope = (16, 16, 16), "shared.dyn"
    made = {_load("bf16", "a", ""): get_wmma_load_intrin(*shape, "bfloat16", scope, False, False)}
    for side in _SIDES:
        turned = bool(side)
        made[_load("bf16", "b", side)] = get_wmma_load_intrin(
            *shape, "bfloat16", scope, True, turned
        )
        made[_sync(*_BFLOAT16, side)] = get_wmma_sync_intrin(*shape, "bfloat16", "float32", turned)
    for name, pair in made.items():
        TensorIntrin.register(name, *pair)


def _load(operand: str, place: str, side: str) -> str:
    return f"wmma_load_16x16x16_{operand}_{place}{side}_shared_dyn"


def _sync(operand: str, sums: str, side: str) -> str:
    return f"wmma_sync_16x16x16_{operand}{operand}{sums}{side}"


def schedule_rules() -> list[Any]:
    """TVM's for tensor cores, and before it one of the same tiling: for bfloat16 as well, with
    vectors of up to sixteen bytes."""
    rule = ms.schedule_rule
    groups = [
        {
            "init": f"wmma_fill_16x16x16_{sums}",
            "load_a": _load(operand, "a", ""),
            "load_b": _load(operand, "b", side),
            "compute": _sync(operand, sums, side),
            "store": f"wmma_store_16x16x16_{sums}_shared_dyn",
        }
        for operand, sums in _SUMS
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
    rules = list(ms.ScheduleRule.create(TENSOR_CORES))
    first = next(i for i, one in enumerate(rules) if isinstance(one, type(ours)))
    return [*rules[:first], ours, *rules[first:]]


def variants(schedule: Any, arch: Arch) -> list[Any]:
    """A sketch of TVM's, finished where it multiplies on tensor cores; from sm_80 on also with
    operands on their way while others are multiplied, as TVM's sketches for plain cores have it."""
    names = _copies(schedule)
    if len(names) != 2:
        return [schedule]
    for name, dtype in names.items():
        if dtype == "bfloat16":  # of other types TVM's rule does it: other rows, other banks
            schedule.storage_align(schedule.get_sblock(name), 0, axis=-2, factor=32, offset=8)
    found = [schedule]
    for depth in DEPTHS if arch.copies_aside else ():
        one = schedule.copy()
        step = one.get_loops(one.get_sblock(next(iter(names))))[-2]
        one.annotate(step, STAGES, [0, 0, depth - 1])
        one.annotate(step, "software_pipeline_order", [0, 1, 2])
        one.annotate(step, "software_pipeline_async_stages", [0])
        found.append(one)
    return found


def _copies(schedule: Any) -> dict[str, str]:
    """What copies operands to shared memory, by name, and the type of their elements."""
    found: dict[str, str] = {}

    def look(block: Any) -> None:
        scopes = [
            [region.source.scope() for region in ends] for ends in (block.reads, block.writes)
        ]
        if scopes == [["global"], ["shared.dyn"]]:
            found[str(block.name_hint)] = str(block.writes[0].source.dtype)

    structural_walk(schedule.mod["main"].body, (SBlock, look))
    return found
