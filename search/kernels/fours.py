"""The instruction that multiplies four neighbours and adds them to a sum, for TensorIR.

x86 has it as VPDPBUSD (AVX-512 VNNI, AVX-VNNI): of every 32 bits of a vector, four unsigned numbers
of the data by four signed ones of the weights. TVM's own intrinsic for it is of 16 sums alone, and
its call is not what the compiler under this TVM takes (of numbers of 8 bits, no longer of 32).
"""

from __future__ import annotations

from functools import lru_cache

LENGTHS = (16, 8, 4)
"""Sums of a vector."""
FAMILY = "tunefarm_fours_"
"""What the names of the intrinsics begin with."""


def name_of(lanes: int) -> str:
    """Of the intrinsic for a vector of so many sums."""
    return f"{FAMILY}{lanes}"


_HEAD = """
@T.prim_func(s_tir=True)
def main(
    data: T.Buffer((4,), "uint8", offset_factor=1),
    weights: T.Buffer(({lanes}, 4), "int8", offset_factor=1),
    sums: T.Buffer(({lanes},), "int32", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(sums[0:{lanes}], data[0:4], weights[0:{lanes}, 0:4])
        T.writes(sums[0:{lanes}])
"""
_MEANING = """
        for i in T.serial(0, {lanes}):
            for k in T.serial(0, 4):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    sums[vi] = sums[vi] + T.cast(data[vk], "int32") * T.cast(
                        weights[vi, vk], "int32"
                    )
"""
_INSTRUCTION = """
        sums[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.{bits}"),
            sums.vload([0], dtype="int32x{lanes}"),
            T.reinterpret(
                T.broadcast(T.reinterpret(data.vload([0], "uint8x4"), dtype="int32"), {lanes}),
                dtype="int8x{numbers}",
            ),
            weights.vload([0, 0], dtype="int8x{numbers}"),
            dtype="int32x{lanes}",
        )
"""


@lru_cache(maxsize=1)
def register_fours() -> None:
    """Register the intrinsics, without which no trace that has them applies."""
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source

    for lanes in LENGTHS:
        if TensorIntrin.get(name_of(lanes), allow_missing=True) is None:
            sizes = {"lanes": lanes, "numbers": 4 * lanes, "bits": 32 * lanes}
            meaning, instruction = (
                from_source((_HEAD + body).format(**sizes)) for body in (_MEANING, _INSTRUCTION)
            )
            TensorIntrin.register(name_of(lanes), meaning, instruction)
