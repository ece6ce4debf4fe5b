"""An operator that is several in one, as those that it consists of.

The compiler makes one kernel of attention as an operator of its own: four reductions, for which
there are no schedules. As products with a softmax between them it is what other exporters write.
What quantises a tensor, or does the contrary, is arithmetic: the change of layout passes through
it, and it is fused with its neighbours. Whether a number is one, the compiler does not know of
bfloat16.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.frontend.dtypes import BFLOAT16, BYTES
from tunefarm.frontend.relax.calls import number_of, uses_of

_QUANTISE = "relax.quantize"
_QUANTISED = (_QUANTISE, "relax.dequantize")
_USUAL = (0.0, 128.0, -128.0)
"""Zeros of tensors without a sign, or with ends as far from nought, in either type of 8 bits. They
are numbers in a kernel, which is bounded before it rounds: then rounding and making an integer are
one instruction (`measure.cpu_passes`). Any other zero is an argument, or kernels that differ in
nothing else would be tasks of their own; but not the ends less that zero: whatever is drawn for
arguments when a kernel is tried has to leave its result a range."""
_ATTENTION = ("relax.nn.attention", "relax.nn.attention_bias")
_TELLS = ("relax.isnan", "relax.isinf", "relax.isfinite")
"""What is asked of a number."""


@tvm.transform.module_pass(opt_level=0, name="Spelled")
class Spelled:
    """Attention, but for that with a mask or a window of the operator's own; and what quantises a
    tensor, or does the contrary, with one scale for all of it; and questions about bfloat16."""

    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        speller = _Speller(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                speller.count(function)
                speller.builder_.update_func(variable, speller.visit_expr(function))
        return speller.builder_.get()


@mutator
class _Speller(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._uses: Counter[Any] = Counter()
        self._whole: dict[Any, tuple[Any, float]] = {}
        """By what is to be of 8 bits: the whole numbers in float32 that it is made of, and what is
        to be added to them yet."""

    def count(self, function: Any) -> None:
        """Who reads what in `function`, which is visited next."""
        self._uses = uses_of(function)

    def visit_call_(self, call: Any) -> Any:
        alone = bool(call.args) and self._uses[call.args[0]] == 1
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name in _QUANTISED:
            return self._quantised(call, name, alone)
        if name in _TELLS and str(call.args[0].ty.dtype) == BFLOAT16:
            wide = self.builder_.emit(relax.op.astype(call.args[0], "float32"))
            return relax.Call(call.op, [wide], call.attrs)
        return self._attention(call) if name in _ATTENTION else call

    def _quantised(self, call: Any, name: str, alone: bool) -> Any:
        """
        Args:
            alone: nobody else reads what it reads.
        """
        tensor, *given = call.args
        scale, zero = (number_of(one) for one in given)
        if scale is None or zero is None:
            return call
        kind = str(call.ty.dtype if name == _QUANTISE else tensor.ty.dtype)
        others = {str(tensor.ty.dtype), str(call.ty.dtype)} - {kind}
        if kind not in BYTES or others != {"float32"}:
            return call
        if name == _QUANTISE:
            return self._to_8_bits(tensor, scale, zero, kind)
        whole, added = tensor, None
        # With a scale it is no factor of a product, which wants 8 bits; others need not go through.
        if alone and scale != 1.0:
            whole, added = self._not_yet_narrow(tensor)
        return self._to_floats(whole, scale, zero, added)

    def _to_8_bits(self, tensor: Any, scale: float, zero: float, kind: str) -> Any:
        """Half a step is rounded to the even number, as ONNX has it."""
        op, emit = relax.op, self.builder_.emit
        axes = len(tensor.ty.shape)
        if scale != 1.0:
            tensor = emit(op.multiply(tensor, _constant(1.0 / scale, axes)))
        ends = np.iinfo(kind)
        if zero in _USUAL:
            tensor = self._bounded(tensor, ends.min - zero, ends.max - zero)
            whole = made = emit(op.round(tensor))
            if zero:
                made = emit(op.add(emit(op.astype(whole, "int32")), _constant(zero, 0, "int32")))
            self._whole[made] = whole, zero
            return op.astype(made, kind)
        tensor = emit(op.add(emit(op.round(tensor)), _constant(zero, axes)))
        made = self._bounded(tensor, ends.min, ends.max)
        self._whole[made] = made, 0.0
        return op.astype(made, kind)

    def _bounded(self, tensor: Any, least: float, most: float) -> Any:
        tensor = self.builder_.emit(relax.op.maximum(tensor, _constant(least)))
        return self.builder_.emit(relax.op.minimum(tensor, _constant(most)))

    def _to_floats(self, tensor: Any, scale: float, zero: float, added: float | None) -> Any:
        """
        Args:
            added: what `tensor`, of whole numbers in float32, lacks; None where it is of 8 bits.
        """
        op, emit = relax.op, self.builder_.emit
        axes = len(tensor.ty.shape)
        less = zero if added is None else zero - added
        if added is None:
            tensor = op.astype(tensor, "float32")
        if less:
            tensor = op.subtract(emit(tensor), _constant(less, axes))
        return tensor if scale == 1.0 else op.multiply(emit(tensor), _constant(scale, axes))

    def _not_yet_narrow(self, tensor: Any) -> tuple[Any, float | None]:
        """The whole numbers in float32 that `tensor` is made of, and what they lack of its numbers;
        of others `tensor`, and None."""
        made: Any = self.lookup_binding(tensor) if isinstance(tensor, relax.Var) else None
        if getattr(getattr(made, "op", None), "name", "") != "relax.astype":
            return tensor, None
        return self._whole.get(made.args[0], (tensor, None))

    def _attention(self, call: Any) -> Any:
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


def _constant(value: float, axes: int = 0, dtype: str = "float32") -> Any:
    """With as many axes as the tensor it is a kernel's argument, and kernels alike are one; without
    any it is a number in it."""
    return relax.const(np.full((1,) * axes, value, dtype))
