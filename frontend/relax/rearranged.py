"""Tensors turned and reshaped as late as can be, and where that undoes what was done before, never.

PyTorch's networks of convolutions and normalised channels (ConvNeXt, Segformer) turn their images
to channels last for a normalisation or a product, and back for the next convolution. Where
convolutions have their channels last too, a turn and its contrary meet as soon as what stands
between them, arithmetic of single elements and reshapes, is done on the tensor as it was before it
was turned. And what is done before a reshape is done by the kernel that makes the tensor: an
activation behind a convolution that is reshaped for a product is no kernel of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.onnx.passes import Shape
from tunefarm.frontend.relax.bytes_first import bytes_first
from tunefarm.frontend.relax.calls import is_constant, operator_of, shape_of, uses_of

TURN, RESHAPE = "relax.permute_dims", "relax.reshape"
_PRODUCT = "relax.matmul"
_OF_ELEMENTS = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "power", "maximum", "minimum"),
        *("abs", "astype", "erf", "exp", "log", "negative", "round", "rsqrt", "sigmoid", "sqrt"),
        *("tanh", "clip", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu"),
    )
)
"""Each element of the result is made of those at its place, broadcast from the right."""
_REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum"))


Tensors = dict[int, Any]
"""By their places among a call's arguments."""


def rearranged_late(module: tvm.IRModule) -> tvm.IRModule:
    """The same network with fewer turns, or as many; where there would be more, `module`. They pass
    what makes 8 bits wide where there are no more of them for it."""
    before = turns(module)
    for widening in (True, False):
        rearranger = _Rearranger(module, widening)
        rearranger.builder_.update_func(
            module.get_global_var("main"), rearranger.visit_expr(module["main"])
        )
        made = bytes_first(relax.transform.CanonicalizeBindings()(rearranger.builder_.get()))
        made = relax.transform.EliminateCommonSubexpr()(made)
        made = relax.transform.DeadCodeElimination()(made)
        if turns(made) <= before:
            return made
    return module


def turns(module: tvm.IRModule) -> int:
    """How often a tensor is turned in `module`."""
    count = 0

    def visit(node: Any) -> None:
        nonlocal count
        count += operator_of(node) in (TURN, "relax.layout_transform")

    relax.analysis.post_order_visit(module["main"], visit)
    return count


@dataclass(frozen=True)
class Turned:
    """A tensor of which axis i is the axis order[i] of `source`."""

    source: Any
    order: tuple[int, ...]


def reshaped(shape: Shape, order: Sequence[int], wanted: Shape) -> tuple[Shape, list[int]] | None:
    """How a tensor that is turned by `order` can be reshaped from `shape` to `wanted` before it is
    turned: to which shape, and how it is turned then. None where axes become one that are not
    beside each other before."""
    pieces = _pieces(shape, wanted)
    if pieces is None:
        return None
    found: list[tuple[int, list[int]]] = []
    # Of each piece: where it begins in the source, and its axes of the result.
    for mine, theirs in pieces:
        places = [order[axis] for axis in mine if shape[axis] != 1]
        between = range(places[0], places[-1] + 1) if places else range(0)
        apart = [p for p in between if p not in places and shape[order.index(p)] != 1]
        if places != sorted(places) or apart:
            return None
        if places or not found:
            found.append((places[0] if places else -1, list(theirs)))
        else:  # axes of one stay beside those before them: turning them would move nothing
            found[-1][1].extend(theirs)
    axes = [axis for _, theirs in sorted(found, key=lambda one: one[0]) for axis in theirs]
    return tuple(wanted[axis] for axis in axes), [axes.index(a) for a in range(len(wanted))]


