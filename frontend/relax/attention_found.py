"""The attentions of a network, found in its operators (needs TVM): two products with a softmax
between them, as exporters have written it over the years.

Queries, keys and values may be moved before, and the result after; queries and keys, and scores,
may be multiplied by numbers, which are one factor of the scores here (exporters split it between
the two, so that numbers of half precision stay small; products are summed in single precision
here). What else is done to scores is done in the kernel. A mask that adds nothing is none. Weights
that are no number may be made nought, which newer exporters do for queries that see no key; and in
quantised networks all five, queries, keys, scores, weights and values, may be whole numbers by a
scale, and the result 8 bits of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod, sqrt
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tunefarm.frontend.dtypes import BYTES, HALF
from tunefarm.frontend.relax.calls import is_call, number_of, part_of, shape_of
from tunefarm.frontend.relax.one_attention import FEWEST_ROWS, FIRST, Attention, Step
from tunefarm.frontend.relax.rearranged import keeps_together
from tunefarm.frontend.relax.whole_numbers import is_exact

_LEAST_FACTOR = 1e-30
"""Of scores, and one by the largest: beyond, it may be none in single precision."""
_USUAL_SCORES, _USUAL_STEP, _USUAL_WEIGHTS, _USUAL_RESULT = 16.0, 1 / 64, 8192.0, 0.5
"""What scores, weights and results are multiplied by to be whole numbers, and scores to be scores
again, at most: of numbers up to one, results then tell a wrong sum; and a score or a weight that is
half a step from two whole numbers moves them by less than one of theirs, whichever it becomes."""
_BINARY = {
    f"relax.{name}": getattr(relax.op, name)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
}
_ON_ELEMENTS = _BINARY | {"relax.round": relax.op.round}
_ARRANGED = ("relax.permute_dims", "relax.reshape")
_VIEWS = (
    *(*_ARRANGED, "relax.strided_slice"),
    *("relax.expand_dims", "relax.squeeze", "relax.broadcast_to"),
)


def attentions(main: Any, dtypes: Sequence[str], whole: bool = False) -> list[Attention]:
    """Those in one of these types.

    Args:
        whole: also those of whole numbers, in float32, with what rounds their weights.
    """
    graph = _Graph(main, dtypes, whole)
    found = [graph.attention(call) for call in graph.calls if is_call(call, "relax.matmul")]
    return [one for one in found if one is not None]


class _Graph:
    """What variables are bound to, and who reads them."""

    def __init__(self, main: Any, dtypes: Sequence[str], whole: bool) -> None:
        self._dtypes, self._whole = dtypes, whole
        self.calls: list[Any] = []
        self._bound: dict[Any, Any] = {}
        self._results: dict[Any, Any] = {}
        self._readers: dict[Any, list[Any]] = {}

        def read(value: Any, by: Any) -> None:
            if isinstance(value, relax.Var):
                self._readers.setdefault(value, []).append(by)

        for block in main.body.blocks:
            for binding in block.bindings:
                value = binding.value
                self._bound[binding.var] = value
                self._results[value] = binding.var
                if isinstance(value, relax.Call):
                    self.calls.append(value)
                relax.analysis.post_order_visit(value, lambda node, by=value: read(node, by))
        read(main.body.body, None)

    def attention(self, second: Any) -> Attention | None:
        """The one whose second product this is, None where it is another product's."""
        dtype = str(second.ty.dtype)
        others: list[Any] = []
        rounded, steps, scale = self._rounded(second.args[0], others)
        weights, guarded = self._weights(rounded)
        if dtype not in self._dtypes or not is_call(weights, "relax.nn.softmax"):
            return None
        shape = shape_of(weights)
        if shape is None or len(shape) < 3 or int(weights.attrs.axis) not in (-1, len(shape) - 1):
            return None
        found = self._scores(weights.args[0], shape, others, _USUAL_STEP if steps else None)
        if found is None:
            return None
        first, made, factor = found
        sides = [*first.args, second.args[1]]
        ends = [self._viewed(side, True) for side in sides]
        exact = bool(steps) and all(is_exact(end, self._value) for end, _, _ in ends)
        if not exact:
            ends[2] = self._viewed(sides[2], False)
        factor *= prod(by for _, _, by in ends[:2])
        scale *= ends[2][2]
        if not _fits([shape_of(side) for side in sides], shape):
            return None
        if not _LEAST_FACTOR <= factor <= 1 / _LEAST_FACTOR:
            return None
        if any(str(one.ty.dtype) != dtype for one in (*sides, first)):
            return None
        made_of_it = self._quantised(second, scale, others) if steps else (second, [])
        last, joined = self._joined(*made_of_it)
        plain = not made
        if factor != 1.0:
            by = _scale_given(factor, others, _USUAL_SCORES) if steps else _scale(factor)
            made = (by, *made)
        return Attention(
            last,
            self._results[last],
            (*(end for end, _, _ in ends), *others),
            tuple(steps for _, steps, _ in ends),
            made,
            joined,
            dtype,
            shape,
            int(first.args[0].ty.shape[-1]),
            int(second.ty.shape[-1]),
            plain,
            guarded,
            steps,
            exact,
        )

    def _value(self, variable: Any) -> Any:
        """What a variable is bound to, None where it is an argument or no variable."""
        return self._bound.get(variable) if isinstance(variable, relax.Var) else None

    def _own(self, variable: Any) -> Any:
        """The same where it is read once, None elsewhere: somebody else wants it."""
        value = self._value(variable)
        return value if len(self._readers.get(variable, [])) == 1 else None

    def _weights(self, value: Any) -> tuple[Any, bool]:
        """What a product's left side is, and whether what is no number in it is made nought."""
        call = self._own(value)
        if not is_call(call, "relax.where"):
            return call, False
        told, nought, kept = call.args
        test = self._own(told)
        guards = (
            is_call(test, "relax.isnan")
            and self._narrow(test.args[0]).same_as(kept)
            and number_of(nought) == 0.0
            and shape_of(call) == shape_of(kept)
            and len(self._readers.get(kept, [])) == 2
        )
        return (self._value(kept), True) if guards else (call, False)

    def _rounded(self, value: Any, others: list[Any]) -> tuple[Any, tuple[Step, ...], float]:
        """Weights before they are made whole numbers, by which steps, and what those are multiplied
        by; `value` as it is where that is not done."""
        chain: list[tuple[Any, int]] = []
        made, scale = value, 1.0
        while (place := self._by_number(call := self._own(made))) is not None:
            chain.insert(0, (call, place))
            made = call.args[place]
        while chain and (by := _factor_of(*chain[-1])) is not None:
            scale *= by
            del chain[-1]
        if not (self._whole and chain and is_exact(self._results[chain[-1][0]], self._value)):
            return value, (), 1.0
        return made, tuple(_step(*one, others, _USUAL_WEIGHTS) for one in chain), scale

    def _by_number(self, call: Any) -> int | None:
        """Which argument of an operator on single elements is none of its numbers; None of other
        operators."""
        if is_call(call, "relax.round"):
            return 0
        for place in (0, 1) if is_call(call, *_BINARY) else ():
            one, other = call.args[place], call.args[1 - place]
            if number_of(other) is not None and shape_of(one) == shape_of(call):
                return place
        return None

    def _narrow(self, value: Any) -> Any:
        """What is widened for nobody else, or `value` itself."""
        call = self._own(value)
        return call.args[0] if is_call(call, "relax.astype") else value

    def _scores(
        self, value: Any, shape: tuple[int, ...], others: list[Any], usual: float | None
    ) -> tuple[Any, tuple[Step, ...], float] | None:
        """The first product, what is done to the scores, and by what products are multiplied before
        that. What it needs beside the three goes to `others`; `usual`: as in `_step`."""
        steps: list[tuple[Any, int]] = []
        while not is_call(call := self._own(value), "relax.matmul"):
            place = self._beside(call, shape, rounds=usual is not None)
            if place is None:
                return None
            if not _adds_nothing(call, place):
                steps.insert(0, (call, place))
            value = call.args[place]
        if shape_of(call) != shape:
            return None
        factor = 1.0
        while steps and (by := _factor_of(*steps[0])) is not None:
            factor *= by
            del steps[0]
        return call, tuple(_step(*one, others, usual) for one in steps), factor

    def _beside(self, call: Any, shape: tuple[int, ...], rounds: bool) -> int | None:
        """Which argument of an elementwise operator, which may be one that `rounds`, comes from the
        first product."""
        if shape_of(call) != shape or any(_is_single(one) for one in call.args):
            return None
        places: tuple[int, ...] = ()
        if is_call(call, "relax.round") and rounds:
            places = (0,)
        elif is_call(call, *_BINARY):
            places = (0, 1)
        elif is_call(call, "relax.where"):
            places = (1, 2)
        for place in places:
            if shape_of(call.args[place]) == shape and self._comes_from_product(call.args[place]):
                return place
        return None

    def _comes_from_product(self, value: Any) -> bool:
        """Through operators on elements alone."""
        call = self._own(value)
        if call is None:
            return False
        if is_call(call, "relax.matmul"):
            return True
        known = is_call(call, *_BINARY, "relax.where", "relax.round")
        return known and any(self._comes_from_product(one) for one in call.args)

    def _viewed(self, value: Any, scaled: bool) -> tuple[Any, tuple[Step, ...], float]:
        """What a matrix is a rearrangement of, and how; where it may be `scaled` before or after,
        by what."""
        steps: list[Step] = []
        factor = 1.0
        while True:
            if scaled and (unscaled := self._unscaled(value)) is not None:
                value, by = unscaled
                factor *= by
                continue
            call = self._value(value)
            if is_call(call, *_VIEWS):
                steps.insert(0, _view(call))
            elif isinstance(call, relax.TupleGetItem) and is_call(
                split := self._value(call.tuple_value), "relax.split"
            ):
                steps.insert(0, _part(split, int(call.index)))
                call = split
            else:
                return value, tuple(steps), factor
            value = call.args[0]

    def _unscaled(self, value: Any) -> tuple[Any, float] | None:
        """What is multiplied by a number to be `value`, for nobody else, and by which."""
        call = self._own(value)
        for place in (0, 1):
            by = _factor_of(call, place)
            if by is not None and shape_of(call.args[place]) == shape_of(call):
                return call.args[place], by
        return None

    def _joined(self, call: Any, steps: list[Step]) -> tuple[Any, tuple[Step, ...]]:
        """The last rearrangement of what nobody else reads, and how a product comes to it, which
        has come so far by `steps`."""
        while len(readers := self._readers.get(self._results[call], [])) == 1:
            if not is_call(readers[0], *_ARRANGED) or not keeps_together(readers[0]):
                break  # (what an element's place is in the result has to be told from its own)
            call = readers[0]
            steps = [*steps, _view(call)]
        return call, tuple(steps)

    def _quantised(self, call: Any, scale: float, others: list[Any]) -> tuple[Any, list[Step]]:
        """The 8 bits of a product, first multiplied by `scale`, and how it comes to them; the
        product where it does not."""
        made, chain = call, list[tuple[Any, int]]()
        while str(made.ty.dtype) not in BYTES:
            readers = self._readers.get(self._results[made], [])
            made = readers[0] if len(readers) == 1 else None
            place = 0 if is_call(made, "relax.astype") else self._by_number(made)
            if place is None:
                made, chain = call, []
                break
            chain.append((made, place))
        while chain and (by := _factor_of(*chain[0])) is not None:
            scale *= by
            del chain[0]
        steps = [_scale_given(scale, others, _USUAL_RESULT)]
        for one, place in chain:
            steps.append(
                _view(one) if is_call(one, "relax.astype") else _step(one, place, others, 1.0)
            )
        return made, steps


