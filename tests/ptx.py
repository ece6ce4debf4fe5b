"""Kernels in PTX, written by hand for tests, and a GPU of paper to run them on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.machine import Machine
from tunefarm.measure.cuda.emulator.ptx import parse

REGISTERS = """\
    .reg .pred %p<8>;
    .reg .b16 %rs<16>;
    .reg .b32 %r<64>;
    .reg .f32 %f<64>;
    .reg .b64 %rd<32>;
"""


def module(body: str, parameters: int = 2, shared: str = "", threads: int = 1024) -> Any:
    """One kernel, ``k``, whose parameters ``p0``, ``p1``, ... are addresses."""
    given = ", ".join(f".param .u64 p{n}" for n in range(parameters))
    return parse(
        f".version 9.0\n.target sm_80\n.address_size 64\n{shared}\n"
        f".visible .entry k({given}) .maxntid {threads}, 1, 1 {{\n{REGISTERS}{body}\n ret;\n}}\n"
    )


PLACES = """\
    ld.param.u64 %rd0, [p0];
    ld.param.u64 %rd1, [p1];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0;
    mul.wide.s32 %rd2, %r3, 4;
    add.s64 %rd3, %rd0, %rd2;
    add.s64 %rd4, %rd1, %rd2;
"""
"""The addresses of a thread's own four bytes in p0 and p1: %rd3 and %rd4; which thread: %r3."""


class Gpu:
    """A machine, arrays in its memory, and launches."""

    def __init__(self, **options: Any) -> None:
        self.machine = Machine(**options)

    def put(self, array: Any) -> int:
        address = self.machine.memory.allocate(array.nbytes)
        self.machine.memory.span(address, array.nbytes)[:] = array.reshape(-1).view(np.uint8)
        return address

    def get(self, address: int, like: Any) -> Any:
        content = self.machine.memory.span(address, like.nbytes)
        return content.copy().view(like.dtype).reshape(like.shape)

    def run(self, code: Any, grid: int, block: int, *addresses: int, shared: int = 0) -> None:
        arguments = [one.to_bytes(8, "little") for one in addresses]
        self.machine.launch(code, "k", (grid, 1, 1), (block, 1, 1), arguments, shared)

    def mapped(self, code: Any, given: Any, block: int = 64) -> Any:
        """What ``k(p0, p1)`` makes in p1 of `given` in p0, a thread for each four bytes."""
        source, target = self.put(given), self.put(np.zeros_like(given))
        self.run(code, len(given) // block, block, source, target)
        return self.get(target, given)
