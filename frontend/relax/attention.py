"""Attention as one kernel, where a GPU's tensor cores can have it so, or a processor's caches do
not hold the scores.

Two products with a softmax between them are three kernels, and what lies between them is as long as
the square of a sequence: it is written, read, written and read again; heads are moved in kernels of
their own before and after. Gathered, a kernel has the queries, keys and values as their products
made them. A GPU's schedules (`search.spaces.attention_tile`) keep the scores in registers; scores
stay in single precision, weights are rounded to half precision as they are for the second product
anyway. A processor's (`search.spaces.score_rows`) keep those of some queries in a core's cache.
Where a processor with matrix registers may round factors, both products are of bfloat16, and all
attention is one kernel (`search.spaces.matrix_attention`). So is that of a quantised network,
rounded or not: whole numbers of 8 bits, less their zeros, are exact in bfloat16.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import CanonicalizeBindings, DeadCodeElimination

from tunefarm.devices.bfloat16 import rounds_factors
from tunefarm.devices.gpu import arch_of
from tunefarm.devices.matrices import multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16, HALF, numpy_dtype
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.program import ATTENTION
from tunefarm.frontend.relax.attention_found import attentions
from tunefarm.frontend.relax.one_attention import FIRST, Attention
from tunefarm.frontend.relax.roundable import roundable


def gather_attention(
    module: tvm.IRModule, target: Target, log: PassLog, is_quantised: bool = False
) -> tvm.IRModule:
    """Every attention of the network as a function of its own, which becomes one kernel; on a
    processor where its scores would not stay near, or factors are rounded for matrix registers.

    Where the target says that factors of float32 may be rounded, those of attention are, cast where
    they are read, so that `rounded_factors` can have them stored so; which of a quantised network
    stores nothing.

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    on_gpu = target.kind == "cuda"
    if on_gpu and not arch_of(target).copies_aside:
        return module
    started = time.perf_counter()
    in_matrices = multiplies_halves(target)
    rounds = rounds_factors(target) and in_matrices
    if in_matrices:
        # One name for each tensor, and no readers whose result nobody reads.
        module = DeadCodeElimination()(CanonicalizeBindings()(module))
    main = module["main"]
    found = attentions(main, HALF if on_gpu else ("float32",), whole=in_matrices)
    if in_matrices:
        stored = roundable(main, matrices=True).tensors if not is_quantised else ()
        found = [
            one.rounded_for(stored) if one.is_for_matrices() and (rounds or one.exact) else one
            for one in found
        ]
    if on_gpu:
        found = [one for one in found if one.is_for_registers()]
    else:
        found = [one for one in found if one.rounded or one.is_for_processors()]
    if found:
        gatherer = _Gatherer(module, found)
        gatherer.builder_.update_func(module.get_global_var("main"), gatherer.visit_expr(main))
        module = DeadCodeElimination()(gatherer.builder_.get())
    log.note("relax.gather_attention", started, f"attentions as one kernel: {len(found)}")
    return module


@mutator
class _Gatherer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, found: Sequence[Attention]) -> None:
        super().__init__(module)
        self._found = found
        self._known: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        one = next((one for one in self._found if one.last.same_as(call)), None)
        if one is None:
            return super().visit_call_(call)
        name = self.builder_.add_func(one.function(), ATTENTION)
        given = [self.visit_expr(argument) for argument in one.arguments]
        if not one.rounded:
            return relax.Call(name, given)
        rounded = [self._rounded(argument) for argument in given[:FIRST]]
        made = relax.Call(name, [*rounded, *given[FIRST:]])
        return relax.op.astype(self.builder_.emit(made), "float32") if one.narrow else made

    def _rounded(self, value: Any) -> Any:
        """Once, whoever reads it."""
        if isinstance(value, tvm.ir.GenericConst):
            return relax.const(value.value.numpy().astype(numpy_dtype(BFLOAT16)), BFLOAT16)
        if value not in self._known:
            self._known[value] = self.builder_.emit(relax.op.astype(value, BFLOAT16))
        return self._known[value]
