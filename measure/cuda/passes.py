"""What TVM's lowering for GPUs gets wrong, set right before and after it.

Both were found by running kernels on a GPU of paper (`emulator`); without them kernels
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

from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.search.kernels.splice import renamed, without_note

_ASYNCHRONOUS = "software_pipeline_async_stages"
_WRITTEN = 4
"""Addresses of a vector that TVM can write one by one."""


def copied_apart(function: Any) -> Any:
    """`function` with what cannot be copied as a whole copied in parts.

    TVM takes a vector's first element for its address and copies as many bytes from there and to
    there (``cp.async``), also where the others lie elsewhere, as those of a transposed operand do,
    and where the address is no multiple of the vector's size. So what lies elsewhere is copied
    element by element, and what begins at odd places in shorter vectors; where not even two
    elements lie together, without being asynchronous, for TVM takes a loop over single elements
    for another kind of copy. What is copied in other ways TVM takes apart itself, if it is of four
    elements at most: more addresses it cannot always write.
    """
    loops: list[Any] = []
    structural_walk(function.body, (tirx.For, loops.append))
    analyzer = Analyzer()
    for loop in loops:
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent), True)
    beside: list[Any] = []
    for outer in loops:
        if _ASYNCHRONOUS in outer.annotations:
            structural_walk(outer.body, (tirx.For, beside.append))

    def written_apart(loop: Any) -> Any:
        """What is not asynchronous."""
        lanes = int(loop.extent) if _is_vector(loop) else 0
        if lanes <= _WRITTEN or any(loop.loop_var.same_as(one.loop_var) for one in beside):
            return loop
        whole = _together(loop, analyzer) == lanes
        return loop if whole else _in_vectors(loop, gcd(lanes, _WRITTEN))

    def pipelined(outer: Any) -> Any:
        if _ASYNCHRONOUS not in outer.annotations:
            return outer
        single = False

        def apart(loop: Any) -> Any:
            nonlocal single
            if not _is_vector(loop):
                return loop
            lanes, together = int(loop.extent), _together(loop, analyzer)
            single = single or together == 1 < lanes
            if together in (None, 1):
                return _with(loop, loop.body, tirx.ForKind.SERIAL)
            return loop if together == lanes else _in_vectors(loop, together)

        body = structural_map(outer.body, (tirx.For, apart))
        return without_note(outer, _ASYNCHRONOUS, body) if single else _with(outer, body)

    body = structural_map(function.body, (tirx.For, written_apart))
    return function.with_body(structural_map(body, (tirx.For, pipelined)))


def _is_vector(loop: Any) -> bool:
    return loop.kind == tirx.ForKind.VECTORIZED and isinstance(loop.body, SBlockRealize)


def _with(loop: Any, body: Any, kind: Any = None) -> Any:
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind if kind is None else kind,
        body,
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
    """How many elements of what the vectorised `loop` reads and writes of global memory can be
    copied at once: they lie side by side, from a multiple of as many on, and are copied under one
    condition. None where they lie apart."""
    block = loop.body.block
    bound = dict(zip((v.var for v in block.iter_vars), loop.body.iter_values, strict=True))
    places: list[tuple[Any, int, bool]] = []
    """What counts up along the vector; what it must begin at a multiple of, besides, if at any:
    where a row of shared memory begins is decided later."""

    def access(buffer: Any, indices: Any) -> None:
        kind = buffer.scope().partition(".")[0]
        if kind in ("global", "shared"):
            place: Any = 0
            for index, size in zip(indices, buffer.shape, strict=True):
                place = place * size + index
            places.append((place, 0, kind == "global"))

    def comparison(one: Any, beyond: tuple[int, int]) -> None:
        """`beyond`: how far behind a limit on the right, or on the left, it turns."""
        sides = ((one.a, one.b, beyond[0]), (one.b, one.a, beyond[1]))
        for value, limit, more in sides:
            if isinstance(limit, tirx.IntImm):
                places.append((value, int(limit.value) + more, True))

    structural_walk(block.body, (TensorLoad, lambda one: access(one.source, one.indices)))
    structural_walk(block.body, (tirx.BufferStore, lambda one: access(one.buffer, one.indices)))
    for kind, beyond in (
        (tirx.LT, (0, 1)),
        (tirx.LE, (1, 0)),
        (tirx.GT, (1, 0)),
        (tirx.GE, (0, 1)),
    ):
        structural_walk(block.body, (kind, lambda one, by=beyond: comparison(one, by)))
    together = int(loop.extent)
    for place, limit, aligned in places:
        value = renamed(place, bound)
        first = analyzer.simplify(renamed(value, {loop.loop_var: loop.min}))
        distance = analyzer.simplify(value - first)
        if _is_zero(distance):  # one for all of them
            continue
        if not _is_zero(analyzer.simplify(distance - loop.loop_var)):
            return None
        if aligned:
            start = analyzer.modular_set(first)
            together = gcd(together, start.coeff, start.base, limit)
    # Of eight zeros in bytes, which stand where there is nothing to copy, TVM's CUDA is none.
    padded = any(limit for _, limit, _ in places)
    return 4 if padded and together == 8 and _bytes_each(block) == 1 else together


def _bytes_each(block: Any) -> int:
    return numpy_dtype(str(block.writes[0].source.dtype)).itemsize


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
