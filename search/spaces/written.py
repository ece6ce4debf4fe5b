"""Kernels that are written whole, from the launch to the last store: what their writers have in
common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir.expr import Var
from tvm.sym import Analyzer

from tunefarm.devices.target import Target
from tunefarm.search.kernels.splice import once
from tunefarm.search.spaces.family import FewWays, W, from_words


@dataclass(frozen=True)
class Function:
    """A function in CUDA C++: its name and the text that defines it. A program may have many, each
    with what it is for in its name."""

    name: str
    text: str


def device_function(name: str, returns: str, arguments: str, body: str) -> Function:
    head = f"__device__ __forceinline__ {returns} {name}({arguments})"
    return Function(name, f"{head} {{\n{body}\n}}\n")


def call(function: Function, *arguments: Any, returns: str = "void") -> Any:
    made = cuda_func_call(function.name, *arguments, source_code=function.text, return_type=returns)
    return tirx.Evaluate(made) if returns == "void" else made


def when(condition: Any, body: Any) -> Any:
    """`body`, under a condition unless that is None."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def all_of(conditions: Sequence[Any]) -> Any:
    """Those that are not None together; None where there is none."""
    found = None
    for one in conditions:
        if one is not None:
            found = one if found is None else tirx.And(found, one)
    return found


def number(value: int) -> Any:
    return tirx.const(value, "int32")


def local(size: int, dtype: str, name: str) -> Any:
    """A thread's own; in registers where every index is known once loops are unrolled."""
    return tirx.decl_buffer((size,), dtype, name, scope="local")


def coordinates(place: Any, extents: Sequence[int]) -> list[Any]:
    """What a number among all of these, outermost first, is along each."""
    found: list[Any] = []
    long = [n for n, extent in enumerate(extents) if extent > 1]
    for n in reversed(range(len(extents))):
        if n not in long:
            found.append(number(0))
        elif n == long[0]:
            found.append(place)
        else:
            found.append(tirx.floormod(place, extents[n]))
            place = tirx.floordiv(place, extents[n])
    return found[::-1]


class Writer:
    """Makes the text of a kernel, and knows the bounds of its variables."""

    def __init__(self) -> None:
        self._analyzer = Analyzer()

    def variable(self, name: str, extent: int) -> Any:
        made = Var(name, tvm.ir.PrimType("int32"))
        self._analyzer.bind(made, tvm.ir.Range(0, extent), True)
        return made

    def simple(self, expression: Any) -> Any:
        return self._analyzer.simplify(expression)

    def loop(self, name: str, extent: int, kind: Any, body: Callable[[Any], Any]) -> Any:
        """`body` makes the text from the variable."""
        variable = self.variable(name, extent)
        return tirx.For(variable, 0, extent, kind, body(variable))

    def unrolled(self, name: str, extent: int, body: Callable[[Any], Any]) -> Any:
        return self.loop(name, extent, tirx.ForKind.UNROLLED, body)

    def vector(self, lanes: int, body: Callable[[Any], Any]) -> Any:
        kind = tirx.ForKind.VECTORIZED if lanes > 1 else tirx.ForKind.SERIAL
        return self.loop("lane", lanes, kind, body)

    def launch(self, body: Any, buffers: list[Any], threads: dict[str, tuple[Any, int]]) -> Any:
        """`threads`: what each index of a thread is called in `body`, and its extent, innermost
        first."""
        inside = once(body, "launched", buffers)
        for name, (variable, extent) in threads.items():
            over = tvm.ir.Range(0, extent)
            axis = tirx.IterVar(over, variable, tirx.IterVar.ThreadIndex, name)
            inside = tirx.For(variable, 0, extent, tirx.ForKind.THREAD_BINDING, inside, axis)
        return inside


def whole(function: Any, body: Any, buffers: list[Any]) -> Any:
    """`function` with `body`, one launch or several, in the place of what it was; `buffers` that
    these hand on to each other."""
    return function.with_body(once(body, "root", buffers))


# ----------------------------------------------------------------------------- their families


@dataclass(frozen=True)
class Fitting(Generic[W]):
    """A kernel that a family can write for a target.

    Attributes:
        ways: its points, likeliest first, which whoever writes one of them need not know; fits:
            whether one is such, or could be; expected: the seconds of one; figures: see `FewWays`.
        write: the kernel at a point.
    """

    ways: Callable[[], Sequence[W]]
    fits: Callable[[W], bool]
    expected: Callable[[W], float]
    figures: tuple[float, ...]
    write: Callable[[W], Any]


@dataclass(frozen=True)
class Family(Generic[W]):
    """One whose points stand for a kernel's whole text.

    Attributes:
        point: their type.
        fitting: what it can do with a kernel; None where that is something else, or the target is.
    """

    name: str
    point: type[W]
    fitting: Callable[[Any, Target], Fitting[W] | None]

    def space(self, workload: Any, target: Target) -> FewWays[W] | None:
        found = self.fitting(workload, target)
        ways = found.ways() if found is not None else ()
        if found is None or not ways:
            return None
        # There is nothing to schedule: the kernel is written once the point is known.
        return FewWays(
            self.name, workload, ways, found.expected, lambda _s, _w: None, found.figures
        )

    def in_full(self, function: Any, target: Target, point: str) -> Any:
        """The kernel that `point`, in words, is of `function`.

        Raises:
            ValueError: it is none of this family, or does not fit the kernel or the target.
        """
        one = from_words(self.point, self.name, point)
        found = self.fitting(tvm.IRModule({"main": function}), target)
        if found is None or not found.fits(one):
            raise ValueError(f"does not fit: {point}")
        return found.write(one)
