"""The layout that a network is computed in: channels last where nothing stands in the way, and
where something does, whichever is measured to be faster (`scheduler.layout_trial`)."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax import transform
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.devices.target import Target
from tunefarm.errors import UnsupportedModel, last_line
from tunefarm.frontend.dtypes import HALF
from tunefarm.frontend.onnx.channel_shuffle import Move, shuffled_groups
from tunefarm.frontend.pass_log import PassLog, run_passes
from tunefarm.frontend.relax.calls import is_call, shape_of
from tunefarm.frontend.relax.fold import Folded
from tunefarm.frontend.relax.operators import Layable
from tunefarm.frontend.relax.rearranged import rearranged_late, turns


class Layout(enum.StrEnum):
    FIRST = "NCHW"
    LAST = "NHWC"


@dataclass(frozen=True)
class Laid:
    """A network in a layout; `other` is one that might be faster, None where that is out of the
    question."""

    module: tvm.IRModule
    layout: Layout
    other: Layout | None = None


def convert_layout(
    module: tvm.IRModule, target: Target, log: PassLog, wanted: Layout | None = None
) -> Laid:
    """The network in the layout that is wanted, or channels last, where that takes no more than a
    transpose at either end of it.

    On CPUs the channels-last kernels of a 3x3 convolution reach 1.5 times the throughput of the
    channels-first ones, those of a depthwise one five times; but transposes that stay inside may
    cost more than that, or less.
    """
    module = rearranged_late(module)
    if wanted is Layout.FIRST:
        log.note("relax.ConvertLayout", time.perf_counter(), "NCHW was asked for")
        return Laid(module, Layout.FIRST)
    before = turns(module)
    passes = [
        Layable(),
        transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]}),
        Folded(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
    ]
    scratch = PassLog()
    try:
        converted = run_passes(module, passes, target, scratch, "layout")
        converted, absorbed = absorb_shuffles(converted, scratch)
        converted = rearranged_late(converted)
    except Exception as error:
        if wanted is Layout.LAST:
            raise UnsupportedModel(
                f"the network cannot be computed in NHWC: {last_line(error)}",
                hint="Leave --layout to tunefarm.",
            ) from error
        log.note("relax.ConvertLayout", time.perf_counter(), f"kept NCHW: {last_line(error)}")
        return Laid(module, Layout.FIRST)
    added = turns(converted) - (before - absorbed)  # a shuffle had one of its own
    inputs, outputs = len(converted["main"].params), 1
    if added > inputs + outputs and wanted is None:
        log.note("relax.ConvertLayout", time.perf_counter(), f"kept NCHW: {added} transposes")
        return Laid(module, Layout.FIRST, other=Layout.LAST)
    log.extend(scratch)
    return Laid(converted, Layout.LAST)


def absorb_shuffles(module: tvm.IRModule, log: PassLog) -> tuple[tvm.IRModule, int]:
    """Grouped convolutions read shuffled channels where they lie: one kernel instead of two, and
    the search decides where the order changes. Also how many of them do."""
    started = time.perf_counter()
    rewriter = _Absorber(module)
    rewritten = rewriter.visit_expr(module["main"])
    if rewriter.absorbed:
        rewriter.builder_.update_func(module.get_global_var("main"), rewritten)
        module = transform.DeadCodeElimination()(rewriter.builder_.get())
    log.note("relax.absorb_shuffles", started, f"channel shuffles absorbed: {rewriter.absorbed}")
    return module, rewriter.absorbed


@mutator
class _Absorber(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.absorbed = 0

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not is_call(call, "relax.nn.conv2d") or str(call.attrs.data_layout) != "NHWC":
            return call
        if int(call.attrs.groups) == 1:
            return call
        source, groups = self._shuffled(call.args[0])
        if groups is None:
            return call
        self.absorbed += 1
        dtype = str(call.ty.dtype)
        made = self.builder_.call_te(
            _shuffled_convolution,
            source,
            call.args[1],
            call.attrs,
            groups,
            "float32" if dtype in HALF else dtype,  # as in `relax.half`
            primfunc_name_hint="shuffle_conv2d",
        )
        if dtype not in HALF:
            return made
        return self.builder_.call_te(topi.cast, self.builder_.emit(made), dtype)

    def _shuffled(self, data: Any) -> tuple[Any, int | None]:
        """What `data` is a rearrangement of, and the groups of the channel shuffle that it is."""
        moves: list[Move] = []
        shape = shape_of(data)
        while isinstance(data, relax.Var):
            made = self.lookup_binding(data)
            if is_call(made, "relax.reshape"):
                moves.insert(0, ("reshape", [int(size) for size in made.ty.shape]))
            elif is_call(made, "relax.permute_dims"):
                axes = made.attrs.axes
                order = None if axes is None else [int(axis) for axis in axes]
                moves.insert(0, ("transpose", order))
            else:
                break
            data = made.args[0]
        if shape is None or shape_of(data) != shape:
            return data, None
        return data, shuffled_groups(moves, shape, len(shape) - 1)


def _shuffled_convolution(data: Any, weights: Any, attributes: Any, groups: int, dtype: str) -> Any:
    """A convolution, summed in `dtype`, of the (N, H, W, C) tensor of which channel c is `data`'s
    channel c % groups * (C // groups) + c // groups."""
    each = int(data.shape[3]) // groups
    shuffled = te.compute(
        data.shape,
        lambda n, y, x, c: data[n, y, x, c % groups * each + c // groups],
        name="shuffle",
    )
    return topi.nn.conv(
        shuffled,
        weights,
        [int(step) for step in attributes.strides],
        [int(size) for size in attributes.padding],
        [int(step) for step in attributes.dilation],
        int(attributes.groups),
        "NHWC",
        "HWIO",
        out_dtype=dtype,
    )
