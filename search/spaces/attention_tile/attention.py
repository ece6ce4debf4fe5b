"""A kernel as attention: queries by keys, a softmax over the keys, and by values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map

from tunefarm.frontend.dtypes import HALF
from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.expressions import inlined, is_its_stages, loads_of, uses
from tunefarm.search.spaces.form import Stage, stages_of, sums_from_zero
from tunefarm.search.spaces.tensor_tile.copies import Side
from tunefarm.search.spaces.tensor_tile.product import Operand, operand_of, read_of, terms_of

_LEAST = -3e38
"""No score is less, but for those that are minus infinity."""


@dataclass(frozen=True)
class Attention:
    """Axes of the first product are batches, queries, keys and what both have of; those of the
    second are batches, queries, what values have, and keys.

    Attributes:
        first, second: the products.
        batch: positions of the batches' axes in both.
        queries, keys: operands of the first; values: of the second.
        score: what the softmax is taken of, of one element of the first product, in its variables.
        finished: what is stored, of one element of the second product, in its variables.
        result: argument that it is stored in; places: where, in the same variables.
        share, weight: a variable for a weight divided by the sum of its row's, and what values are
            multiplied by in its place, in which alone it is; None where it is the weight.
        guarded: weights that are no numbers count as nought. Of a query that are all, where its
            scores are all minus infinity, or one of them is no number or infinite; or none.
    """

    first: Stage
    second: Stage
    batch: tuple[int, ...]
    queries: Operand
    keys: Operand
    values: Operand
    score: Any
    finished: Any
    result: Any
    places: tuple[Any, ...]
    dtype: str
    guarded: bool = False
    share: Any = None
    weight: Any = None

    @property
    def batches(self) -> int:
        return prod(self.first.axes[axis].extent for axis in self.batch)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Queries, keys, what both have of, and what values have."""
        *_, rows, keys, depth = (axis.extent for axis in self.first.axes)
        return rows, keys, depth, self.second.axes[-2].extent

    @property
    def sides(self) -> tuple[Side, Side, Side]:
        """Queries, keys and values, and where they are multiplied."""
        deep = (len(self.batch) + 2,)
        return (
            Side(self.queries, self.first, self.batch, deep),
            Side(self.keys, self.first, self.batch, deep),
            Side(self.values, self.second, self.batch, deep),
        )

    @property
    def factor(self) -> float | None:
        """By which products are scores, where that is all that is done to them, and leaves the
        largest the largest; else None."""
        if isinstance(self.score, TensorLoad):
            return 1.0
        sides = [self.score.a, self.score.b] if isinstance(self.score, tirx.Mul) else []
        by = next((one for one in sides if isinstance(one, tirx.FloatImm)), None)
        loads = [one for one in sides if isinstance(one, TensorLoad)]
        return float(by.value) if by is not None and by.value > 0 and loads else None


def attention_of(
    workload: Any, dtypes: Sequence[str] = HALF, singly: bool = False, whole: bool = False
) -> Attention | None:
    """The kernel as attention in one of these types, None where it is something else; `singly`: one
    whose elements are copied one by one where no two of them lie together; `whole`: or whose
    weights are changed before values are multiplied by them."""
    try:
        stages = stages_of(workload)
    except ValueError:
        return None
    reducing = [stage for stage in stages if stage.reduces]
    if len(reducing) != 4 or not all(stage.direct for stage in stages):
        return None
    if not is_its_stages(workload):
        return None
    first, top, total, second = reducing
    many = len(first.axes) - 3
    if many < 0 or [len(one.axes) for one in (top, total, second)] != [
        many + 2,
        many + 2,
        many + 3,
    ]:
        return None
    if not _sizes_agree(first, top, total, second):
        return None
    if not (_adds(first) and _adds(total) and _adds(second)):
        return None
    made = {stage.node.body.buffer: stage for stage in stages if not stage.reduces}
    score = _score(first, top, total, made)
    terms, mixed = terms_of(first), terms_of(second)
    if score is None or terms is None or mixed is None:
        return None
    sides = [_unguarded(_inlined_at(one, first, second, made)) for one in mixed]

    def is_weight(value: Any) -> bool:
        return _is_weights(value, first, score, total, top)

    weights, share, weight = [is_weight(one) for one, _ in sides], None, None
    if whole and not any(weights):
        share, given = tirx.Var("share", "float32"), set(workload["main"].params)
        sides = [_with_share(one, is_weight, share, given) for one, _ in sides]
        weights = [one is not None for one, _ in sides]
        weight = next((one for one, _ in sides if one is not None), None)
    if sum(weights) != 1:
        return None
    _, guarded = sides[weights.index(True)]
    rows, across, deep = (many,), (many + 1,), (many + 2,)
    read = [read_of(first, one, made) for one in terms]
    values = read_of(second, mixed[weights.index(False)], made)
    if None in read or values is None:
        return None
    # Queries are what the rows of scores depend on.
    left, right = sorted((one for one in read if one), key=lambda one: many not in one.axes)
    if many + 1 in left.axes or many in right.axes or many in values.axes:
        return None
    operands = (
        operand_of(first, left, rows, deep, singly),
        operand_of(first, right, across, deep, singly),
        operand_of(second, values, across, deep, singly),
    )
    if any(one is None for one in operands):
        return None
    q, k, v = (one for one in operands if one is not None)
    ending = _ending(second, stages, made)
    dtype = str(q.buffer.dtype)
    arguments = set(workload["main"].params)
    if ending is None or not _reads(score, first, arguments):
        return None
    if (
        not _reads(ending[0], second, arguments)
        or dtype not in dtypes
        or str(v.buffer.dtype) != dtype
    ):
        return None
    batch = tuple(range(many))
    multiplied = (first, second, batch, q, k, v, score)
    return Attention(*multiplied, *ending, dtype, guarded, share, weight)


