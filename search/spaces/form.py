"""What a kernel computes, read off its TensorIR: its stages, and the shape of a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call, TensorLoad, Var
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation
from tvm_ffi import structural_equal, structural_walk

from tunefarm.frontend.relax.tir import free_arguments
from tunefarm.search.spaces.expressions import loads_of, uses


@dataclass(frozen=True)
class Axis:
    """One iteration variable of a stage."""

    name: str
    extent: int
    reduces: bool


@dataclass(frozen=True)
class Stage:
    """One block of a kernel.

    Attributes:
        name: of the block; unique in its kernel.
        axes: in the order of its loops.
        reads: names of the buffers it reads, in the block's order.
        writes: name of the buffer it writes.
        shape: of that buffer, in elements.
        direct: its spatial axes are the dimensions of what it writes, in order.
        copies: it writes, element for element and at the same place, what it reads.
        branches: a condition on its last axis decides what it computes (padding along it, a
            concatenation): in vectors that is element by element.
    """

    name: str
    axes: tuple[Axis, ...]
    reads: tuple[str, ...]
    writes: str
    shape: tuple[int, ...]
    direct: bool
    copies: bool
    branches: bool
    node: Any

    @property
    def reduces(self) -> bool:
        return any(axis.reduces for axis in self.axes)

    @property
    def points(self) -> int:
        """Times its body runs."""
        return prod(axis.extent for axis in self.axes)


@dataclass(frozen=True)
class Operand:
    """One tensor that a reduction reads.

    Attributes:
        buffer: its name.
        read: its position among the block's reads.
        plain: per dimension, the position of the axis that is its whole index, else None.
        shape: in elements.
        free: its layout may change: a constant, packed once.
        groups: per axis: None where it is used as it is, 0 where it is not used, G where all that
            is used is `axis // G`.
        strides: per axis, elements between neighbours; None where they are not evenly spaced.
    """

    buffer: str
    read: int
    plain: tuple[int | None, ...]
    shape: tuple[int, ...]
    free: bool
    groups: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    def depends_on(self, axis: int) -> bool:
        return self.groups[axis] is None


@dataclass(frozen=True)
class Reduction:
    """One reducing block, elementwise stages before and after it.

    Axes are named by their position in the block. The *column* is the output's last dimension, the
    one that vectors run along. *Rows* are the other spatial axes whose tiling uses a loaded vector
    again; where there are none, all of them. `vector` is the operand that is read in vectors,
    `other` the second factor, broadcast or (depthwise) read in vectors as well.

    Attributes:
        product: it is a sum of products of two operands.
        before: stages that make an operand and are no plain copies, e.g. padding.
        copies: stages before it that only copy, or that make nothing for it but for what follows
            it: computed where they are read.
        after: the elementwise stages after it, in order.
        beyond: elementwise stages of another shape that read the last result, as a scale for every
            channel of an image is read.
        limits: per axis, the largest tile of it (a group's size, else the extent).
        together: of integers, how terms are added up at once: the block's last axes, none of
            `reductions`, are of such neighbours, and shapes and strides of operands count groups.
        rounded: it is of bfloat16, two terms at once.
    """

    block: Stage
    product: bool
    before: tuple[Stage, ...]
    copies: tuple[Stage, ...]
    after: tuple[Stage, ...]
    beyond: tuple[Stage, ...]
    column: int
    rows: tuple[int, ...]
    spatial: tuple[int, ...]
    reductions: tuple[int, ...]
    vector: Operand
    other: Operand | None
    limits: tuple[int, ...]
    together: tuple[int, ...] = ()
    rounded: bool = False

    @property
    def terms(self) -> int:
        """That are added up at once: one, of floats."""
        return prod(self.together)

    @property
    def is_widened(self) -> bool:
        """Whether what it makes is stored in fewer bits than it is computed in."""
        return str(self.block.node.writes[0].source.dtype) == "bfloat16"

    def extent(self, axis: int) -> int:
        return self.block.axes[axis].extent

    @property
    def depth(self) -> int:
        """Terms of one output element."""
        return prod(self.extent(axis) for axis in self.reductions)

    @property
    def flops(self) -> float:
        return 2.0 * self.block.points

    @cached_property
    def operations_after(self) -> int:
        """Arithmetic of the stages after it, on one element."""
        found: list[Any] = []
        kinds = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select, Call)
        for stage in self.after:
            structural_walk(stage.node.body.value, tuple((kind, found.append) for kind in kinds))
        return len(found)

    @property
    def points_written(self) -> int:
        return prod(self.extent(axis) for axis in self.spatial)


def stages_of(workload: Any) -> tuple[Stage, ...]:
    """The blocks of a one-function module, in program order, without the root block.

    Raises:
        ValueError: a shape that is not known, or a block that writes several buffers.
    """
    blocks: list[Any] = []
    structural_walk(workload["main"].body, (SBlock, blocks.append))
    return tuple(_stage(node) for node in blocks if node.name_hint != "root")


def _stage(node: Any) -> Stage:
    if len(node.writes) != 1:
        raise ValueError(f"block {node.name_hint} writes {len(node.writes)} buffers")
    try:
        axes = tuple(
            Axis(v.var.name, int(v.dom.extent), int(v.iter_type) == tirx.IterVar.CommReduce)
            for v in node.iter_vars
        )
        written = node.writes[0].source
        shape = tuple(int(size) for size in written.shape)
    except TypeError as error:
        raise ValueError(f"block {node.name_hint} has no fixed shape") from error
    spatial = [v.var for v, axis in zip(node.iter_vars, axes, strict=True) if not axis.reduces]
    store = node.body
    direct = (
        isinstance(store, tirx.BufferStore)
        and len(store.indices) == len(spatial)
        and all(i.same_as(variable) for i, variable in zip(store.indices, spatial, strict=True))
    )
    copies = (
        direct
        and isinstance(store.value, TensorLoad)
        and structural_equal(list(store.value.indices), list(store.indices))
        and tuple(map(int, store.value.source.shape)) == shape
    )
    reads = tuple(region.source.name for region in node.reads)
    branches = bool(spatial) and any(
        uses(condition, spatial[-1]) for condition in conditions(store)
    )
    return Stage(node.name_hint, axes, reads, written.name, shape, direct, copies, branches, node)


def conditions(node: Any) -> list[Any]:
    """What the choices in `node` depend on."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") == "prim.if_then_else":
            found.append(call.args[0])

    structural_walk(node, (Call, visit))
    return found