def _pieces(shape: Shape, wanted: Shape) -> list[tuple[range, range]] | None:
    """Axes of `shape`, and those of `wanted` that have their elements, each as few as can be."""
    pieces, i, k = [], 0, 0
    while i < len(shape) or k < len(wanted):
        mine, theirs = i + 1, k + 1
        while mine <= len(shape) and theirs <= len(wanted):
            one, other = prod(shape[i:mine]), prod(wanted[k:theirs])
            if one == other:
                break
            mine, theirs = (mine + 1, theirs) if one < other else (mine, theirs + 1)
        else:  # what is left has one element
            mine, theirs = len(shape), len(wanted)
            if prod(shape[i:]) != prod(wanted[k:]):
                return None
        pieces.append((range(i, mine), range(k, theirs)))
        i, k = mine, theirs
    return pieces


@mutator
class _Rearranger(PyExprMutator):  # type: ignore[misc]
    """
    Args:
        widening: turns pass what makes numbers of 8 bits wide.
    """

    def __init__(self, module: tvm.IRModule, widening: bool) -> None:
        super().__init__(module)
        self._widening = widening
        self._uses = uses_of(module["main"])
        self._last = _ends_with(module["main"])

    def visit_call_(self, call: Any) -> Any:
        once = frozenset(place for place, one in enumerate(call.args) if self._uses[one] == 1)
        ends = call.__chandle__() in self._last
        call = super().visit_call_(call)
        if operator_of(call) == _PRODUCT and not ends:
            return self._of_flat_rows(call)
        return self._late(call, once)

    def _late(self, call: Any, once: Collection[int] = ()) -> Any:
        """`call`, of what was there before its arguments were turned or reshaped, and then turned
        or reshaped.

        Args:
            once: places of those that nobody else reads, as far as is known.
        """
        name = operator_of(call)
        if name == TURN:
            return self._turn_again(call)
        if name == RESHAPE:
            return self._reshape_again(call)
        if name in _OF_ELEMENTS and (self._widening or not _widens(call)):
            return self._of_elements(call, once)
        return self._reduction(call) if name in _REDUCTIONS else call

    def _turn_again(self, call: Any) -> Any:
        shape, axes = shape_of(call.args[0]), call.attrs.axes
        if shape is None:
            return call
        order = range(len(shape))[::-1] if axes is None else [int(axis) for axis in axes]
        before = self._turned(call.args[0])
        if before is None:
            return self._turn(call.args[0], order)
        return self._turn(before.source, [before.order[axis] for axis in order])

    def _reshape_again(self, call: Any) -> Any:
        shape, wanted = shape_of(call.args[0]), shape_of(call)
        if shape is None or wanted is None:
            return call
        turned = self._turned(call.args[0])
        found = reshaped(shape, turned.order, wanted) if turned is not None else None
        if turned is None or found is None:
            return self._reshape(call.args[0], wanted)
        return self._turn(self._emit(self._reshape(turned.source, found[0])), found[1])

    def _of_elements(self, call: Any, once: Collection[int]) -> Any:
        """Where what it reads is rearranged in the same way, or constant."""
        tensors = {place: one for place, one in enumerate(call.args) if shape_of(one) is not None}
        read = {place: one for place, one in tensors.items() if not is_constant(one)}
        made = None
        if shape_of(call) is None or any(_is_unknown(one) for one in call.args):
            return call
        if read:
            made = self._of_turned(call, tensors, read, once)
        if read and made is None and not _widens(call):
            made = self._of_reshaped(call, tensors, read, once)
        return call if made is None else made

    def _of_turned(self, call: Any, tensors: Tensors, read: Tensors, once: Collection[int]) -> Any:
        turned = {place: self._turned(one) for place, one in read.items()}
        orders = {None if one is None else one.order for one in turned.values()}
        order = orders.pop()
        if order is None or orders:
            return None
        most = max(prod(shape_of(one) or ()) for one in read.values())
        if prod(shape_of(call) or ()) > most:
            return None  # there would be more to turn
        if any(len(shape_of(one) or ()) > len(order) for one in tensors.values()):
            return None
        sources = {place: one.source for place, one in turned.items() if one is not None}
        for place, one in tensors.items():
            if place not in sources:
                sources[place] = _turned_back(one, order)
        return self._turn(self._emit(_instead(call, sources), once), order)

    def _of_reshaped(
        self, call: Any, tensors: Tensors, read: Tensors, once: Collection[int]
    ) -> Any:
        """A reshape is put off also where nothing is reshaped but a product that is read `once`,
        whose kernel can do this as well: as it was before, the rest is there for nothing."""
        reshaped = {place: self._made_by(one, RESHAPE) for place, one in read.items()}
        sources = {place: made.args[0] for place, made in reshaped.items() if made is not None}
        shapes, wanted = {shape_of(one) for one in sources.values()}, shape_of(call)
        if len(shapes) != 1 or any(shape_of(one) != wanted for one in read.values()):
            return None
        (shape,), others = shapes, [place for place in read if place not in sources]
        alone = any(self._takes_more(sources[place]) for place in once if place in sources)
        if shape is None or wanted is None or (others and not alone):
            return None
        for place, one in tensors.items():
            if is_constant(one):
                sources[place] = _reshaped_back(one, wanted, shape)
                if sources[place] is None:
                    return None
        for place in others:
            sources[place] = self.builder_.emit(relax.op.reshape(read[place], shape))
        instead = _instead(call, sources)
        # A view that was made for it is not to be put off again.
        made = self.builder_.emit(instead) if others else self._emit(instead, once)
        return self._reshape(made, wanted)

    def _takes_more(self, tensor: Any) -> bool:
        """Whether it is a product, or made of one element by element: by a kernel that takes what
        follows with it."""
        while isinstance(tensor, relax.Var):
            tensor = self.lookup_binding(tensor)
            if operator_of(tensor) in _OF_ELEMENTS:
                tensor = next((one for one in tensor.args if not is_constant(one)), None)
        return operator_of(tensor) in (_PRODUCT, "relax.nn.conv2d")

    def _of_flat_rows(self, call: Any) -> Any:
        """A product with a constant matrix, of rows for each of an image's places (or of several
        windows'): all of them are rows alike, of which some number fills a tile."""
        data, matrix = call.args
        shape, weights, wanted = shape_of(data), shape_of(matrix), shape_of(call)
        if shape is None or weights is None or wanted is None or not is_constant(matrix):
            return call
        several = sum(size > 1 for size in shape[:-1]) > 1
        if len(weights) != 2 or not several:
            return call
        rows = self._emit(self._reshape(data, (prod(shape[:-1]), shape[-1])))
        return self._reshape(self._emit(relax.Call(call.op, [rows, matrix], call.attrs)), wanted)

    def _reduction(self, call: Any) -> Any:
        turned = self._turned(call.args[0])
        if turned is None or not call.attrs.keepdims or call.attrs.axis is None:
            return call
        axes = sorted(turned.order[int(axis)] for axis in call.attrs.axis)
        make = getattr(relax.op, call.op.name.removeprefix("relax."))
        return self._turn(self._emit(make(turned.source, axes, True)), turned.order)

    def _turn(self, source: Any, order: Sequence[int]) -> Any:
        shape = shape_of(source)
        assert shape is not None, "else it is not known to be turned"
        moved = [axis for axis in order if shape[axis] != 1]
        if moved == sorted(moved):  # nothing moves
            return self._reshape(source, tuple(shape[axis] for axis in order))
        return relax.op.permute_dims(source, list(order))

    def _reshape(self, source: Any, wanted: Shape) -> Any:
        before = self._made_by(source, RESHAPE)
        source = source if before is None else before.args[0]
        return source if shape_of(source) == wanted else relax.op.reshape(source, wanted)

    def _emit(self, call: Any, once: Collection[int] = ()) -> Any:
        """The tensor that `call`, which may be one already, makes."""
        if isinstance(call, relax.Var):
            return call
        return self.builder_.emit(self._late(self.builder_.normalize(call), once))

    def _turned(self, tensor: Any) -> Turned | None:
        """What `tensor` is turned of; None where it is not."""
        made = self._made_by(tensor, TURN)
        if made is None or made.attrs.axes is None or shape_of(made.args[0]) is None:
            return None
        return Turned(made.args[0], tuple(int(axis) for axis in made.attrs.axes))

    def _made_by(self, tensor: Any, name: str) -> Any:
        """The call of that operator which makes `tensor`; None where that is something else."""
        while isinstance(tensor, relax.Var):
            tensor = self.lookup_binding(tensor)
        return tensor if operator_of(tensor) == name else None


