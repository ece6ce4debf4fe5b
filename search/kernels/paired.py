"""Numbers of bfloat16 brought into the order in which matrix registers multiply them.

An instruction multiplies rows of pairs by columns of pairs: the one operand lies as it is, row by
row; of the other a register's row has a pair of terms of each of sixteen columns. Where those terms
are neighbours in memory, as a query's and a key's are, that is sixteen rows of sixteen pairs
turned; where they are of two rows, as values are, the two are woven into each other. Neither has a
primitive in TensorIR, whose loops move such numbers one by one: these are functions of the
compiler's own text, which go with the kernel. What is not there is read as zeros, and not touched.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tunefarm.devices.matrices import COLUMNS, ROW_BYTES

LANES = COLUMNS
"""Of a vector of single precision, as many as columns of a register."""
TERMS = ROW_BYTES // 2
"""Numbers of bfloat16 in a register's row."""
_NAME = "tunefarm_paired_"
_POWER = (1.0, 0.6951167583465576, 0.22764497995376587, 0.0770670473575592)
"""Of rising powers of f in 2^f, for f from 0 to 1: 1 at 0, with the least relative error, 8.6e-5
(found by Lawson's iteration), which bfloat16, to a 512th, does not tell."""
_FINE_POWER = (
    1.0,
    0.6931470036506653,
    0.24022242426872253,
    0.05550733953714371,
    0.009671512059867382,
    0.001326470053754747,
)
"""The same for f from -1/2 to 1/2: 1.1e-7, and 1.7e-7 in single precision."""
_DOWN, _NEAREST = 1, 0
"""What is left of a number, that is less the whole one below it or the nearest."""


def turned(start: Any, pitch: int, rows: Any, terms: Any, to: Any) -> Any:
    """A statement: up to sixteen rows of up to 32 terms become sixteen rows of pairs, of a column
    for each row.

    Args:
        start: address of the first.
        pitch: bytes from a row to the next.
        rows, terms: how many there are; the rest are zeros.
        to: address of 1024 bytes.
    """
    return _called("turned", start, _long(pitch), _long(rows), _long(terms), to)


def woven(start: Any, pitch: int, rows: Any, columns: Any, to: Any) -> Any:
    """A statement: up to two rows of up to sixteen columns become one row of pairs.

    Args:
        start, pitch, rows, columns: as for `turned`.
        to: address of 64 bytes.
    """
    return _called("woven", start, _long(pitch), _long(rows), _long(columns), to)


def laid(start: Any, terms: Any, to: Any) -> Any:
    """A statement: up to 32 terms, and zeros, at another place: 64 bytes of it."""
    return _called("laid", start, _long(terms), to)


def power(vector: Any) -> Any:
    """2 to a vector of sixteen in single precision, rightly enough for bfloat16; below all numbers
    it is nought."""
    return tirx.call_pure_extern(f"float32x{LANES}", f"{_NAME}power", vector)


def fine_power(vector: Any) -> Any:
    """2 to a vector of sixteen, as single precision has it; below all numbers it is nought."""
    return tirx.call_pure_extern(f"float32x{LANES}", f"{_NAME}fine_power", vector)


def rounded(vector: Any) -> Any:
    """A vector of sixteen in single precision as bits of bfloat16, int16."""
    return tirx.call_pure_extern(f"int16x{LANES}", f"{_NAME}rounded", vector)


def largest(vector: Any) -> Any:
    """Of a vector of sixteen."""
    return tirx.call_pure_extern("float32", f"{_NAME}largest", vector)


def total(vector: Any) -> Any:
    """Of a vector of sixteen."""
    return tirx.call_pure_extern("float32", f"{_NAME}total", vector)


def _called(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("void", _NAME + name, *arguments))


def _long(number: Any) -> Any:
    return tirx.const(number, "int64") if isinstance(number, int) else tirx.Cast("int64", number)


