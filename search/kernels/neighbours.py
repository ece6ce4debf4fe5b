"""The instructions that multiply neighbours and add them to a sum, for TensorIR.

x86 has one for fours (VPDPBUSD: AVX-512 VNNI, AVX-VNNI): of every 32 bits of a vector, four
unsigned numbers of the data by four signed ones of the weights. TVM's own intrinsic for it is of 16
sums alone, and its call is not what the compiler under this TVM takes (of numbers of 8 bits, no
longer of 32). One for pairs of 16 bits (PMADDWD: SSE2, AVX2, AVX-512), whose results are added to
the sums by another. And one for pairs of 8 bits (PMADDUBSW: SSSE3, AVX2, AVX-512), whose results
have 16 bits, and are made pairs of those: it cuts off what these do not hold, so it is for weights
with which they hold every sum (`frontend.relax.integer_products`). All are exact, then.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tunefarm.devices.neighbours import FOURS, NARROW, PAIRS, Groups

LENGTHS = (16, 8, 4)
"""Sums of a vector."""
FAMILY = "tunefarm_neighbours_"
"""What the names of the intrinsics begin with."""


def name_of(groups: Groups, lanes: int) -> str:
    """Of the intrinsic for a vector of so many sums."""
    return f"{FAMILY}{'x'.join(map(str, groups))}_{lanes}"


_OF_PAIRS = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
_OF_BYTES = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw", 4: "ssse3.pmadd.ub.sw.128"}
"""By the sums of a vector; the compiler's names."""
_TYPES = {FOURS: ("uint8", "int8"), PAIRS: ("int16", "int16"), NARROW: ("uint8", "int8")}
"""Of data and weights."""

_HEAD = """
@T.prim_func(s_tir=True)
def main(
    data: T.Buffer(({terms},), "{data}", offset_factor=1),
    weights: T.Buffer(({lanes}, {sizes}), "{weights}", offset_factor=1),
    sums: T.Buffer(({lanes},), "int32", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(sums[0:{lanes}], data[0:{terms}], weights[0:{lanes}, {whole}])
        T.writes(sums[0:{lanes}])
"""
_MEANING = """
        for i, {axes} in T.grid({lanes}, {sizes}):
            with T.sblock("update"):
                vi, {places} = T.axis.remap("S{kinds}", [i, {axes}])
                sums[vi] = sums[vi] + T.cast(data[{place}], "int32") * T.cast(
                    weights[vi, {places}], "int32"
                )
"""
_CALLED = """
        sums[T.ramp(T.int32(0), 1, {lanes})] = {result}
"""


@lru_cache(maxsize=1)
def register_neighbours() -> None:
    """Register the intrinsics, without which no trace that has them applies."""
    from tvm.s_tir import TensorIntrin

    for groups in _TYPES:
        for lanes in LENGTHS:
            name = name_of(groups, lanes)
            if TensorIntrin.get(name, allow_missing=True) is None:
                TensorIntrin.register(name, *_texts(groups, lanes))


def _texts(groups: Groups, lanes: int) -> list[Any]:
    """What it means, and what it is."""
    from tvm.script import from_source

    axes = [f"k{axis}" for axis in range(len(groups))]
    places = [f"v{axis}" for axis in axes]
    data, weights = _TYPES[groups]
    place = places[0]
    for size, axis in zip(groups[1:], places[1:], strict=True):
        place = f"({place}) * {size} + {axis}"
    parts = {
        "terms": prod(groups),
        "lanes": lanes,
        "sizes": ", ".join(map(str, groups)),
        "whole": ", ".join(f"0:{size}" for size in groups),
        "data": data,
        "weights": weights,
        "axes": ", ".join(axes),
        "places": ", ".join(places),
        "kinds": "R" * len(groups),
        "place": place,
        "result": _result(groups, lanes),
    }
    return [from_source((_HEAD + body).format(**parts)) for body in (_MEANING, _CALLED)]


def _result(groups: Groups, lanes: int) -> str:
    data, weights = _TYPES[groups]
    terms = prod(groups)
    sums = f'sums.vload([0], dtype="int32x{lanes}")'
    four_bytes = f'T.reinterpret(data.vload([0], "{data}x{terms}"), dtype="int32")'
    broadcast = (
        f'T.reinterpret(T.broadcast({four_bytes}, {lanes}), dtype="{weights}x{terms * lanes}")'
    )
    first = ", ".join("0" for _ in (lanes, *groups))
    read = f'weights.vload([{first}], dtype="{weights}x{terms * lanes}")'
    if groups == FOURS:
        name = f"avx512.vpdpbusd.{32 * lanes}"
        return _call(name, f"int32x{lanes}", sums, broadcast, read)
    if groups == PAIRS:
        return f"{sums} + {_call(_OF_PAIRS[lanes], f'int32x{lanes}', broadcast, read)}"
    halves = _call(_OF_BYTES[lanes], f"int16x{2 * lanes}", broadcast, read)
    ones = f"T.broadcast(T.int16(1), {2 * lanes})"
    return f"{sums} + {_call(_OF_PAIRS[lanes], f'int32x{lanes}', halves, ones)}"


def _call(name: str, kind: str, *arguments: str) -> str:
    intrinsic = f'T.llvm_lookup_intrinsic_id("llvm.x86.{name}")'
    return f'T.call_llvm_pure_intrin({intrinsic}, {", ".join(arguments)}, dtype="{kind}")'