def _reads(value: Any, product: Stage, arguments: Set[Any]) -> bool:
    """Whether it is of a product, and otherwise of arguments alone."""
    mine = product.node.body.buffer
    return all(one.source.same_as(mine) or one.source in arguments for one in loads_of(value))


def _sizes_agree(first: Stage, top: Stage, total: Stage, second: Stage) -> bool:
    def extents(stage: Stage) -> list[int]:
        return [axis.extent for axis in stage.axes]

    *heads, keys, _ = extents(first)
    *same, _, summed = extents(second)
    return (
        all([axis.reduces for axis in one.axes].index(True) == len(one.axes) - 1
            for one in (first, top, total, second))
        and extents(top) == extents(total) == [*heads, keys]
        and same == heads
        and summed == keys
    )  # fmt: skip


def _adds(stage: Stage) -> bool:
    return isinstance(stage.node.body.value, tirx.Add) and sums_from_zero(stage)


def _variables(stage: Stage) -> list[Any]:
    return [one.var for one in stage.node.iter_vars]


def _score(first: Stage, top: Stage, total: Stage, made: Mapping[Any, Stage]) -> Any | None:
    """What the largest is sought of, where the sum is of its exponentials."""
    store, begins = top.node.body, top.node.init
    own = store.value.a if isinstance(store.value, tirx.Max) else None
    if not (isinstance(own, TensorLoad) and own.source.same_as(store.buffer)):
        return None
    if float(getattr(getattr(begins, "value", None), "value", 0.0)) > _LEAST:
        return None
    canonical = _variables(first)[:-1]

    def said(stage: Stage) -> Any:
        here = dict(zip(_variables(stage), canonical, strict=True))
        return inlined(renamed(stage.node.body.value.b, here), made)

    score = said(top)
    scores = first.node.body.buffer
    loads = loads_of(score)
    mine = [load for load in loads if load.source.same_as(scores)]
    if not mine or not all(structural_equal(list(one.indices), canonical) for one in mine):
        return None
    if str(scores.dtype) != "float32" or str(score.ty) != "float32":
        return None
    return score if _is_weight(said(total), score, top, canonical) else None


def _is_weight(value: Any, score: Any, top: Stage, canonical: Sequence[Any]) -> bool:
    """Whether it is the exponential of how much less a score is than the largest."""
    if not isinstance(value, Call) or getattr(value.op, "name", "").rpartition(".")[2] != "exp":
        return False
    (less,) = value.args
    return (
        isinstance(less, tirx.Sub)
        and structural_equal(less.a, score)
        and _is_of_row(less.b, top, canonical)
    )


def _is_of_row(value: Any, stage: Stage, canonical: Sequence[Any]) -> bool:
    return (
        isinstance(value, TensorLoad)
        and value.source.same_as(stage.node.body.buffer)
        and structural_equal(list(value.indices), list(canonical[:-1]))
    )


def _inlined_at(load: Any, first: Stage, second: Stage, made: Mapping[Any, Stage]) -> Any:
    """A term of the second product, in the variables of the first; without a rounding."""
    canonical = _variables(first)[:-1]
    *rows, _, key = _variables(second)
    here = dict(zip([*rows, key], canonical, strict=True))
    value = inlined(renamed(load, here), made)
    return value.value if isinstance(value, tirx.Cast) else value