def _view(call: Any) -> Step:
    return lambda value, _: relax.Call(call.op, [value, *call.args[1:]], call.attrs)


def _part(split: Any, number: int) -> Step:
    """One of those that a tensor is split into."""
    axis, first, end = part_of(split, number)
    return lambda value, _: relax.op.strided_slice(value, [axis], [first], [end])


def _step(call: Any, place: int, others: list[Any], usual: float | None) -> Step:
    """An operator on scores, in float32; what it reads beside them goes to `others`, and so do,
    where factors have a `usual` size, numbers that have axes: those of a network's layers differ,
    which else were kernels of their own (`relax.spelled`)."""
    by = _factor_of(call, place)
    if usual is not None and by is not None and shape_of(call.args[1 - place]) != ():
        return _scale_given(by, others, usual)
    chooses = is_call(call, "relax.where")
    values: list[Callable[[Sequence[Any]], Any]] = []
    for number, argument in enumerate(call.args):
        apart = chooses or (usual is not None and shape_of(argument) != ())
        values.append(_read(argument, others, apart) if number != place else lambda _: None)
    make = relax.op.where if chooses else _ON_ELEMENTS[call.op.name]

    def step(scores: Any, arguments: Sequence[Any]) -> Any:
        operands = [one(arguments) for one in values]
        operands[place] = scores
        return make(*operands)

    return step


