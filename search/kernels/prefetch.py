"""Asking for the next row while this one is worked on.

A kernel that goes over each row several times reads memory in the first pass alone, and leaves it
idle in the others; the processor's own prefetcher follows the first pass only. The request is a
statement beside the blocks, which no schedule primitive makes: a loop is annotated, in the trace as
well, and `prefetching` adds the statement once the schedule is complete.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlockRealize
from tvm_ffi import structural_map, structural_walk

from tunefarm.search.kernels.splice import renamed, without_note

KEY = "tunefarm.prefetch"
NEAREST, DATA, READ = 3, 1, 0
"""What LLVM's intrinsic is told: into the nearest cache, data, to be read."""


def prefetch_next_row(schedule: Any, loop: Any, argument: int) -> None:
    """Let every iteration of `loop`, which encloses one vectorised loop around one block, ask for
    what that block will read of the kernel's argument at this place a row later. (Its name is
    another in every network.)"""
    schedule.annotate(loop, KEY, argument)


def prefetching(function: Any) -> Any:
    """A scheduled kernel with the requests that its loops are annotated with."""
    arguments = [parameter.name for parameter in function.params]

    def asked(loop: Any) -> Any:
        if KEY not in loop.annotations:
            return loop
        request = _request(loop.body, arguments[int(loop.annotations[KEY])])
        return without_note(loop, KEY, tirx.SeqStmt([request, loop.body]))

    return function.with_body(structural_map(function.body, (tirx.For, asked)))


def _request(vector: Any, tensor: str) -> Any:
    blocks: list[Any] = []
    loads: list[Any] = []
    structural_walk(vector, (SBlockRealize, blocks.append))
    (realize,) = blocks
    structural_walk(realize.block.body, (TensorLoad, loads.append))
    load = next(one for one in loads if one.source.name == tensor)
    variables = [variable.var for variable in realize.block.iter_vars]
    values = dict(zip(variables, realize.iter_values, strict=True))

    first = {vector.loop_var: vector.min}
    places = {variable: renamed(value, first) for variable, value in values.items()}
    *rows, column = (renamed(index, places) for index in load.indices)
    # A row on, which after the last one is no place in the tensor: a request may fail unnoticed.
    there = tirx.BufferLoad(load.source, [*rows, column + load.source.shape[-1]])
    flags = (tirx.const(flag, "int32") for flag in (READ, NEAREST, DATA))
    return tirx.Evaluate(
        tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(there), *flags)
    )
