"""Padding of images, given to the kernels that make them (needs TVM).

A convolution that pads its image has to ask of every element whether it is there. Where it is the
only reader, and the image is made by a kernel that may go on, that kernel can as well store the
image with the zeros around it: `search.kernels.halo`. For processors, channels last, in float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunefarm.devices.target import Target
from tunefarm.frontend.pass_log import PassLog
from tunefarm.frontend.relax.calls import is_call, shape_of, uses_of

STAGE = "halo"
"""Name of the stage that pads a kernel's result."""
GO_ON = (
    *("relax.add", "relax.subtract", "relax.multiply", "relax.divide"),
    *("relax.maximum", "relax.minimum", "relax.clip", "relax.negative", "relax.abs"),
    *("relax.nn.relu", "relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh"),
    *("relax.sigmoid", "relax.tanh", "relax.exp", "relax.erf"),
    *("relax.nn.conv2d", "relax.permute_dims"),
)
"""Operators whose kernels the compiler lets an elementwise stage go on in."""
MOST = 0.2
"""Room around an image, as a share of it, up to which storing it is less than what it saves."""
_FEW = 3
"""Taps each way of a filter that does not outweigh asking whether each of them is there."""
_ELEMENTWISE = 0
"""The compiler's number for it."""


def give_halos(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """The network with the padding of its convolutions as a stage of its own, wherever the kernel
    before can have it."""
    if target.kind != "llvm":
        return module
    started = time.perf_counter()
    giver = _Giver(relax.transform.CanonicalizeBindings()(module))  # one name for each image
    rewritten = giver.visit_expr(giver.main)
    if giver.given:
        giver.builder_.update_func(module.get_global_var("main"), rewritten)
        module = giver.builder_.get()
    log.note("relax.give_halos", started, f"images stored with their padding: {giver.given}")
    return module


@tvm.transform.module_pass(opt_level=0, name="ElementwiseHalos")
class ElementwiseHalos:
    """Lets the compiler fuse such a stage as it fuses what goes on element by element: it is that,
    with more of its own around it."""

    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        module = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
        for variable, function in module.functions_items():
            if isinstance(function, tirx.PrimFunc) and variable.name_hint.startswith(STAGE):
                module[variable] = function.with_attr("op_pattern", _ELEMENTWISE)
        return module


@mutator
class _Giver(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule) -> None:
        super().__init__(module)
        self.main = module["main"]
        self._uses = uses_of(self.main)
        bindings = (one for block in self.main.body.blocks for one in block.bindings)
        self._made = {binding.var: binding.value for binding in bindings}
        self.given = 0

    def visit_call_(self, call: Any) -> Any:
        image = call.args[0] if call.args else None
        call = super().visit_call_(call)
        if not is_call(call, "relax.nn.conv2d") or not self._may_have(image, call):
            return call
        self.given += 1
        attributes = call.attrs
        top, left, bottom, right = (int(size) for size in attributes.padding)
        halo = self.builder_.call_te(
            with_zeros,
            call.args[0],
            (0, top, left, 0),
            (0, bottom, right, 0),
            primfunc_name_hint=STAGE,
        )
        return relax.op.nn.conv2d(
            self.builder_.emit(halo),
            call.args[1],
            attributes.strides,
            0,
            attributes.dilation,
            attributes.groups,
            attributes.data_layout,
            attributes.kernel_layout,
            attributes.out_layout,
            attributes.out_dtype,
        )

    def _may_have(self, image: Any, call: Any) -> bool:
        """Whether the image is padded, made by a kernel that can do it, and read nowhere else."""
        sizes = shape_of(image)
        if str(call.attrs.data_layout) != "NHWC" or sizes is None:
            return False
        if not isinstance(image, relax.DataflowVar) or self._uses[image] != 1:
            return False
        if str(image.ty.dtype) != "float32" or not is_call(self._made.get(image), *GO_ON):
            return False
        top, left, bottom, right = map(int, call.attrs.padding)
        _, height, width, _ = sizes
        room = (top + height + bottom) * (left + width + right) - height * width
        return 0 < room <= MOST * height * width and gains(call)


def gains(call: Any) -> bool:
    """Whether the convolution is sooner done without asking. One without a stride has so much to do
    that it costs nothing, or asks once for a tile (`search.kernels.winograd`), but where a filter
    has one channel of many and few taps. Of those in steps, which ask for a quarter of the results,
    that kind gains less than the image's maker pays."""
    sizes, strided = shape_of(call.args[1]), any(int(step) > 1 for step in call.attrs.strides)
    if sizes is None:
        return False
    down, across, channels, _ = sizes
    if channels > 1 or int(call.attrs.groups) == 1:
        return strided
    return not strided and max(down, across) <= _FEW


def with_zeros(image: Any, before: Sequence[int], behind: Sequence[int]) -> Any:
    """The tensor with zeros before and behind each axis."""
    shape = [
        first + int(size) + last
        for first, size, last in zip(before, image.shape, behind, strict=True)
    ]

    def element(*at: Any) -> Any:
        places = list(zip(at, before, image.shape, strict=True))
        inside = [
            bound
            for (place, first, size), last in zip(places, behind, strict=True)
            for bound, needed in ((place >= first, first), (place < first + size, last))
            if needed
        ]
        read = image(*(place - first if first else place for place, first, _ in places))
        return tirx.if_then_else(tirx.all(*inside), read, tirx.const(0.0, image.dtype))

    return te.compute(shape, element, name=STAGE)
