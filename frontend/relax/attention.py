"""Attention as one kernel, where a GPU's tensor cores can have it so, or a processor's caches do
not hold the scores.

Two products with a softmax between them are three kernels, and what lies between them is as long as
the square of a sequence: it is written, read, written and read again; heads are moved in kernels of
their own before and after. Gathered, a kernel has the queries, keys and values as their products
made them. A GPU's schedules (`search.spaces.attention_tile`) keep the scores in registers; scores
stay in single precision, weights are rounded to half precision as they are for the second product
anyway. A processor's (`search.spaces.score_rows`) keep those of some queries in a core's cache.
Where a processor with matrix registers may round factors, both products are of bfloat16, and all
attention is one kernel (`search.spaces.matrix_attention`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.transform import CanonicalizeBindings, DeadCodeElimination

from tunefarm.devices.bfloat16 import rounds_factors
from tunefarm.devices.gpu import arch_of
from tunefarm.devices.matrices import ROWS, multiplies_halves
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import BFLOAT16, HALF, numpy_dtype
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.program import ATTENTION
from tunefarm.frontend.relax.calls import is_call, shape_of
from tunefarm.frontend.relax.rearranged import keeps_together
from tunefarm.frontend.relax.roundable import roundable

FEWEST_ROWS = 16
"""Queries: as many as a tensor core takes at once. With fewer, blocks for the keys are wanted."""
MOST_DEEP = 192
"""Elements of a query and a key, and of a value: of more, registers cannot hold what a warp has of
both."""
FAR = 4 * 2**20
"""Bytes of scores from which on a processor has attention as one kernel: fewer stay in its caches
from one kernel to the next. (Of 2 MB both take as long, of 5 MB one kernel is faster by a sixth, of
8 MB and more by a third and more: docs/benchmarks.md.)"""
ROWS_OF_A_TILE = range(6, 15)
"""Queries of which a processor's registers hold the sums in one vector each, so that additions do
not wait for each other; some number of them has to divide the queries."""
_BINARY = {
    f"relax.{name}": getattr(relax.op, name)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
}
_ARRANGED = ("relax.permute_dims", "relax.reshape")
_VIEWS = (
    *(*_ARRANGED, "relax.strided_slice"),
    *("relax.expand_dims", "relax.squeeze", "relax.broadcast_to"),
)

Step = Callable[[Any, Sequence[Any]], Any]
"""From a value and the kernel's arguments to the value after one more operator."""


def gather_attention(
    module: tvm.IRModule, target: Target, log: PassLog, rounds: bool = False
) -> tvm.IRModule:
    """Every attention of the network as a function of its own, which becomes one kernel; on a
    processor where its scores would not stay near, or factors are rounded for matrix registers.

    Args:
        rounds: factors of float32 may be rounded, where the target says so too; what is rounded is
            cast where it is read, so that `rounded_factors` can have it stored so.

    Raises:
        UnsupportedTarget: it allows it, and cannot.
    """
    on_gpu = target.kind == "cuda"
    if on_gpu and not arch_of(target).copies_aside:
        return module
    started = time.perf_counter()
    in_matrices = rounds and rounds_factors(target) and multiplies_halves(target)
    if in_matrices:
        module = CanonicalizeBindings()(module)  # one name for each tensor
    main = module["main"]
    found = _attentions(main, HALF if on_gpu else ("float32",))
    if in_matrices:
        stored = roundable(main, matrices=True).tensors
        found = [one.rounded_for(stored) if one.is_for_matrices() else one for one in found]
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


