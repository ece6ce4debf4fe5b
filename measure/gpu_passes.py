"""What TVM's lowering for GPUs gets wrong, set right before and after it.

Both were found by running kernels on a GPU of paper (`measure.emulator`); without them kernels
compile, and compute something else or are ended by the GPU.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tunefarm.search.splice import renamed, without_note

_ASYNCHRONOUS = "software_pipeline_async_stages"


def copied_apart(function: Any) -> Any:
    """`function` with what cannot be copied asynchronously as a whole copied in parts that can.

    TVM takes a vector's first element for its address and copies as many bytes from there
    (``cp.async``), also where the others lie elsewhere, as those of a transposed operand do, and
    where the address is no multiple of the vector's size. What lies elsewhere is copied element by
    element; what begins at odd places in shorter vectors, or, where not even two elements do,
    without being asynchronous, for TVM takes a loop over single elements for another kind of copy.
    """
    loops: list[Any] = []
    structural_walk(function.body, (tirx.For, loops.append))
    analyzer = Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    def pipelined(outer: Any) -> Any:
        if _ASYNCHRONOUS not in outer.annotations:
            return outer
        copied: list[tuple[int, int | None]] = []

        def apart(loop: Any) -> Any:
            if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.body, SBlockRealize):
                return loop
            lanes, together = int(loop.extent), _together(loop, analyzer)
            copied.append((lanes, together))
            if together is None:
                return _changed(loop, kind=tirx.ForKind.SERIAL)
            return loop if together in (1, lanes) else _in_vectors(loop, together)

        changed = _changed(outer, body=structural_map(outer.body, (tirx.For, apart)))
        if any(together == 1 < lanes for lanes, together in copied):
            return without_note(changed, _ASYNCHRONOUS, changed.body)
        return changed

    return function.with_body(structural_map(function.body, (tirx.For, pipelined)))


def _changed(loop: Any, body: Any = None, kind: Any = None) -> Any:
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind if kind is None else kind,
        loop.body if body is None else body,
        loop.thread_binding,
        loop.annotations,
    )


def _in_vectors(loop: Any, lanes: int) -> Any:
    """The vectorised `loop` as one over vectors of `lanes`."""
    part, lane = (
        Var(f"{loop.loop_var.name}_{name}", loop.loop_var.ty) for name in ("part", "lane")
    )
    body = renamed(loop.body, {loop.loop_var: part * lanes + lane})
    inner = tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, body)
    return tirx.For(part, 0, int(loop.extent) // lanes, tirx.ForKind.SERIAL, inner)


def _together(loop: Any, analyzer: Any) -> int | None:
    """How many elements of what the vectorised `loop` reads from global memory can be copied at
    once: they lie side by side, from a multiple of as many on. None where they lie apart."""
    block = loop.body.block
    bound = dict(zip((v.var for v in block.iter_vars), loop.body.iter_values, strict=True))
    found: list[Any] = []
    structural_walk(block.body, (TensorLoad, found.append))
    together = int(loop.extent)
    for load in found:
        if load.source.scope() != "global":
            continue
        place: Any = 0
        for index, size in zip(load.indices, load.source.shape, strict=True):
            place = place * size + renamed(index, bound)
        first = analyzer.simplify(renamed(place, {loop.loop_var: loop.min}))
        if not _is_zero(analyzer.simplify(place - first - loop.loop_var)):
            return None
        start = analyzer.modular_set(first)
        together = gcd(together, start.coeff, start.base)
    return together


def _is_zero(expression: Any) -> bool:
    return isinstance(expression, tirx.IntImm) and int(expression.value) == 0


def bound_loads(function: Any) -> Any:
    """`function` with every vector that is read to be computed with under a name of its own.

    TVM's writer of CUDA C++ calls such a vector by a name that it gives to equal text, and so reads
    once what was written again in between.
    """
    count = 0

    def in_store(store: Any) -> Any:
        nonlocal count
        if isinstance(store.value, TensorLoad):
            return store
        made: list[Any] = []

        def named(load: Any, _mutator: Any) -> Any:
            if load.ty.is_scalar():
                return load
            made.append(tirx.Bind(Var(f"vector_{count + len(made)}", load.ty), load))
            return made[-1].var

        def kept(call: Any, mutator: Any) -> Any:
            # What is read under a condition is not to be read without it.
            return call if call.op.name == "prim.if_then_else" else mutator.default_mutate(call)

        value = structural_mutate(store.value, ((Call, kept), (TensorLoad, named)))
        count += len(made)
        if not made:
            return store
        return tirx.SeqStmt([*made, tirx.BufferStore(store.buffer, value, store.indices)])

    return function.with_body(structural_map(function.body, (tirx.BufferStore, in_store)))
