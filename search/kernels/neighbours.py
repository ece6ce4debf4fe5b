"""The instructions of vectors that multiply neighbours and add them to a sum, for TensorIR.

x86 has one for fours (VPDPBUSD: AVX-512 VNNI, AVX-VNNI): of every 32 bits of a vector, four
unsigned numbers of the data by four signed ones of the weights. TVM's own intrinsic for it is of 16
sums alone, and its call is not what the compiler under this TVM takes (of numbers of 8 bits, no
longer of 32). One for pairs of 16 bits (PMADDWD: SSE2, AVX2, AVX-512), whose results are added to
the sums by another. And one for pairs of 8 bits (PMADDUBSW: SSSE3, AVX2, AVX-512), whose results
have 16 bits, and are made pairs of those: it cuts off what these do not hold, so it is for weights
with which they hold every sum (`frontend.relax.integer_products`). All are exact, then.

And one for pairs of bfloat16, added to a sum of float32 (VDPBF16PS: AVX-512 BF16). TVM's lowering
makes integers of what is stored in bfloat16, which the compiler's name for the instruction does not
take; so it is in a function of the compiler's own text, which goes with the kernel (`importing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from tvm import tirx
from tvm_ffi import structural_map

from tunefarm.devices.neighbours import FOURS, NARROW, PAIRS, Groups
from tunefarm.search.kernels.splice import with_note, without_note

LENGTHS = (16, 8, 4)
"""Sums of a vector."""
FAMILY = "tunefarm_neighbours_"
"""What the names of the intrinsics begin with."""
OF_BFLOAT16 = f"{FAMILY}bfloat16_"
"""Those of bfloat16."""
KEY = "tunefarm.pairs_of_bfloat16"
"""Of a loop whose products are such."""


def name_of(groups: Groups, lanes: int, rounded: bool = False) -> str:
    """Of the intrinsic for a vector of so many sums; `rounded`: of bfloat16."""
    sizes = "x".join(map(str, groups))
    return f"{OF_BFLOAT16 if rounded else FAMILY}{sizes}_{lanes}"


@dataclass(frozen=True)
class _Kind:
    """What is multiplied, and added up to what."""

    groups: Groups
    data: str
    weights: str
    sums: str

    @property
    def rounded(self) -> bool:
        return self.data == "bfloat16"


_KINDS = (
    _Kind(FOURS, "uint8", "int8", "int32"),
    _Kind(PAIRS, "int16", "int16", "int32"),
    _Kind(NARROW, "uint8", "int8", "int32"),
    _Kind(PAIRS, "bfloat16", "bfloat16", "float32"),
)
_OF_PAIRS = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
_OF_BYTES = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw", 4: "ssse3.pmadd.ub.sw.128"}
"""By the sums of a vector; the compiler's names."""

_HEAD = """
@T.prim_func(s_tir=True)
def main(
    data: T.Buffer(({terms},), "{data}", offset_factor=1),
    weights: T.Buffer(({lanes}, {sizes}), "{weights}", offset_factor=1),
    sums: T.Buffer(({lanes},), "{sums}", offset_factor=1, scope="local"),
) -> None:
    with T.sblock("root"):
        T.reads(sums[0:{lanes}], data[0:{terms}], weights[0:{lanes}, {whole}])
        T.writes(sums[0:{lanes}])
"""
_MEANING = """
        for i, {axes} in T.grid({lanes}, {sizes}):
            with T.sblock("update"):
                vi, {places} = T.axis.remap("S{kinds}", [i, {axes}])
                sums[vi] = sums[vi] + T.cast(data[{place}], "{sums}") * T.cast(
                    weights[vi, {places}], "{sums}"
                )
"""
_CALLED = """
        sums[T.ramp(T.int32(0), 1, {lanes})] = {result}
"""
_FUNCTION = """
declare <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
  <{lanes} x float>, <{terms} x bfloat>, <{terms} x bfloat>)
define linkonce_odr hidden <{lanes} x float> @{name}(
  <{lanes} x float> %sums, <{lanes} x i32> %data, <{lanes} x i32> %weights) alwaysinline {{
  %numbers = bitcast <{lanes} x i32> %data to <{terms} x bfloat>
  %factors = bitcast <{lanes} x i32> %weights to <{terms} x bfloat>
  %result = call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{bits}(
    <{lanes} x float> %sums, <{terms} x bfloat> %numbers, <{terms} x bfloat> %factors)
  ret <{lanes} x float> %result
}}
"""