def text() -> str:
    """The functions."""
    declared = (
        "<32 x i16> @llvm.masked.load.v32i16.p0(ptr, <32 x i1>, <32 x i16>)",
        "<16 x i16> @llvm.masked.load.v16i16.p0(ptr, <16 x i1>, <16 x i16>)",
        "<16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)",
        "<16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)",
        "float @llvm.vector.reduce.fadd.v16f32(float, <16 x float>)",
        _with_mask("reduce", "i32"),
        _with_mask("scalef", "<16 x float>"),
    )
    powers = (_power("power", _POWER, _DOWN), _power("fine_power", _FINE_POWER, _NEAREST))
    parts = (_turned(), _woven(), _laid(), *powers, _largest(), _ROUNDED_AND_TOTAL)
    return "".join([*(f"declare {one}\n" for one in declared), *parts])


def _with_mask(name: str, second: str) -> str:
    """An instruction of vectors with a mask."""
    arguments = f"<16 x float>, {second}, <16 x float>, i16, i32"
    return f"<16 x float> @llvm.x86.avx512.mask.{name}.ps.512({arguments})"


def _numbers(count: int) -> str:
    return ", ".join(f"i64 {n}" for n in range(count))


def _inside(lanes: int, count: str) -> str:
    """Which lanes are fewer than `count` says."""
    return f"""
  %one = insertelement <{lanes} x i64> poison, i64 {count}, i64 0
  %all = shufflevector <{lanes} x i64> %one, <{lanes} x i64> poison, <{lanes} x i32> zeroinitializer
  %inside = icmp slt <{lanes} x i64> <{_numbers(lanes)}>, %all"""


def _row(name: str, number: int, lanes: int) -> str:
    """Load a row, as %`name`, where there is one."""
    return f"""
  %is.{name} = icmp slt i64 {number}, %rows
  %mask.{name} = select i1 %is.{name}, <{lanes} x i1> %inside, <{lanes} x i1> zeroinitializer
  %far.{name} = mul i64 %pitch, {number}
  %at.{name} = getelementptr i8, ptr %from, i64 %far.{name}
  %{name} = call <{lanes} x i16> @llvm.masked.load.v{lanes}i16.p0(
    ptr align 2 %at.{name}, <{lanes} x i1> %mask.{name}, <{lanes} x i16> zeroinitializer)"""


def _defined(name: str, arguments: str, body: str) -> str:
    head = f"define linkonce_odr hidden void @{_NAME}{name}({arguments}) alwaysinline"
    return f"{head} {{{body}\n  ret void\n}}\n"


def _turned() -> str:
    """Four times each row is put between the elements of the one eight after it: then the row's
    number has become the place in a row, bit by bit, and the place the number."""
    lines = [_inside(TERMS, "%terms")]
    for row in range(LANES):
        lines.append(_row(f"line{row}", row, TERMS))
        lines.append(f"\n  %r0.{row} = bitcast <{TERMS} x i16> %line{row} to <{LANES} x i32>")
    half = LANES // 2
    for step in range(4):
        for row in range(half):
            pair = f"<{LANES} x i32> %r{step}.{row}, <{LANES} x i32> %r{step}.{row + half}"
            for end in (0, 1):
                lanes = ", ".join(
                    f"i32 {one}, i32 {one + LANES}" for one in range(end * half, end * half + half)
                )
                made = f"%r{step + 1}.{2 * row + end}"
                lines.append(f"\n  {made} = shufflevector {pair}, <{LANES} x i32> <{lanes}>")
    for row in range(LANES):
        lines.append(
            f"""
  %to.{row} = getelementptr i8, ptr %to, i64 {row * 4 * LANES}
  store <{LANES} x i32> %r4.{row}, ptr %to.{row}, align 2"""
        )
    arguments = "ptr %from, i64 %pitch, i64 %rows, i64 %terms, ptr %to"
    return _defined("turned", arguments, "".join(lines))