def _ends_with(main: Any) -> set[int]:
    """Handles of the calls whose results are the network's, or become that element by element: what
    they yield is not reshaped, for that would be a copy."""
    given: list[Any] = []
    relax.analysis.post_order_visit(main.body.body, given.append)
    results = {one for one in given if isinstance(one, relax.Var)}
    found: set[int] = set()
    for block in reversed(main.body.blocks):
        for binding in reversed(block.bindings):
            value = binding.value
            if binding.var not in results:
                continue
            found.add(value.__chandle__())
            if isinstance(value, relax.Tuple | relax.Var):
                results.update(getattr(value, "fields", (value,)))
            elif operator_of(value) in _OF_ELEMENTS:
                results.update(value.args)
    return found


def keeps_together(call: Any) -> bool:
    """Whether a rearrangement makes each axis of one that there was, of some beside each other, or
    of a part of one."""
    shape, wanted = shape_of(call.args[0]), shape_of(call)
    if operator_of(call) != RESHAPE or shape is None or wanted is None:
        return operator_of(call) == TURN
    return all(
        sum(shape[axis] > 1 for axis in mine) < 2 or sum(wanted[axis] > 1 for axis in theirs) < 2
        for mine, theirs in _pieces(shape, wanted) or [(range(len(shape)), range(len(wanted)))]
    )