@lru_cache(maxsize=1)
def register_neighbours() -> None:
    """Register the intrinsics, without which no trace that has them applies."""
    from tvm.s_tir import TensorIntrin

    for kind in _KINDS:
        for lanes in LENGTHS:
            name = name_of(kind.groups, lanes, kind.rounded)
            if TensorIntrin.get(name, allow_missing=True) is None:
                TensorIntrin.register(name, *_texts(kind, lanes))


def importing(function: Any) -> Any:
    """A scheduled kernel with the functions that its products of bfloat16 call, where a loop is
    annotated with `KEY`."""
    text = "".join(
        _FUNCTION.format(name=_function(lanes), lanes=lanes, terms=2 * lanes, bits=32 * lanes)
        for lanes in LENGTHS
    )

    def noted(loop: Any) -> Any:
        if KEY not in loop.annotations:
            return loop
        return with_note(without_note(loop, KEY, loop.body), "pragma_import_llvm", text)

    return function.with_body(structural_map(function.body, (tirx.For, noted)))


def _texts(kind: _Kind, lanes: int) -> list[Any]:
    """What it means, and what it is."""
    from tvm.script import from_source

    groups = kind.groups
    axes = [f"k{axis}" for axis in range(len(groups))]
    places = [f"v{axis}" for axis in axes]
    place = places[0]
    for size, axis in zip(groups[1:], places[1:], strict=True):
        place = f"({place}) * {size} + {axis}"
    parts = {
        "terms": prod(groups),
        "lanes": lanes,
        "sizes": ", ".join(map(str, groups)),
        "whole": ", ".join(f"0:{size}" for size in groups),
        "data": kind.data,
        "weights": kind.weights,
        "sums": kind.sums,
        "axes": ", ".join(axes),
        "places": ", ".join(places),
        "kinds": "R" * len(groups),
        "place": place,
        "result": _result(kind, lanes),
    }
    return [from_source((_HEAD + body).format(**parts)) for body in (_MEANING, _CALLED)]


def _result(kind: _Kind, lanes: int) -> str:
    data, weights, terms = kind.data, kind.weights, prod(kind.groups)
    sums = f'sums.vload([0], dtype="{kind.sums}x{lanes}")'
    four_bytes = f'T.reinterpret(data.vload([0], "{data}x{terms}"), dtype="int32")'
    repeated = f"T.broadcast({four_bytes}, {lanes})"
    first = ", ".join("0" for _ in (lanes, *kind.groups))
    read = f'weights.vload([{first}], dtype="{weights}x{terms * lanes}")'
    if kind.rounded:
        words = f'T.reinterpret({read}, dtype="int32x{lanes}")'
        called = f'"{_function(lanes)}", {sums}, {repeated}, {words}'
        return f'T.call_pure_extern("float32x{lanes}", {called})'
    broadcast = f'T.reinterpret({repeated}, dtype="{weights}x{terms * lanes}")'
    if kind.groups == FOURS:
        name = f"avx512.vpdpbusd.{32 * lanes}"
        return _call(name, f"int32x{lanes}", sums, broadcast, read)
    if kind.groups == PAIRS:
        return f"{sums} + {_call(_OF_PAIRS[lanes], f'int32x{lanes}', broadcast, read)}"
    halves = _call(_OF_BYTES[lanes], f"int16x{2 * lanes}", broadcast, read)
    ones = f"T.broadcast(T.int16(1), {2 * lanes})"
    return f"{sums} + {_call(_OF_PAIRS[lanes], f'int32x{lanes}', halves, ones)}"


def _function(lanes: int) -> str:
    return f"tunefarm_pairs_of_bfloat16_{lanes}"


def _call(name: str, kind: str, *arguments: str) -> str:
    intrinsic = f'T.llvm_lookup_intrinsic_id("llvm.x86.{name}")'
    return f'T.call_llvm_pure_intrin({intrinsic}, {", ".join(arguments)}, dtype="{kind}")'
