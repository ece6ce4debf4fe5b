"""The instructions that multiply neighbours and add them to a sum, for TensorIR.

x86 has one for fours (VPDPBUSD: AVX-512 VNNI, AVX-VNNI): of every 32 bits of a vector, four
unsigned numbers of the data by four signed ones of the weights. TVM's own intrinsic for it is of 16
sums alone, and its call is not what the compiler under this TVM takes (of numbers of 8 bits, no
longer of 32). And one for pairs of 16 bits (PMADDWD: SSE2, AVX2, AVX-512), whose results are added
to the sums by another one. Both are exact: what is added up has 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tunefarm.devices.neighbours import FOUR, PAIR

LENGTHS = (16, 8, 4)
"""Sums of a vector."""
FAMILY = "tunefarm_neighbours_"
"""What the names of the intrinsics begin with."""


def name_of(terms: int, lanes: int) -> str:
    """Of the intrinsic for a vector of so many sums, of so many terms each."""
    return f"{FAMILY}{terms}_{lanes}"


@dataclass(frozen=True)
class _Instruction:
    """As the compiler has it.

    Attributes:
        names: by the sums of a vector.
        data, weights: types of the numbers.
        adds: whether it adds to the sums itself.
    """

    names: dict[int, str]
    data: str
    weights: str
    adds: bool


_BY_TERMS = {
    FOUR: _Instruction(
        {lanes: f"avx512.vpdpbusd.{32 * lanes}" for lanes in LENGTHS}, "uint8", "int8", True
    ),
    PAIR: _Instruction(
        {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}, "int16", "int16", False
    ),
}

_HEAD = """
@T.prim_func(s_tir=True)
def main(
    data: T.Buffer(({terms},), "{data}", offset_factor=1),
    weights: T.Buffer(({lanes}, {terms}), "{weights}", offset_factor=1),
    sums: T.Buffer(({lanes},), "int32", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(sums[0:{lanes}], data[0:{terms}], weights[0:{lanes}, 0:{terms}])
        T.writes(sums[0:{lanes}])
"""
_MEANING = """
        for i in T.serial(0, {lanes}):
            for k in T.serial(0, {terms}):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    sums[vi] = sums[vi] + T.cast(data[vk], "int32") * T.cast(
                        weights[vi, vk], "int32"
                    )
"""
_CALLED = """
        sums[T.ramp(T.int32(0), 1, {lanes})] = {added}T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.{name}"),
            {accumulated}
            T.reinterpret(
                T.broadcast(
                    T.reinterpret(data.vload([0], "{data}x{terms}"), dtype="int32"), {lanes}
                ),
                dtype="{weights}x{numbers}",
            ),
            weights.vload([0, 0], dtype="{weights}x{numbers}"),
            dtype="int32x{lanes}",
        )
"""


@lru_cache(maxsize=1)
def register_neighbours() -> None:
    """Register the intrinsics, without which no trace that has them applies."""
    from tvm.s_tir import TensorIntrin

    for terms, instruction in _BY_TERMS.items():
        for lanes in LENGTHS:
            name = name_of(terms, lanes)
            if TensorIntrin.get(name, allow_missing=True) is None:
                TensorIntrin.register(name, *_texts(terms, lanes, instruction))


def _texts(terms: int, lanes: int, instruction: _Instruction) -> list[Any]:
    """What it means, and what it is."""
    from tvm.script import from_source

    sums = f'sums.vload([0], dtype="int32x{lanes}")'
    parts = {
        "terms": terms,
        "lanes": lanes,
        "numbers": terms * lanes,
        "name": instruction.names[lanes],
        "data": instruction.data,
        "weights": instruction.weights,
        "accumulated": f"{sums}," if instruction.adds else "",
        "added": "" if instruction.adds else f"{sums} + ",
    }
    return [from_source((_HEAD + body).format(**parts)) for body in (_MEANING, _CALLED)]
