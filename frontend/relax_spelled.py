"""An operator that is several in one, as those that it consists of.

The compiler makes one kernel of attention as an operator of its own: four reductions, for which
there are no schedules. As products with a softmax between them it is what other exporters write.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

_ATTENTION = ("relax.nn.attention", "relax.nn.attention_bias")


@tvm.transform.module_pass(opt_level=0, name="Spelled")
class Spelled:
    """Attention, but for that with a mask or a window of the operator's own."""

    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        speller = _Speller(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                speller.builder_.update_func(variable, speller.visit_expr(function))
        return speller.builder_.get()


@mutator
class _Speller(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if getattr(call.op, "name", "") not in _ATTENTION:
            return call
        attributes = call.attrs
        if attributes.causal_mask is not None or attributes.window_size is not None:
            return call
        op, emit = relax.op, self.builder_.emit
        queries, keys, values, *bias = call.args
        depth = int(queries.ty.shape[3])
        scale = attributes.scale
        by = 1.0 / math.sqrt(depth) if scale is None else float(scale.value)
        q, v = (emit(op.permute_dims(one, [0, 2, 1, 3])) for one in (queries, values))
        k = emit(op.permute_dims(keys, [0, 2, 3, 1]))
        scores = emit(op.matmul(q, k))
        scores = emit(op.multiply(scores, relax.const(by, queries.ty.dtype)))
        if bias:
            scores = emit(op.add(scores, bias[0]))
        mixed = emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), v))
        return op.permute_dims(mixed, [0, 2, 1, 3])