@dataclass(frozen=True)
class _Attention:
    """One of them.

    Attributes:
        last: the operator whose result is the whole's; result: the variable that it is bound to.
        arguments: what it reads: queries, keys, values, as they lie; and what else the scores need.
        sides: the steps from each of the first three to the matrices of each head.
        scores: from products to what the softmax is taken of.
        joined: from the second product to the result.
        dtype: of the arguments and the result in the network.
        shape: of the scores; deep, wide: elements of a key, and of a value.
        by_factor: scores are multiplied by a positive number, if anything is done to them.
        rounded: factors of both products are of bfloat16; narrow: so is the result.
    """

    last: Any
    result: Any
    arguments: tuple[Any, ...]
    sides: tuple[tuple[Step, ...], ...]
    scores: tuple[Step, ...]
    joined: tuple[Step, ...]
    dtype: str
    shape: tuple[int, ...]
    deep: int
    wide: int
    by_factor: bool
    rounded: bool = False
    narrow: bool = False

    def rounded_for(self, stored: Collection[Any]) -> _Attention:
        """With factors of bfloat16, and a result in it where that is among what is stored so."""
        return replace(self, rounded=True, narrow=self.result in stored)

    def is_for_matrices(self) -> bool:
        """Whether it is worth a processor's matrix registers: queries, and keys, fill one."""
        return min(self.shape[-2:]) >= ROWS

    def is_for_registers(self) -> bool:
        """Whether registers hold what one query and one key have."""
        return max(self.deep, self.wide) <= MOST_DEEP

    def is_for_processors(self) -> bool:
        """Whether its scores are many, and `search.spaces.score_rows` has blocks of its queries and
        vectors of its values. Keys that fill no vectors are filled up, which it can do where
        scores are products, by a factor."""
        *_, rows, keys = self.shape
        return (
            self.is_for_registers()
            and 4 * prod(self.shape) >= FAR
            and any(rows % size == 0 for size in ROWS_OF_A_TILE)
            and self.wide % 8 == 0
            and (keys % 8 == 0 or self.by_factor)
        )

    def function(self) -> Any:
        """As a function in operators, which is to become one kernel."""
        builder = relax.BlockBuilder()
        parameters = [
            relax.Var(f"a{place}", self._type(one.ty, place))
            for place, one in enumerate(self.arguments)
        ]
        op, half = relax.op, BFLOAT16 if self.rounded else self.dtype
        wide = {"out_dtype": "float32"} if self.rounded and not self.narrow else {}

        def after(value: Any, steps: Sequence[Step]) -> Any:
            for step in steps:
                value = builder.emit(step(value, parameters))
            return value

        with builder.function("main", parameters):
            with builder.dataflow():
                q, k, v = (
                    after(one, steps) for one, steps in zip(parameters, self.sides, strict=False)
                )
                scores = builder.emit(op.matmul(q, k, out_dtype="float32"))
                weights = builder.emit(op.nn.softmax(after(scores, self.scores), axis=-1))
                if half in HALF:
                    weights = builder.emit(op.astype(weights, half))
                mixed = after(builder.emit(op.matmul(weights, v, **wide)), self.joined)
                result = builder.emit_output(mixed)
            builder.emit_func_output(result)
        whole = builder.get()["main"]
        return whole.without_attr("global_symbol").with_attr("Primitive", True)

    def _type(self, own: Any, place: int) -> Any:
        """Of an argument."""
        return relax.TensorType(own.shape, BFLOAT16) if self.rounded and place < _FIRST else own


@mutator
class _Gatherer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, found: Sequence[_Attention]) -> None:
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
        rounded = [self._rounded(argument) for argument in given[:_FIRST]]
        made = relax.Call(name, [*rounded, *given[_FIRST:]])
        return relax.op.astype(self.builder_.emit(made), "float32") if one.narrow else made

    def _rounded(self, value: Any) -> Any:
        """Once, whoever reads it."""
        if isinstance(value, tvm.ir.GenericConst):
            return relax.const(value.value.numpy().astype(numpy_dtype(BFLOAT16)), BFLOAT16)
        if value not in self._known:
            self._known[value] = self.builder_.emit(relax.op.astype(value, BFLOAT16))
        return self._known[value]


# ----------------------------------------------------------------------------- finding them


def _attentions(main: Any, dtypes: Sequence[str]) -> list[_Attention]:
    graph = _Graph(main, dtypes)
    found = [graph.attention(call) for call in graph.calls if is_call(call, "relax.matmul")]
    return [one for one in found if one is not None]


