"""The instructions of a processor's matrix registers, for TensorIR: x86 with AMX.

There are eight registers of up to 16 rows of 64 bytes. Each thread says how large they are to be
(LDTILECFG) before it uses them, and lets go of them after. The kernel asks the system for the right
to use them until it has it (Linux lends it on request, from 5.16 on; without it the first such
instruction kills the process).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import StringImm

from tunefarm.devices.cpu import ASK_FOR_MATRICES
from tunefarm.devices.matrices import REGISTERS
from tunefarm.search.kernels.splice import once

_ALLOW = "tunefarm_allow_matrices"
_PALETTE = 1
"""Of the ways to divide the registers' memory: the only one there is."""

_FUNCTION = f"""
@{_ALLOW}_lent = linkonce_odr hidden global i8 0
declare i64 @syscall(i64, ...)
define linkonce_odr hidden void @{_ALLOW}() noinline {{
  %before = load atomic i8, ptr @{_ALLOW}_lent monotonic, align 1
  %lent = icmp ne i8 %before, 0
  br i1 %lent, label %done, label %ask
ask:
  %answer = call i64 (i64, ...) @syscall({", ".join(f"i64 {one}" for one in ASK_FOR_MATRICES)})
  %yes = icmp eq i64 %answer, 0
  %now = zext i1 %yes to i8
  store atomic i8 %now, ptr @{_ALLOW}_lent monotonic, align 1
  br label %done
done:
  ret void
}}
"""


def allowed() -> Any:
    """A statement that asks for the right to use them."""
    ask = tirx.Evaluate(tirx.call_extern("void", _ALLOW))
    return once(with_text(_FUNCTION, ask), "allowed")


def with_text(text: str, body: Any) -> Any:
    """`body`, and functions in the compiler's own text that go with the kernel."""
    kind = "pragma_import_llvm"
    return tirx.AttrStmt(tirx.const(0, "int32"), kind, StringImm(text), body)


def register_sizes(rows: Sequence[int], widths: Sequence[int]) -> list[int]:
    """What LDTILECFG reads, as sixteen numbers of 32 bits: of each register its rows, and bytes in
    one."""
    assert len(rows) == len(widths) == REGISTERS
    wide, tall = [*widths, *[0] * REGISTERS], [*rows, *[0] * REGISTERS]
    words = [_PALETTE, 0, 0, 0, *(low | high << 16 for low, high in _pairs(wide))]
    return [*words, *(int.from_bytes(tall[at : at + 4], "little") for at in range(0, 16, 4))]


def configured(words: Sequence[int]) -> Any:
    """How large each register is, told to this thread's processor."""
    there = tirx.decl_buffer((16,), "int32", "matrix_sizes", scope="local")
    text = [
        tirx.BufferStore(there, tirx.const(word, "int32"), [tirx.const(at, "int64")])
        for at, word in enumerate(words)
    ]
    begin = tirx.address_of(tirx.BufferLoad(there, [tirx.const(0, "int64")]))
    return once(tirx.SeqStmt([*text, called("ldtilecfg", begin)]), "configured", [there])


def called(name: str, *arguments: Any) -> Any:
    """An instruction: registers are numbers of 8 bits, distances of 64."""
    distance = len(arguments) - 1 if name in ("tileloadd64", "tilestored64") else -1
    given = [
        tirx.const(one, "int64" if place == distance else "int8") if isinstance(one, int) else one
        for place, one in enumerate(arguments)
    ]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *given))


def _pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))