def _instead(call: Any, sources: Tensors) -> Any:
    arguments = [sources.get(place, one) for place, one in enumerate(call.args)]
    return relax.Call(call.op, arguments, call.attrs)


def _widens(call: Any) -> bool:
    """Whether it makes more of 8 bits: a product that reads them is one of whole numbers only where
    nothing stands between (`relax.whole`)."""
    return any(str(getattr(one.ty, "dtype", "")) in BYTES for one in call.args)


def _is_unknown(tensor: Any) -> bool:
    """Whether it is one whose sizes are not known."""
    return isinstance(tensor.ty, relax.TensorType) and shape_of(tensor) is None


def _turned_back(constant: Any, order: Sequence[int]) -> Any:
    """A constant beside a tensor that is turned by `order`, for that tensor as it is before."""
    values = constant.value.numpy()
    if values.ndim == 0:
        return constant
    whole = _of_rank(values, len(order))
    back = np.asarray(np.transpose(whole, np.argsort(order)), order="C")
    return relax.const(back, str(constant.ty.dtype))


def _reshaped_back(constant: Any, wanted: Shape, shape: Shape) -> Any:
    """A constant beside a tensor that was reshaped from `shape` to `wanted`, for that tensor as it
    is before; None where it differs along an axis but not along others that were one with it."""
    values = constant.value.numpy()
    if values.ndim == 0:
        return constant
    pieces, whole = _pieces(shape, wanted), _of_rank(values, len(wanted))
    back: list[int] = []
    for mine, theirs in pieces or ():
        if all(whole.shape[axis] == wanted[axis] for axis in theirs):
            back += [shape[axis] for axis in mine]
        elif all(whole.shape[axis] == 1 for axis in theirs):
            back += [1] * len(mine)
        else:
            return None
    return relax.const(whole.reshape(back), str(constant.ty.dtype)) if pieces else None


def _of_rank(values: NDArray[Any], rank: int) -> NDArray[Any]:
    """With axes of one before its own, as it is broadcast."""
    return values.reshape((1,) * (rank - values.ndim) + values.shape)