def _scale(factor: float) -> Step:
    return lambda scores, _: relax.op.multiply(scores, relax.const(factor, "float32"))


def _scale_given(factor: float, others: list[Any], usual: float) -> Step:
    """By an argument, which is squared: whatever is drawn for it when a kernel is tried, between -1
    and 1, is a factor above nought and up to a `usual` one."""
    others.append(relax.const(np.array([sqrt(factor / usual)], np.float32)))
    place, op = FIRST + len(others) - 1, relax.op

    def step(scores: Any, arguments: Sequence[Any]) -> Any:
        root = arguments[place]
        return op.multiply(scores, op.multiply(op.multiply(root, root), relax.const(usual)))

    return step


def _factor_of(call: Any, place: int) -> float | None:
    """The positive number that what is at `place` is multiplied by, None where it is not."""
    divides = is_call(call, "relax.divide")
    if not (is_call(call, "relax.multiply") or (divides and place == 0)):
        return None
    number = number_of(call.args[1 - place])
    if number is None or not 0 < number < inf:
        return None
    return 1 / number if divides else number


def _adds_nothing(call: Any, place: int) -> bool:
    """As a mask does that masks nothing."""
    adds = is_call(call, "relax.add") or (is_call(call, "relax.subtract") and place == 0)
    other = call.args[1 - place] if adds else None
    return isinstance(other, tvm.ir.GenericConst) and not other.value.numpy().any()


