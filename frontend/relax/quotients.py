"""Error functions and hyperbolic tangents in vectors: a library's are called element by element.

They are quotients of polynomials, right to single precision. Where what an error function makes is
rounded to bfloat16 before anybody reads it, as behind a product whose factors are, its division is
most of what it takes, and a polynomial does: erf(x) = x p(x^2) up to |x| = 3, and 1 from there on.
p is the one of degree eight that is right at 3 and has the least error, 2.2e-5, which single
precision makes 3.3e-5 (found by Lawson's iteration).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16
from tunefarm.frontend.pass_log import PassLog, run_passes
from tunefarm.frontend.relax.calls import is_call, number_of

_ROUGH = (
    *(1.1283866167068481, -0.37577179074287415, 0.11166881024837494, -0.02546614781022072),
    *(0.004358347505331039, -0.0005351471481844783, 4.379342499305494e-05),
    *(-2.1108958208060358e-06, 4.4929240772262347e-08),
)
"""Of rising powers of the square; exact in single precision."""
_END = 3.0


def fast_math(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """The module with error functions and hyperbolic tangents that way. (On a GPU they are
    functions of the compiler's own.)"""
    if target.kind != "llvm":
        return module
    return run_passes(module, [_Quotients()], target, log, "fast math")


def rough_erf(x: Any) -> Any:
    """The error function, off by 4e-5 at the most."""

    def one(*place: Any) -> Any:
        value = tirx.max(_float(-_END), tirx.min(_float(_END), x(*place)))
        square = value * value
        *lower, share = map(_float, _ROUGH)
        for coefficient in reversed(lower):
            share = share * square + coefficient
        return value * share

    return te.compute(x.shape, one, name="rough_erf", tag=topi.tag.ELEMWISE)


def gelu(x: Any, erf: Callable[[Any], Any] = topi.fast_erf) -> Any:
    """x times the normal distribution's share below it."""
    return topi.multiply(x * 0.5, erf(x * math.sqrt(0.5)) + 1.0)


def rough_gelu(x: Any) -> Any:
    """The same, off by 2e-5 times x."""
    return gelu(x, rough_erf)


def gelu_tanh(x: Any) -> Any:
    """Its approximation by a hyperbolic tangent (Hendrycks and Gimpel, Gaussian Error Linear Units,
    2016)."""
    inner = topi.multiply(x * math.sqrt(2 / math.pi), topi.multiply(x, x) * 0.044715 + 1.0)
    return topi.multiply(x * 0.5, topi.fast_tanh(inner) + 1.0)


_MADE: Mapping[str, Callable[[Any], Any]] = {
    "relax.erf": topi.fast_erf,
    "relax.tanh": topi.fast_tanh,
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
}
_MADE_ROUGHLY = {"relax.erf": rough_erf, "relax.nn.gelu": rough_gelu}


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.roughly: frozenset[Any] = frozenset()

    def visit_call_(self, call: Any) -> Any:
        name = getattr(call.op, "name", "")
        made = (_MADE_ROUGHLY if call in self.roughly else _MADE).get(name)
        if made is None:
            return super().visit_call_(call)
        return self.builder_.call_te(made, self.visit_expr(call.args[0]))


@tvm.transform.module_pass(opt_level=0, name="Quotients")
class _Quotients:
    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mutator = _Mutator(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                mutator.roughly = _seen_roughly(function)
                mutator.builder_.update_func(variable, mutator.visit_expr(function))
        return mutator.builder_.get()


def _seen_roughly(function: Any) -> frozenset[Any]:
    """The error functions, and what is made of one at once, of which nothing is seen but a share, 1
    and the function together, that is multiplied and then rounded to bfloat16."""
    bindings = [one for block in function.body.blocks for one in block.bindings]
    readers: dict[Any, list[Any]] = {}

    def read(value: Any, by: Any) -> None:
        if isinstance(value, relax.Var):
            readers.setdefault(value, []).append(by)

    for binding in bindings:
        relax.analysis.post_order_visit(binding.value, partial(read, by=binding))
    relax.analysis.post_order_visit(function.body.body, partial(read, by=None))

    def is_rounded(variable: Any) -> bool:
        reading = readers.get(variable, [])
        return bool(reading) and all(
            one is not None
            and (
                (is_call(one.value, "relax.astype") and str(one.value.ty.dtype) == BFLOAT16)
                or (is_call(one.value, "relax.multiply") and is_rounded(one.var))
            )
            for one in reading
        )

    def is_share(variable: Any) -> bool:
        reading = readers.get(variable, [])
        return bool(reading) and all(
            one is not None
            and is_call(one.value, "relax.add")
            and 1.0 in map(number_of, one.value.args)
            and is_rounded(one.var)
            for one in reading
        )

    return frozenset(
        one.value
        for one in bindings
        if (is_call(one.value, "relax.erf") and is_share(one.var))
        or (is_call(one.value, "relax.nn.gelu") and is_rounded(one.var))
    )


def _float(value: float) -> Any:
    return tirx.const(value, "float32")