def reduction_of(workload: Any, beyond: bool = False) -> Reduction | None:
    """The kernel as one reduction with its surroundings, None where it is something else.

    Args:
        beyond: there may be stages of another shape after it.
    """
    found = only_reduction(workload)
    if found is None:
        return None
    before, block, after, rest = found
    if (rest and not (beyond and only_beyond(block, after, rest))) or not _is_single_float(block):
        return None
    made = reduction_at(block, free_buffers(workload["main"]), before, after)
    return made and replace(made, beyond=tuple(rest))


Stages = Sequence[Stage]


def only_reduction(workload: Any) -> tuple[Stages, Stage, Stages, Stages] | None:
    """The one stage of a kernel that reduces: those that come before it or know nothing of it,
    itself, those after it that go on with its results element by element, and the rest; None where
    it is not the only one, or a stage stores elsewhere than at its own place."""
    try:
        stages = stages_of(workload)
    except ValueError:
        return None
    reducing = [stage for stage in stages if stage.reduces]
    if len(reducing) != 1 or not all(stage.direct for stage in stages):
        return None
    (block,) = reducing
    place = stages.index(block)
    behind, aside = {block.writes}, []
    later = []
    for stage in stages[place + 1 :]:
        if behind & set(stage.reads):
            behind.add(stage.writes)
            later.append(stage)
        else:
            aside.append(stage)
    return (*stages[:place], *aside), block, *_followers(block, later)


def reduction_at(
    block: Stage, free: frozenset[str], before: Sequence[Stage] = (), after: Sequence[Stage] = ()
) -> Reduction | None:
    """The reduction in `block`, one stage of a kernel; None where it is no such thing.

    Args:
        free: names of the buffers whose layout may change.
        before, after: the stages that belong to it.
    """
    loads, product = _terms(block.node)
    operands = [operand_of(block, load, free) for load in loads]
    return shaped(block, product, before, after, operands) if operands else None


def _is_single_float(block: Stage) -> bool:
    """Whether it computes in float32. So does the largest of numbers of bfloat16, which is one of
    them, once it has been lowered."""
    tensors = [block.node.writes[0].source, *(region.source for region in block.node.reads)]
    types = {str(tensor.dtype) for tensor in tensors}
    largest = isinstance(block.node.body.value, tirx.Max)
    return types == {"float32"} or (largest and types == {"bfloat16"})


def _followers(block: Stage, stages: Sequence[Stage]) -> tuple[Sequence[Stage], Sequence[Stage]]:
    """The first of `stages`, which read results of the block or of each other, element by element,
    and the rest."""
    results = {block.node.body.buffer}
    for count, stage in enumerate(stages):
        loads = [load for load in loads_of(stage.node.body) if load.source in results]
        here = list(stage.node.body.indices)
        if stage.shape != block.shape or not loads:
            return stages[:count], stages[count:]
        if not all(structural_equal(list(load.indices), here) for load in loads):
            return stages[:count], stages[count:]
        results.add(stage.node.body.buffer)
    return stages, ()


def only_beyond(block: Stage, after: Sequence[Stage], rest: Sequence[Stage]) -> bool:
    """Whether `rest` reads no result before the last, which alone is stored."""
    inside = {stage.writes for stage in (block, *after)[:-1]}
    return not any(
        load.source.name in inside for stage in rest for load in loads_of(stage.node.body)
    )


