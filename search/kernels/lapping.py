"""Rows as vectors of which the last begins earlier, where none divides them.

The attention of a picture's 197 patches is 197 numbers a row, which no vector divides. Twenty-five
vectors of eight hold them if the last one begins where it ends with the row: three numbers are
computed twice, stored twice, and left out of a sum once. No element is handled alone, and nothing
beyond the row is read.

As in `winograd`, this is another text of the same kernel; a schedule of it follows.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import tvm
from tvm import te, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm_ffi import structural_equal, structural_map

from tunefarm.search.kernels.splice import renamed
from tunefarm.search.spaces.form import Stage, sums_from_zero
from tunefarm.search.spaces.rowwise import Rows, rows_of


def lapped(workload: Any, lanes: int) -> Any:
    """`workload` rewritten, its rows as vectors of `lanes`; its arguments stay as they are.

    Raises:
        ValueError: its stages are no rows, vectors of so many divide them or are longer, a stage
            reads another place of a row than its own, an inner one leaves the kernel, or it reduces
            them otherwise than to a sum from nought, a largest or a least element.
    """
    form = rows_of(workload)
    if form is None or not lanes < form.columns or form.columns % lanes == 0:
        raise ValueError(f"no rows of which vectors of {lanes} could overlap")
    return _Lapping(form, lanes).kernel(workload["main"])


def _written(stage: Stage) -> Any:
    return stage.node.writes[0].source


def _name(stage: Stage) -> str:
    """Of the stage and what it makes: an argument of the kernel may be called as a stage is."""
    return f"lapped_{stage.name}"


class _Lapping:
    """Stages inside a row have its elements in the order of the vectors, those that are in two of
    them twice."""

    def __init__(self, form: Rows, lanes: int) -> None:
        self._form = form
        self._lanes = lanes
        self._columns = ceil(form.columns / lanes) * lanes
        self._tensors: list[tuple[Any, Any]] = []  # by buffers, for two may have one name

    def kernel(self, function: Any) -> Any:
        *inner, last = self._form.stages
        regions = [region for stage in self._form.stages for region in stage.node.reads]
        given = [
            parameter
            for parameter in function.params
            if any(parameter.same_as(region.source) for region in regions)
        ]
        for stage in inner:
            if any(parameter.same_as(_written(stage)) for parameter in function.params):
                raise ValueError(f"{stage.name} makes another result of the kernel")
        for number, buffer in enumerate(given):
            shape = tuple(int(size) for size in buffer.shape)
            made = te.placeholder(shape, dtype=str(buffer.dtype), name=f"given_{number}")
            self._tensors.append((buffer, made))
        for stage in self._form.stages:
            self._tensors.append((_written(stage), self._stage(stage)))
        parameters = [self._of(buffer) for buffer in (*given, _written(last))]
        text = te.create_prim_func(parameters, index_dtype_override="int64")
        theirs = dict(zip(text.params, given, strict=False))
        root = renamed(text.body, theirs).block
        body = structural_map(
            root.body,
            (SBlock, lambda one: self._stored(one, last) if one.name_hint == _name(last) else one),
        )
        block = SBlock([], [], [], "root", body, alloc_buffers=root.alloc_buffers)
        whole = SBlockRealize([], tirx.const(True, "bool"), block)
        return tvm.IRModule({"main": function.with_body(whole)})

    def _of(self, buffer: Any) -> Any:
        """The tensor in its place.

        Raises:
            ValueError: there is none yet.
        """
        found = [made for known, made in self._tensors if known.same_as(buffer)]
        if not found:
            raise ValueError(f"{buffer.name} is read before it is made")
        return found[0]

    def _inside(self, buffer: Any) -> bool:
        """Whether it has whole rows that the kernel itself makes."""
        return any(
            _written(stage).same_as(buffer) and self._form.runs_along(stage)
            for stage in self._form.stages
        )

    def _place(self, element: Any) -> Any:
        """Of an element of the vectors, in the row."""
        first = tirx.min(element // self._lanes * self._lanes, self._form.columns - self._lanes)
        return first + element % self._lanes

    def _stage(self, stage: Stage) -> Any:
        variables = [variable.var for variable in stage.node.iter_vars]
        along = self._along(stage)
        reduced = [place for place, axis in enumerate(stage.axes) if axis.reduces]
        sizes = [axis.extent for axis in stage.axes]
        if along is not None:
            sizes[along] = self._columns
        inner = {place: te.reduce_axis((0, sizes[place]), name=f"k{place}") for place in reduced}

        def element(*at: Any) -> Any:
            spatial = iter(at)
            axes = [inner[n] if n in inner else next(spatial) for n in range(len(variables))]
            values = [getattr(one, "var", one) for one in axes]
            inside = dict(zip(variables, values, strict=True))
            outside = dict(inside)
            if along is not None:
                outside[variables[along]] = self._place(values[along])

            def load(one: Any) -> Any:
                names = outside
                if self._inside(one.source):
                    self._check_own(stage, one, variables, along)
                    names = inside
                return self._of(one.source)(*(renamed(index, names) for index in one.indices))

            term = structural_map(self._term(stage), (TensorLoad, load))
            term = renamed(term, outside)
            if not reduced:
                return term
            return self._reduced(stage, term, along, values, list(inner.values()))

        spatial_sizes = tuple(size for place, size in enumerate(sizes) if place not in inner)
        return te.compute(spatial_sizes, element, name=_name(stage))

    def _check_own(self, stage: Stage, load: Any, variables: list[Any], along: int | None) -> None:
        """That a stage reads a row that the kernel has made at its own row and element."""
        depth = self._form.depth
        rows = all(load.indices[n].same_as(variables[n]) for n in range(depth))
        (column,) = (n for n in range(depth, len(load.indices)) if int(load.source.shape[n]) > 1)
        if not rows or along is None or not load.indices[column].same_as(variables[along]):
            raise ValueError(f"{stage.name} reads {load.source.name} elsewhere")

    def _along(self, stage: Stage) -> int | None:
        """Which of its axes runs along the row."""
        depth = self._form.depth
        places = range(depth, len(stage.axes))
        return next((n for n in places if stage.axes[n].extent == self._form.columns), None)

    def _term(self, stage: Stage) -> Any:
        """What it stores, or reduces."""
        store = stage.node.body
        if not stage.reduces:
            return store.value
        value = store.value
        own = getattr(value, "a", None)
        if not (
            isinstance(value, tirx.Add | tirx.Max | tirx.Min)
            and isinstance(own, TensorLoad)
            and own.source.same_as(store.buffer)
            and structural_equal(list(own.indices), list(store.indices))
        ):
            raise ValueError(f"{stage.name} reduces rows in a way that is not known")
        return value.b

    def _reduced(
        self, stage: Stage, term: Any, along: int | None, values: list[Any], axes: list[Any]
    ) -> Any:
        value = stage.node.body.value
        if isinstance(value, tirx.Add):
            if not sums_from_zero(stage):
                raise ValueError(f"{stage.name} adds to something")
            if along is not None:
                # The last vector's first elements are in the one before, too.
                begin = self._columns - self._lanes
                end = begin + self._columns - self._form.columns
                again = tirx.And(values[along] >= begin, values[along] < end)
                term = tirx.Select(again, tirx.const(0, str(term.ty.dtype)), term)
            return te.sum(term, axes)
        reduced, first = (
            (te.max, te.min_value) if isinstance(value, tirx.Max) else (te.min, te.max_value)
        )
        dtype = str(value.ty.dtype)
        if not structural_equal(stage.node.init.value, first(dtype)):
            raise ValueError(f"{stage.name} begins with something")
        return reduced(term, axes)

    def _stored(self, made: Any, stage: Stage) -> Any:
        """The last stage, which stores to where its elements are."""
        *rows, element = (variable.var for variable in made.iter_vars)
        theirs = [variable.var for variable in stage.node.iter_vars]
        place = dict(zip(theirs, [*rows, self._place(element)], strict=True))
        kept = stage.node.body
        indices = [renamed(index, place) for index in kept.indices]
        store = tirx.BufferStore(kept.buffer, made.body.value, indices)
        writes = [renamed(region, place) for region in stage.node.writes]
        return SBlock(made.iter_vars, made.reads, writes, made.name_hint, store)