def _woven() -> str:
    lanes = ", ".join(f"i32 {one}, i32 {one + LANES}" for one in range(LANES))
    body = f"""{_inside(LANES, "%columns")}{_row("upper", 0, LANES)}{_row("lower", 1, LANES)}
  %pairs = shufflevector <{LANES} x i16> %upper, <{LANES} x i16> %lower, <{TERMS} x i32> <{lanes}>
  store <{TERMS} x i16> %pairs, ptr %to, align 2"""
    return _defined("woven", "ptr %from, i64 %pitch, i64 %rows, i64 %columns, ptr %to", body)


def _laid() -> str:
    body = f"""{_inside(TERMS, "%terms")}
  %row = call <{TERMS} x i16> @llvm.masked.load.v{TERMS}i16.p0(
    ptr align 2 %from, <{TERMS} x i1> %inside, <{TERMS} x i16> zeroinitializer)
  store <{TERMS} x i16> %row, ptr %to, align 2"""
    return _defined("laid", "ptr %from, i64 %terms, ptr %to", body)


def _power(name: str, coefficients: Sequence[float], left: int) -> str:
    """2^v = 2^n 2^f, where f is what is `left` beside a whole number n: an instruction for either,
    of which the second takes n as the whole number below what it is given."""
    *lower, value = map(_all, coefficients)
    lines = [
        f"define linkonce_odr hidden <16 x float> @{_NAME}{name}(<16 x float> %v) alwaysinline {{",
        "  %f = call <16 x float> @llvm.x86.avx512.mask.reduce.ps.512("
        f"<16 x float> %v, i32 {left}, <16 x float> zeroinitializer, i16 -1, i32 4)",
    ]
    whole = "%v"
    if left == _NEAREST:
        whole = "%n"
        lines.append("  %n = fsub <16 x float> %v, %f")
    for step, coefficient in enumerate(reversed(lower)):
        lines.append(
            f"  %p{step} = call <16 x float> @llvm.fma.v16f32("
            f"<16 x float> {value}, <16 x float> %f, <16 x float> {coefficient})"
        )
        value = f"%p{step}"
    return "\n".join(
        [
            *lines,
            "  %made = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512("
            f"<16 x float> {value}, <16 x float> {whole}, <16 x float> zeroinitializer, i16 -1, "
            "i32 4)",
            "  ret <16 x float> %made",
            "}",
            "",
        ]
    )


def _all(value: float) -> str:
    """A vector of one number, as the text has it: its bits in double precision."""
    return f"splat (float 0x{struct.pack('>d', value).hex().upper()})"


def _largest() -> str:
    """By halves: the compiler's own reduction takes one after another, for the sake of what is not
    a number, which is none of a maximum's business here."""
    lines = [f"define linkonce_odr hidden float @{_NAME}largest(<16 x float> %v0) alwaysinline {{"]
    half, step = LANES // 2, 0
    while half:
        lanes = ", ".join(f"i32 {(lane + half) % LANES}" for lane in range(LANES))
        now, other, next_ = f"%v{step}", f"%o{step}", f"%v{step + 1}"
        lines += [
            f"  {other} = shufflevector <16 x float> {now}, <16 x float> poison, "
            f"<16 x i32> <{lanes}>",
            f"  %c{step} = fcmp ogt <16 x float> {now}, {other}",
            f"  {next_} = select <16 x i1> %c{step}, <16 x float> {now}, <16 x float> {other}",
        ]
        half, step = half // 2, step + 1
    return "\n".join(
        [
            *lines,
            f"  %found = extractelement <16 x float> %v{step}, i64 0",
            "  ret float %found",
            "}",
            "",
        ]
    )


_ROUNDED_AND_TOTAL = f"""
define linkonce_odr hidden <16 x i16> @{_NAME}rounded(<16 x float> %v) alwaysinline {{
  %half = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %v)
  %bits = bitcast <16 x bfloat> %half to <16 x i16>
  ret <16 x i16> %bits
}}
define linkonce_odr hidden float @{_NAME}total(<16 x float> %v) alwaysinline {{
  %sum = call reassoc float @llvm.vector.reduce.fadd.v16f32(float 0.0, <16 x float> %v)
  ret float %sum
}}
"""