def _terms(node: Any) -> tuple[list[Any], bool]:
    """What the reduction reads besides its own result, and whether it is a sum of products."""
    store = node.body
    loads: list[Any] = []
    structural_walk(store.value, (TensorLoad, loads.append))
    read = [load for load in loads if not load.source.same_as(store.buffer)]
    product = (
        isinstance(store.value, tirx.Add)
        and isinstance(store.value.b, tirx.Mul)
        and all(isinstance(f, TensorLoad) for f in (store.value.b.a, store.value.b.b))
        and len(read) == 2
        and not read[0].source.same_as(read[1].source)
    )
    return (read, True) if product else (read[:1] if len(read) == 1 else [], False)


def load_of(form: Reduction) -> Any:
    """Where a product reads its other operand."""
    assert form.other is not None, "a product of two"
    loads: list[Any] = []
    structural_walk(form.block.node.body.value, (TensorLoad, loads.append))
    (load,) = (one for one in loads if one.source.name == form.other.buffer)
    return load


def sums_from_zero(block: Stage) -> bool:
    """Whether it adds to its own result, which begins with nothing."""
    store, first = block.node.body, block.node.init
    own = store.value.a
    return (
        isinstance(own, TensorLoad)
        and own.source.same_as(store.buffer)
        and structural_equal(list(own.indices), list(store.indices))
        and isinstance(first, tirx.BufferStore)
        and float(getattr(first.value, "value", 1.0)) == 0.0
    )


def free_buffers(function: Any) -> frozenset[str]:
    """Names of the buffers of a kernel whose layout may change."""
    return frozenset(function.params[place].name for place in free_arguments(function))


def operand_of(block: Stage, load: Any, free: frozenset[str]) -> Operand:
    """What the reduction in `block` reads by `load`."""
    variables = [v.var for v in block.node.iter_vars]
    plain = []
    for expression in load.indices:
        exact = [i for i, variable in enumerate(variables) if expression.same_as(variable)]
        plain.append(exact[0] if exact else None)
    name = load.source.name
    return Operand(
        name,
        block.reads.index(name),
        tuple(plain),
        tuple(int(size) for size in load.source.shape),
        name in free,
        tuple(_group(load, variable) for variable in variables),
        tuple(stride(load, variable) for variable in variables),
    )


def stride(load: Any, variable: Any, known: Analyzer | None = None) -> int | None:
    """Elements between what `load` reads for neighbours of `variable`; None where it varies.

    Args:
        known: what the variables range over: quotients and remainders of a reshape may be simple
            in these ranges.
    """
    found, elements = 0, 1
    for index, size in zip(reversed(load.indices), reversed(load.source.shape), strict=True):
        if known is not None:
            index = known.simplify(index)
        linear = detect_linear_equation(index, [variable])
        if not linear:
            return None
        found += int(linear[0]) * elements
        elements *= int(size)
    return found


def _group(load: Any, variable: Any) -> int | None:
    """See `Operand.groups`."""
    uses: list[Any] = []
    divisions: list[Any] = []
    structural_walk(list(load.indices), ((tirx.FloorDiv, divisions.append), (Var, uses.append)))
    mine = [use for use in uses if use.same_as(variable)]
    if not mine:
        return 0
    divided = [d for d in divisions if d.a.same_as(variable)]
    sizes = {int(d.b) for d in divided}
    return sizes.pop() if len(divided) == len(mine) and len(sizes) == 1 else None


def shaped(
    block: Stage,
    product: bool,
    before: Sequence[Stage],
    after: Sequence[Stage],
    operands: Sequence[Operand],
) -> Reduction | None:
    """The reduction in `block` of these operands; None where no operand lies along its columns."""
    axes = range(len(block.axes))
    spatial = tuple(i for i in axes if not block.axes[i].reduces)
    column = spatial[-1]
    holders = [operand for operand in operands if operand.depends_on(column)]
    if not holders:
        return None
    # Where both hold it (depthwise), the weights are the one that fewer axes move.
    vector = min(holders, key=lambda o: sum(o.depends_on(i) for i in spatial))
    others = [operand for operand in operands if operand is not vector]
    limits = [axis.extent for axis in block.axes]
    for operand in operands:
        for i in spatial:
            limits[i] = min(limits[i], operand.groups[i] or limits[i])
    rows = tuple(i for i in spatial[:-1] if not vector.depends_on(i)) if product else ()
    needed = set(block.reads)
    for stage in reversed(before):
        needed.update(stage.reads if stage.writes in needed else ())
    return Reduction(
        block,
        product,
        tuple(stage for stage in before if not stage.copies and stage.writes in needed),
        tuple(stage for stage in before if stage.copies or stage.writes not in needed),
        tuple(after),
        (),
        column,
        rows or spatial[:-1],
        spatial,
        tuple(i for i in axes if block.axes[i].reduces),
        vector,
        others[0] if others else None,
        tuple(limits),
    )
