"""Which tensors of a network in float32 are whole numbers that bfloat16 has exactly (needs TVM).

What was quantised is, less its zero: 8 bits and a sign. Of two such tensors every product is exact
in matrix registers of bfloat16, and sums are as those of single precision: exact up to 2^24, which
258 products cannot exceed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from tunefarm.frontend.dtypes import BYTES
from tunefarm.frontend.relax.calls import is_call, number_of

LARGEST = 256
"""Of whole numbers up to which bfloat16 has all."""
_MOVES = ("relax.permute_dims", "relax.reshape", "relax.squeeze", "relax.expand_dims")


@dataclass(frozen=True)
class Span:
    """What a tensor's elements are between, and whether they are whole."""

    least: float = -inf
    most: float = inf
    whole: bool = False

    def shifted(self, by: float) -> Span:
        return Span(self.least + by, self.most + by, self.whole and by.is_integer())


def is_exact(value: Any, bound: Callable[[Any], Any]) -> bool:
    """Whether all that `value` can be is exact in bfloat16, whole numbers.

    Args:
        bound: what a variable is bound to; None for what is no variable, or an argument.
    """
    span = span_of(value, bound)
    return span.whole and span.least >= -LARGEST and span.most <= LARGEST


def span_of(value: Any, bound: Callable[[Any], Any]) -> Span:
    """As far as quantising says it: by bounds, by rounding, and by whole numbers added."""
    call = bound(value)
    if call is None:
        return Span()
    if hasattr(call, "tuple_value"):  # a part of what is split
        call = bound(call.tuple_value)
        return span_of(call.args[0], bound) if is_call(call, "relax.split") else Span()
    if is_call(call, "relax.astype"):
        dtype = str(call.args[0].ty.dtype)
        if dtype in BYTES:
            ends = np.iinfo(dtype)
            return Span(float(ends.min), float(ends.max), True)
        return span_of(call.args[0], bound)
    if is_call(call, *_MOVES):
        return span_of(call.args[0], bound)
    if is_call(call, "relax.round"):
        span = span_of(call.args[0], bound)
        return Span(float(np.rint(span.least)), float(np.rint(span.most)), True)
    number = number_of(call.args[1]) if len(getattr(call, "args", ())) == 2 else None
    return Span() if number is None else _with_number(call, number, span_of(call.args[0], bound))


def _with_number(call: Any, number: float, span: Span) -> Span:
    if is_call(call, "relax.add"):
        return span.shifted(number)
    if is_call(call, "relax.subtract"):
        return span.shifted(-number)
    whole = span.whole and number.is_integer()
    if is_call(call, "relax.maximum"):
        return Span(max(span.least, number), max(span.most, number), whole)
    if is_call(call, "relax.minimum"):
        return Span(min(span.least, number), min(span.most, number), whole)
    return Span()
