"""One attention of a network: what it reads, what it does to scores, whether a processor is better
off with it as one kernel, and the function that becomes that (needs TVM)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import relax

from tunefarm.devices.matrices import ROWS
from tunefarm.frontend.dtypes import BFLOAT16, HALF

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
FIRST = 3
"""Of arguments: behind queries, keys and values."""

Step = Callable[[Any, Sequence[Any]], Any]
"""From a value and the kernel's arguments to the value after one more operator."""


@dataclass(frozen=True)
class Attention:
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
        guarded: a weight that is no number is nought, as exporters write it for queries whose keys
            are all masked with minus infinity.
        weights: from what the softmax yields to whole numbers, by which values are multiplied.
        exact: so are queries, keys and values, and all are exact in bfloat16.
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
    guarded: bool = False
    weights: tuple[Step, ...] = ()
    exact: bool = False
    rounded: bool = False
    narrow: bool = False

    def rounded_for(self, stored: Collection[Any]) -> Attention:
        """With factors of bfloat16, and a result in it where that is among what is stored so."""
        return replace(self, rounded=True, narrow=not self.weights and self.result in stored)

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
            not self.weights
            and self.is_for_registers()
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
                if self.guarded:
                    none = builder.emit(op.isnan(weights))
                    weights = builder.emit(op.where(none, _noughts(builder, none), weights))
                weights = after(weights, self.weights)
                if half in HALF:
                    weights = builder.emit(op.astype(weights, half))
                mixed = after(builder.emit(op.matmul(weights, v, **wide)), self.joined)
                result = builder.emit_output(mixed)
            builder.emit_func_output(result)
        whole = builder.get()["main"]
        return whole.without_attr("global_symbol").with_attr("Primitive", True)

    def _type(self, own: Any, place: int) -> Any:
        """Of an argument."""
        return relax.TensorType(own.shape, BFLOAT16) if self.rounded and place < FIRST else own


def _noughts(builder: Any, like: Any) -> Any:
    """As many as `like` has elements, and made of those: else the compiler would make a constant of
    few, and functions that become kernels may have none."""
    numbers = builder.emit(relax.op.astype(like, "float32"))
    return builder.emit(relax.op.multiply(numbers, relax.const(0.0, "float32")))