def _read(value: Any, others: list[Any], apart: bool) -> Callable[[Sequence[Any]], Any]:
    """How to have `value` in float32 inside the kernel: a number is there, others are arguments,
    and so are numbers that are to be `apart`, as those are that are chosen from."""
    dtype = str(value.ty.dtype)
    if number_of(value) is not None:
        number = value.value.numpy().reshape(())
        kind = "float32" if dtype in HALF else dtype
        if not apart:
            return lambda _: relax.const(number.astype(kind), kind)
        value = relax.const(number.reshape(1), dtype)
    others.append(value)
    place = FIRST + len(others) - 1
    if dtype in HALF:
        return lambda arguments: relax.op.astype(arguments[place], "float32")
    return lambda arguments: arguments[place]


def _is_single(value: Any) -> bool:
    """A number that only a run tells: the kernel would have it as a stage without an axis."""
    return shape_of(value) == () and not isinstance(value, tvm.ir.GenericConst)


def _fits(sides: Sequence[tuple[int, ...] | None], scores: tuple[int, ...]) -> bool:
    q, k, v = sides
    if q is None or k is None or v is None:
        return False
    *heads, rows, keys = scores
    depth = q[-1]
    return (
        rows >= FEWEST_ROWS
        and list(q) == [*heads, rows, depth]
        and list(k) == [*heads, depth, keys]
        and list(v) == [*heads, keys, v[-1]]
    )