def _unguarded(value: Any) -> tuple[Any, bool]:
    """What is nought where it is no number, and whether it is."""
    if not isinstance(value, tirx.Select):
        return value, False
    told, kept = value.condition, value.false_value
    if isinstance(told, tirx.LT) and isinstance(told.b, tirx.Cast):  # (of a truth value: 0 < it)
        told = told.b.value
    guards = (
        isinstance(told, Call)
        and getattr(told.op, "name", "").rpartition(".")[2] == "isnan"
        and structural_equal(told.args[0], kept)
        and float(getattr(value.true_value, "value", 1.0)) == 0.0
    )
    return (kept, True) if guards else (value, False)


def _is_weights(value: Any, first: Stage, score: Any, total: Stage, top: Stage) -> bool:
    """Whether it is a weight by the sum of all."""
    canonical = _variables(first)[:-1]
    if isinstance(value, tirx.Div):
        weight, by = value.a, value.b
    elif isinstance(value, tirx.Mul) and isinstance(value.b, tirx.Div):
        weight, by = value.a, value.b.b
        if float(getattr(value.b.a, "value", 0.0)) != 1.0:
            return False
    else:
        return False
    return _is_weight(weight, score, top, canonical) and _is_of_row(by, total, canonical)


def _with_share(
    value: Any, is_weight: Callable[[Any], bool], share: Any, arguments: Set[Any]
) -> tuple[Any | None, bool]:
    """`value` with `share` where a weight is, and whether that is nought where it is no number;
    None where it is of anything else as well, but for arguments' elements that are the same for all
    of them."""
    guards: list[bool] = []

    def unguarded(part: Any) -> Any:
        kept, guarded = _unguarded(part)
        guards.append(guarded)
        return kept

    def instead_of(part: Any) -> Any:
        return share if is_weight(part) else part

    changed = structural_map(value, (tirx.Select, unguarded))
    changed = structural_map(changed, ((tirx.Div, instead_of), (tirx.Mul, instead_of)))
    same = all(
        load.source in arguments and all(isinstance(at, tirx.IntImm) for at in load.indices)
        for load in loads_of(changed)
    )
    return (changed, any(guards)) if uses(changed, share) and same else (None, False)


def _ending(
    second: Stage, stages: Sequence[Stage], made: Mapping[Any, Stage]
) -> tuple[Any, Any, tuple[Any, ...]] | None:
    """What is stored of an element of the second product, in which argument, and where."""
    later = stages[stages.index(second) + 1 :]
    if any(stage.reduces for stage in later):
        return None
    mixed = second.node.body.buffer
    variables = _variables(second)[:-1]
    if not later:
        own = second.node.body
        return tirx.BufferLoad(mixed, list(own.indices)), mixed, tuple(own.indices)
    last = later[-1]
    value = inlined(last.node.body.value, made)
    mine = [load for load in loads_of(value) if load.source.same_as(mixed)]
    if not mine or not all(structural_equal(one, mine[0]) for one in mine):
        return None
    places = _inverse(last, mine[0].indices, variables, [a.extent for a in second.axes[:-1]])
    if places is None:
        return None
    stored = renamed(value, dict(zip(_variables(last), places, strict=True)))
    analyzer = Analyzer()
    for variable, axis in zip(variables, second.axes, strict=False):
        analyzer.bind(variable, tvm.ir.Range(0, axis.extent), True)
    # Where the product is read is its own place again.
    own = tirx.BufferLoad(mixed, list(variables))
    stored = instead(stored, mixed, own)
    return stored, last.node.body.buffer, tuple(analyzer.simplify(one) for one in places)


def instead(value: Any, buffer: Any, own: Any) -> Any:
    """`value` with `own` wherever it reads `buffer`."""

    def read(load: Any) -> Any:
        return own if load.source.same_as(buffer) else load

    return structural_map(value, (TensorLoad, read))


def _inverse(
    last: Stage, indices: Sequence[Any], variables: Sequence[Any], extents: Sequence[int]
) -> list[Any] | None:
    """Where in the result an element is, from where in the product it is; None where the one does
    not say the other."""
    analyzer, ranges = Analyzer(), []
    for one, axis in zip(last.node.iter_vars, last.axes, strict=True):
        ranges.append(tvm.ir.Range(0, axis.extent))
        analyzer.bind(one.var, ranges[-1], True)
    there = tirx.IndexMap(_variables(last), [analyzer.simplify(one) for one in indices], None)
    try:
        back = there.inverse(ranges)
    except Exception:  # where it is none, of several types
        return None
    if prod(axis.extent for axis in last.axes) != prod(extents):
        return None
    return list(back.map_indices(list(variables)))