class _Graph:
    """What variables are bound to, and who reads them."""

    def __init__(self, main: Any, dtypes: Sequence[str]) -> None:
        self._dtypes = dtypes
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

    def attention(self, second: Any) -> _Attention | None:
        """The one whose second product this is, None where it is another product's."""
        dtype = str(second.ty.dtype)
        weights = self._own(second.args[0])
        if dtype not in self._dtypes or not is_call(weights, "relax.nn.softmax"):
            return None
        shape = shape_of(weights)
        if shape is None or len(shape) < 3 or int(weights.attrs.axis) not in (-1, len(shape) - 1):
            return None
        found = self._scores(weights.args[0], shape)
        if found is None:
            return None
        first, others, scores, by_factor = found
        sides = [*first.args, second.args[1]]
        ends = [self._viewed(side) for side in sides]
        if not _fits([shape_of(side) for side in sides], shape):
            return None
        if any(str(one.ty.dtype) != dtype for one in (*sides, first)):
            return None
        last, joined = self._joined(second)
        return _Attention(
            last,
            self._results[last],
            (*(end for end, _ in ends), *others),
            tuple(steps for _, steps in ends),
            scores,
            joined,
            dtype,
            shape,
            int(first.args[0].ty.shape[-1]),
            int(second.ty.shape[-1]),
            by_factor,
        )

    def _value(self, variable: Any) -> Any:
        """What a variable is bound to, None where it is an argument or no variable."""
        return self._bound.get(variable) if isinstance(variable, relax.Var) else None

    def _own(self, variable: Any) -> Any:
        """The same where it is read once, None elsewhere: somebody else wants it."""
        value = self._value(variable)
        return value if len(self._readers.get(variable, [])) == 1 else None

    def _scores(
        self, value: Any, shape: tuple[int, ...]
    ) -> tuple[Any, tuple[Any, ...], tuple[Step, ...], bool] | None:
        """The first product, arguments beside the three, what is done to the scores, and
        `_Attention.by_factor`."""
        others: list[Any] = []
        steps: list[Step] = []
        by_factor = True
        while not is_call(call := self._own(value), "relax.matmul"):
            places = self._beside(call, shape)
            if places is None:
                return None
            steps.insert(0, _step(call, places, others))
            by_factor = len(steps) == 1 and _is_factor(call, places)
            value = call.args[places]
        return (call, tuple(others), tuple(steps), by_factor) if shape_of(call) == shape else None

    def _beside(self, call: Any, shape: tuple[int, ...]) -> int | None:
        """Which argument of an elementwise operator comes from the first product."""
        if shape_of(call) != shape or any(_is_single(one) for one in call.args):
            return None
        places: tuple[int, ...] = ()
        if is_call(call, *_BINARY):
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
        known = is_call(call, *_BINARY, "relax.where")
        return known and any(self._comes_from_product(one) for one in call.args)

    def _viewed(self, value: Any) -> tuple[Any, tuple[Step, ...]]:
        """What a matrix is a rearrangement of, and how."""
        steps: list[Step] = []
        while True:
            call = self._value(value)
            if is_call(call, *_VIEWS):
                steps.insert(0, _view(call))
            elif isinstance(call, relax.TupleGetItem) and is_call(
                split := self._value(call.tuple_value), "relax.split"
            ):
                steps.insert(0, _part(split, int(call.index)))
                call = split
            else:
                return value, tuple(steps)
            value = call.args[0]

    def _joined(self, call: Any) -> tuple[Any, tuple[Step, ...]]:
        """The last rearrangement of a product that nobody else reads, and how it comes to it."""
        steps: list[Step] = []
        while len(readers := self._readers.get(self._results[call], [])) == 1:
            if not is_call(readers[0], *_ARRANGED) or not keeps_together(readers[0]):
                break  # (what an element's place is in the result has to be told from its own)
            call = readers[0]
            steps.append(_view(call))
        return call, tuple(steps)


def _view(call: Any) -> Step:
    return lambda value, _: relax.Call(call.op, [value, *call.args[1:]], call.attrs)


def _part(split: Any, number: int) -> Step:
    """One of those that a tensor is split into."""
    axis, size = int(split.attrs.axis), split.attrs.indices_or_sections
    shape = shape_of(split.args[0])
    assert shape is not None, "attention has a fixed shape"
    if isinstance(size, int | tvm.tirx.IntImm):
        each = -(-shape[axis] // int(size))
        first, end = number * each, min((number + 1) * each, shape[axis])
    else:
        ends = [0, *(int(one) for one in size), shape[axis]]
        first, end = ends[number : number + 2]
    return lambda value, _: relax.op.strided_slice(value, [axis], [first], [end])


def _step(call: Any, place: int, others: list[Any]) -> Step:
    """An operator on scores, in float32; what it reads beside them goes to `others`."""
    chooses = is_call(call, "relax.where")
    values: list[Callable[[Sequence[Any]], Any]] = []
    for number, argument in enumerate(call.args):
        given = _read(argument, others, chooses) if number != place else lambda _: None
        values.append(given)
    make = relax.op.where if chooses else _BINARY[call.op.name]

    def step(scores: Any, arguments: Sequence[Any]) -> Any:
        given = [one(arguments) for one in values]
        given[place] = scores
        return make(*given)

    return step


def _is_factor(call: Any, place: int) -> bool:
    """Whether what is at `place` is multiplied or divided by a positive number."""
    if not (is_call(call, "relax.multiply") or (is_call(call, "relax.divide") and place == 0)):
        return False
    other = call.args[1 - place]
    known = isinstance(other, tvm.ir.GenericConst) and prod(other.value.shape) == 1
    return known and float(other.value.numpy().reshape(())) > 0


def _read(value: Any, others: list[Any], chooses: bool) -> Callable[[Sequence[Any]], Any]:
    """How to have `value` in float32 inside the kernel: a number is there, others are arguments,
    and so are numbers that are chosen from."""
    dtype = str(value.ty.dtype)
    if isinstance(value, tvm.ir.GenericConst) and prod(value.value.shape) == 1:
        number = value.value.numpy().reshape(())
        kind = "float32" if dtype in HALF else dtype
        if not chooses:
            return lambda _: relax.const(number.astype(kind), kind)
        value = relax.const(number.reshape(1), dtype)
    others.append(value)
    place = _FIRST + len(others) - 1
    if dtype in HALF:
        return lambda arguments: relax.op.astype(arguments[place], "float32")
    return lambda arguments: arguments[place]


def _is_single(value: Any) -> bool:
    """A number that only a run tells: the kernel would have it as a stage without an axis."""
    return shape_of(value) == () and not isinstance(value, tvm.ir.GenericConst)


_FIRST = 3
"""Of arguments: behind queries, keys and values."""


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
