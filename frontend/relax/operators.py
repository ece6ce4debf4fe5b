"""Operators at which the compiler's change of layout stops, as others at which it does not.

It asks every operator where its channels go, and leaves as it is what has no answer: behind every
convolution that a bounded or a leaky rectifier follows, the image would be turned to channels first
and back. Bounds and slopes are maxima and minima of two tensors, which have an answer; so has
arithmetic with a constant of as many axes as the tensor, or of none.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_walk

_BOUNDS = {"maximum": relax.op.maximum, "minimum": relax.op.minimum}
_BINARY = frozenset(
    f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "power", *_BOUNDS)
)


@tvm.transform.module_pass(opt_level=0, name="Layable")
class Layable:
    """Rewrites bounds (`clip`, and the importer's kernels for it), leaky rectifiers and constants
    of fewer axes, each with the same result."""

    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        rewriter = _Rewriter(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
        shared = relax.transform.EliminateCommonSubexpr()(rewriter.builder_.get())
        return relax.transform.DeadCodeElimination()(shared)


@mutator
class _Rewriter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self._module = module

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        name = getattr(call.op, "name", "")
        if name == "relax.clip":
            tensor, least, most = call.args
            return self._bounded(tensor, float(least.value), float(most.value))
        if name == "relax.nn.leakyrelu":
            return self._leaky(call)
        if name == "relax.variance":
            return self._variance(call)
        if name == "relax.call_tir":
            return self._bound(call)
        if name in _BINARY:
            return self._of_equal_axes(call)
        return call

    def _bounded(self, tensor: Any, least: float, most: float) -> Any:
        dtype = tensor.ty.dtype
        above = self.builder_.emit(relax.op.maximum(tensor, relax.const(least, dtype)))
        return relax.op.minimum(above, relax.const(most, dtype))

    def _leaky(self, call: Any) -> Any:
        (tensor,), slope = call.args, float(call.attrs.alpha)
        if not 0.0 < slope <= 1.0:  # steeper, it would be a minimum; of 0, infinity has no product
            return call
        sloping = relax.op.multiply(tensor, relax.const(slope, tensor.ty.dtype))
        return relax.op.maximum(tensor, self.builder_.emit(sloping))

    def _variance(self, call: Any) -> Any:
        """In two steps, of which the first is the deviation that normalising needs as well: one
        kernel that reduces twice has but the compiler's sketches."""
        (tensor,), axes = call.args, call.attrs.axis
        means = self.builder_.emit(relax.op.mean(tensor, axes, keepdims=True))
        deviation = self.builder_.emit(relax.op.subtract(tensor, means))
        squares = self.builder_.emit(relax.op.multiply(deviation, deviation))
        return relax.op.mean(squares, axes, call.attrs.keepdims)

    def _bound(self, call: Any) -> Any:
        """The importer's bounds: a kernel of a tensor and a constant, which is in the kernel or its
        second argument."""
        made, arguments = call.args[0], list(call.args[1].fields)
        kind = made.name_hint.rstrip("0123456789_")
        if kind not in _BOUNDS or len(arguments) > 2:
            return call
        if len(arguments) == 1:
            constants: list[Any] = []
            structural_walk(self._module[made].body, (tirx.FloatImm, constants.append))
            if len(constants) != 1:
                return call
            arguments.append(relax.const(float(constants[0].value), arguments[0].ty.dtype))
        elif not isinstance(arguments[1], tvm.ir.GenericConst):
            return call
        return self._of_equal_axes(_BOUNDS[kind](*arguments))

    def _of_equal_axes(self, call: Any) -> Any:
        """A constant beside a tensor of more axes gets as many, or none where it is one number."""
        sizes = [len(arg.ty.shape) for arg in call.args]
        arguments = list(call.args)
        for place, (argument, own) in enumerate(zip(call.args, sizes, strict=True)):
            if not isinstance(argument, tvm.ir.GenericConst) or not 0 < own < max(sizes):
                continue
            values = argument.value.numpy()
            whole = (1,) * (max(sizes) - own) + values.shape
            shape = () if math.prod(values.shape) == 1 else whole
            arguments[place] = relax.const(np.reshape(values, shape), str(values.dtype))
        return relax.Call(call.op, arguments, call.attrs)
