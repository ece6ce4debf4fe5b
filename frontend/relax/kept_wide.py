"""Numbers of 8 bits that are kept in 16, where products read them in 16 (needs TVM).

A processor without instructions for four neighbours multiplies pairs of 16 bits
(`integer_products`). What makes such numbers then stores them in 16, so that nothing has to make
them wider between; what only moves them, such as a pool, moves 16. Where they come from elsewhere
(an input, a kernel that is what it is) they are made wider on their own.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import CanonicalizeBindings, DeadCodeElimination

from tunefarm.frontend.dtypes import BYTES, BYTES_KEPT
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.relax.calls import is_call, number_of

_MOVES = (
    *("relax.nn.max_pool2d", "relax.concat", "relax.permute_dims", "relax.reshape"),
    *("relax.squeeze", "relax.expand_dims", "relax.strided_slice"),
)
"""Operators whose results are some of their arguments' numbers."""
_EXACT = ("int32", "float32")
"""Types that hold whatever is bounded by the ends of one of 8 bits."""


def keep_wide(module: tvm.IRModule, log: PassLog) -> tvm.IRModule:
    """Every tensor of 8 bits that is made wider for a product, and that is made for it, in 16."""
    started = time.perf_counter()
    canonical = CanonicalizeBindings()(module)  # one name for each tensor
    main = canonical["main"]
    graph = _Graph(main)
    if not graph.wide:
        return module
    keeper = _Keeper(canonical, graph)
    keeper.builder_.update_func(canonical.get_global_var("main"), keeper.visit_expr(main))
    module = DeadCodeElimination()(keeper.builder_.get())
    log.note("relax.keep_wide", started, f"tensors of 8 bits in 16: {len(graph.wide)}")
    return module


class _Graph:
    """What is bound to what, and which of it is to be of 16 bits.

    Attributes:
        wide: variables of 8 bits.
    """

    def __init__(self, function: Any) -> None:
        bindings = [one for block in function.body.blocks for one in block.bindings]
        self._bound = {one.var: one.value for one in bindings}
        values = self._bound.values()
        main = function.body.body
        result = self._bound.get(main, main)
        # A kernel that is what it is reads 8 bits, and so does whoever asks for the results.
        others = [
            _tensors(main),
            _tensors(result),
            *(_tensors_of(one) for one in values if not _takes_any(one)),
        ]
        fixed = {tensor for some in others for tensor in some}
        wanted = self._with_movers({one.args[0] for one in values if _widens(one)})
        self.wide = {one for one in wanted - fixed if self._can(one)}
        while refused := {one for one in self.wide if not self._moves_alike(one)}:
            self.wide -= refused

    def _made_by(self, variable: Any) -> Any:
        return self._bound.get(variable)

    def _with_movers(self, wanted: set[Any]) -> set[Any]:
        """Also what they are moved from, and to."""
        moved = [(var, _tensors_of(value)) for var, value in self._bound.items() if _is_move(value)]
        while True:
            more = {one for var, tensors in moved if var in wanted for one in tensors}
            more |= {var for var, tensors in moved if wanted.intersection(tensors)}
            if more <= wanted:
                return wanted
            wanted |= more

    def _can(self, variable: Any) -> bool:
        """Whether what makes it may as well make 16 bits."""
        value = self._made_by(variable)
        if _is_move(value):
            return True
        return is_call(value, "relax.astype") and self._is_bounded(
            value.args[0], str(value.attrs.dtype)
        )

    def _moves_alike(self, variable: Any) -> bool:
        """Whether what moves it, or is moved for it, is of 16 bits as well."""
        value = self._bound[variable]
        made_of = _tensors_of(value) if _is_move(value) else []
        made = [
            to for to, one in self._bound.items() if _is_move(one) and variable in _tensors_of(one)
        ]
        return self.wide.issuperset([*made_of, *made])

    def _is_bounded(self, made: Any, kind: str) -> bool:
        """Whether `made` lies between the ends of a type, as `spelled` has what is quantised: made
        of it, it is the same number as made of a wider type."""
        value, added = self._made_by(made), 0.0
        if is_call(value, "relax.add") and (number := number_of(value.args[1])) is not None:
            added, value = number, self._made_by(value.args[0])
        if is_call(value, "relax.astype") and str(value.attrs.dtype) in _EXACT:
            value = self._made_by(value.args[0])
        if is_call(value, "relax.round"):
            value = self._made_by(value.args[0])
        if not is_call(value, "relax.minimum"):
            return False
        most, inner = number_of(value.args[1]), self._made_by(value.args[0])
        if most is None or not is_call(inner, "relax.maximum"):
            return False
        least, ends = number_of(inner.args[1]), np.iinfo(kind)
        return least is not None and ends.min <= least + added and most + added <= ends.max


@mutator
class _Keeper(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, graph: _Graph) -> None:
        super().__init__(module)
        self._graph = graph

    def visit_var_binding_(self, binding: Any) -> None:
        if binding.var in self._graph.wide:
            call = self.visit_expr(binding.value)
            made = (
                relax.op.astype(call.args[0], BYTES_KEPT) if is_call(call, "relax.astype") else call
            )
            self.set_var_remap(binding.var, self.builder_.emit(made))
            return
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        wide = self._graph.wide.intersection(_tensors_of(call))
        call = super().visit_call_(call)
        if not wide:
            return call
        if _is_move(call):
            return relax.Call(call.op, call.args, call.attrs)
        kind = str(call.attrs.dtype)
        return call.args[0] if kind == BYTES_KEPT else relax.op.astype(call.args[0], kind)


def _widens(value: Any) -> bool:
    return (
        is_call(value, "relax.astype")
        and str(value.attrs.dtype) == BYTES_KEPT
        and isinstance(value.args[0], relax.Var)
        and str(value.args[0].ty.dtype) in BYTES
    )


def _is_move(value: Any) -> bool:
    return is_call(value, *_MOVES)


def _takes_any(value: Any) -> bool:
    """Whether it is done with numbers of any type alike."""
    return is_call(value, "relax.astype", *_MOVES)


def _tensors_of(call: Any) -> list[Any]:
    return [one for argument in getattr(call, "args", ()) for one in _tensors(argument)]


def _tensors(value: Any) -> list[Any]:
    """What a value is, or a tuple is made of, shapes and indices aside."""
    if isinstance(value, relax.Tuple):
        return [one for field in value.fields for one in _tensors(field)]
    return [value] if isinstance(getattr(value, "ty", None), relax.TensorType) else []
