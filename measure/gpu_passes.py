"""What TVM's lowering for GPUs gets wrong, set right before and after it.

Both were found by running kernels on a GPU of paper (`measure.emulator`); without them kernels
compile, and compute something else or are ended by the GPU.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_map, structural_mutate, structural_walk

from tunefarm.search.splice import renamed

_ASYNCHRONOUS = "software_pipeline_async_stages"


def copied_one_by_one(function: Any) -> Any:
    """`function` with what cannot be copied asynchronously as a whole copied by its elements.

    TVM takes a vector's first element for its address and copies as many bytes from there
    (``cp.async``), also where the others lie elsewhere, as those of a transposed operand do, and
    where the address is no multiple of the vector's size.
    """

    def pipelined(loop: Any) -> Any:
        if _ASYNCHRONOUS not in loop.annotations:
            return loop
        return _with_body(loop, structural_map(loop.body, (tirx.For, apart)))

    def apart(loop: Any) -> Any:
        vectors = loop.kind == tirx.ForKind.VECTORIZED
        if vectors and isinstance(loop.body, SBlockRealize) and not _whole(loop, extents):
            return _with_body(loop, loop.body, tirx.ForKind.SERIAL)
        return loop

    extents: dict[Any, Any] = {}
    structural_walk(
        function.body, (tirx.For, lambda loop: extents.__setitem__(loop.loop_var, loop))
    )
    return function.with_body(structural_map(function.body, (tirx.For, pipelined)))


def _with_body(loop: Any, body: Any, kind: Any = None) -> Any:
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind if kind is None else kind,
        body,
        loop.thread_binding,
        loop.annotations,
    )


def _whole(loop: Any, extents: dict[Any, Any]) -> bool:
    """Whether what the vectorised `loop` reads from global memory lies together, at a multiple of
    its size."""
    lanes = int(loop.extent)
    block = loop.body.block
    bound = dict(zip((v.var for v in block.iter_vars), loop.body.iter_values, strict=True))
    analyzer = Analyzer()
    for variable, outer in extents.items():
        analyzer.bind(variable, tvm.ir.Range.from_min_extent(outer.min, outer.extent))
    found: list[Any] = []
    structural_walk(block.body, (TensorLoad, found.append))
    for load in found:
        if load.source.scope() != "global":
            continue
        place: Any = 0
        for index, size in zip(load.indices, load.source.shape, strict=True):
            place = place * size + renamed(index, bound)
        first = analyzer.simplify(renamed(place, {loop.loop_var: loop.min}))
        apart = analyzer.simplify(place - first - loop.loop_var)
        start = analyzer.modular_set(first)
        if not (_is_zero(apart) and start.coeff % lanes == 0 and start.base % lanes == 0):
            return False
    return True


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
