"""A product's stages written anew in the place of its own: what other texts of a kernel share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import SBlock
from tvm_ffi import structural_map

from tunefarm.search import replay
from tunefarm.search.kernels.splice import renamed, spliced
from tunefarm.search.spaces.form import Operand, Reduction, load_of
from tunefarm.search.spaces.neighbours import sums_of


def inlined(workload: Any, form: Reduction) -> tuple[Any, Reduction]:
    """The kernel with at most one stage after its reduction."""
    schedule = replay.new_schedule(workload, seed=1)
    for stage in (*form.copies, *form.after[:-1]):
        schedule.compute_inline(schedule.get_sblock(stage.name))
    plain = sums_of(schedule.mod)
    assert plain is not None, "inlining leaves the reduction as it is"
    return schedule.mod, plain


def placeholder_of(form: Reduction, operand: Operand, name: str) -> Any:
    """For what the reduction reads as `operand`, as it lies in memory."""
    (source,) = (
        region.source for region in form.block.node.reads if region.source.name == operand.buffer
    )
    return te.placeholder([int(size) for size in source.shape], str(source.dtype), name)


def indices_of(form: Reduction, values: dict[int, Any]) -> list[Any]:
    """Where the broadcast operand is read, for these values of the axes."""
    axes = [variable.var for variable in form.block.node.iter_vars]
    known = {axes[axis]: getattr(value, "var", value) for axis, value in values.items()}
    return [renamed(index, known) for index in load_of(form).indices]


def restaged(workload: Any, form: Reduction, made: Any, stored: Callable[[Any], SBlock]) -> Any:
    """The module of `workload` (see `inlined`) with the stages of `made` instead of its own.

    Args:
        made: a function of the broadcast operand, the weights, and a copy of the product.
        stored: makes of that copy the stage that stores the result.
    """
    sources = {region.source.name: region.source for region in form.block.node.reads}
    assert form.other is not None
    theirs = (sources[form.other.buffer], sources[form.vector.buffer])
    stages = renamed(made.body, dict(zip(made.params, theirs, strict=False))).block
    *text, copy = stages.body.seq
    text.append(structural_map(copy, (SBlock, stored)))
    instead: dict[str, Sequence[Any]] = {form.block.name: text}
    if not form.after:
        return spliced(workload["main"], instead, stages.alloc_buffers)
    (last,) = form.after
    instead[last.name] = ()
    return spliced(workload["main"], instead, stages.alloc_buffers, form.block.writes)


def stored_at(
    copy: Any, form: Reduction, at: Sequence[Any], guarded: Callable[[Any], Any] = lambda one: one
) -> SBlock:
    """The copy of the product as the store of the result at these axes of it: what follows the
    reduction is applied. `guarded` may put the store under conditions."""
    (product,) = copy.reads
    kept = (form.after[-1] if form.after else form.block).node
    axes = [v.var for v in kept.iter_vars if int(v.iter_type) != tirx.IterVar.CommReduce]
    place = dict(zip(axes, at, strict=True))

    def of_product(load: Any) -> Any:
        return copy.body.value if load.source.name == form.block.writes else load

    store = kept.body
    value = structural_map(store.value, (TensorLoad, of_product)) if form.after else copy.body.value
    written = tirx.BufferStore(
        store.buffer, renamed(value, place), [renamed(i, place) for i in store.indices]
    )
    others = [region for region in kept.reads if region.source.name != form.block.writes]
    reads = [product, *(renamed(region, place) for region in others if form.after)]
    writes = [renamed(region, place) for region in kept.writes]
    return SBlock(copy.iter_vars, reads, writes, copy.name_hint, guarded(written))
