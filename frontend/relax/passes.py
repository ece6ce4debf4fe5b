"""The compiler's side of an import: from ONNX to fused TensorIR kernels (needs TVM)."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax, topi
from tvm.ir.expr import Call
from tvm.relax import transform
from tvm.relax.frontend.onnx import onnx_frontend
from tvm_ffi import structural_walk

from tunefarm.devices.target import Target
from tunefarm.errors import UnsupportedModel, last_line
from tunefarm.frontend.dtypes import BYTES, BYTES_KEPT
from tunefarm.frontend.pass_log import PassLog, run_passes
from tunefarm.frontend.program import ATTENTION, TensorSpec, TuningTask
from tunefarm.frontend.relax.exponentials import exponentials
from tunefarm.frontend.relax.fold import Folded
from tunefarm.frontend.relax.half import sum_in_float32
from tunefarm.frontend.relax.halos import ElementwiseHalos
from tunefarm.frontend.relax.reads import rereads
from tunefarm.frontend.relax.spelled import Spelled
from tunefarm.frontend.relax.tir import (
    argument_specs,
    free_arguments,
    needed,
    roots,
    shared_divisors,
    workload_id,
    workload_module,
)


def importable_operators() -> frozenset[str]:
    return frozenset(onnx_frontend._get_convert_map())


def from_onnx(model: onnx.ModelProto, log: PassLog) -> tvm.IRModule:
    """Import with the weights as constants.

    Raises:
        UnsupportedModel: the importer refuses a node.
    """
    sum_in_float32()
    started = time.perf_counter()
    try:
        module = onnx_frontend.from_onnx(model, keep_params_in_input=False)
    except Exception as error:
        raise UnsupportedModel(f"the importer refuses this model: {last_line(error)}") from error
    log.note("relax.from_onnx", started)
    return module


def simplify(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    passes = [
        Spelled(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        Folded(),
        transform.FoldConstant(),
    ]
    return run_passes(module, passes, target, log, "simplify")


def lower(module: tvm.IRModule, target: Target, log: PassLog, stage: str) -> tvm.IRModule:
    """Operators to TensorIR, fused; the arguments whose layout is free (constants) are marked."""
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        ElementwiseHalos(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    return _reshapes_as_views(run_passes(module, passes, target, log, stage))


def _reshapes_as_views(module: tvm.IRModule) -> tvm.IRModule:
    """What only reshapes is no kernel: its result is where its argument is. (A network of nothing
    else stays as it is, for there is no library without code.)"""
    views = transform.RewriteDataflowReshape()(module)
    views = transform.DeadCodeElimination()(views)
    kernels = (isinstance(one, tvm.tirx.PrimFunc) for one in views.functions.values())
    return views if any(kernels) else module


def fast_math(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """Error functions and hyperbolic tangents as quotients of polynomials, in vectors: a library's
    are called once for every element. (On a GPU they are functions of the compiler's own.)"""
    if target.kind != "llvm":
        return module
    return run_passes(module, [_Quotients()], target, log, "fast math")


def gelu(x: Any) -> Any:
    """x times the normal distribution's share below it."""
    return topi.multiply(x * 0.5, topi.fast_erf(x * math.sqrt(0.5)) + 1.0)


def gelu_tanh(x: Any) -> Any:
    """Its approximation by a hyperbolic tangent (Hendrycks and Gimpel, Gaussian Error Linear Units,
    2016)."""
    inner = topi.multiply(x * math.sqrt(2 / math.pi), topi.multiply(x, x) * 0.044715 + 1.0)
    return topi.multiply(x * 0.5, topi.fast_tanh(inner) + 1.0)


_MADE = {
    "relax.erf": topi.fast_erf,
    "relax.tanh": topi.fast_tanh,
    "relax.nn.gelu": gelu,
    "relax.nn.gelu_tanh": gelu_tanh,
}


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        made = _MADE.get(getattr(call.op, "name", ""))
        if made is None:
            return super().visit_call_(call)
        return self.builder_.call_te(made, self.visit_expr(call.args[0]))


@tvm.transform.module_pass(opt_level=0, name="Quotients")
class _Quotients:
    def transform_module(self, module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mutator = _Mutator(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                mutator.builder_.update_func(variable, mutator.visit_expr(function))
        return mutator.builder_.get()


def cheapen(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """Dear operations as cheaper ones, in every kernel: see `tir.shared_divisors`, `tir.roots`
    and, for processors, `exponentials`."""
    rewrites = {shared_divisors: "divisions", roots: "powers"}
    if target.kind == "llvm":
        rewrites[exponentials] = "exponentials"
    for one, what in rewrites.items():
        started, total = time.perf_counter(), 0
        for variable, function in module.functions_items():
            # Attention's own schedules know its exponential, and have it as a polynomial.
            own = re.fullmatch(rf"{ATTENTION}\d*", variable.name_hint) and one is exponentials
            if isinstance(function, tvm.tirx.PrimFunc) and not own:
                function, count = one(function)
                if count:
                    module[variable] = function
                    total += count
        log.note(f"tir.{one.__name__}", started, f"{what} rewritten: {total}")
    return module


def output_specs(module: tvm.IRModule, names: list[str]) -> tuple[TensorSpec, ...]:
    """The outputs of `main`, under their ONNX names.

    Raises:
        UnsupportedModel: an output whose shape is not known before the run.
    """
    type_ = module["main"].ret_ty
    fields = list(type_.fields) if hasattr(type_, "fields") else [type_]
    specs = []
    for name, field in zip(names, fields, strict=True):
        try:
            shape = tuple(int(d) for d in field.shape)
        except (TypeError, ValueError):
            raise UnsupportedModel(f"output {name!r} has no fixed shape") from None
        specs.append(TensorSpec(name, shape, str(field.dtype)))
    return tuple(specs)


def flops_by_name(module: tvm.IRModule) -> dict[str, float]:
    """Of every kernel, with functions such as exponentials as one operation each."""
    return {
        variable.name_hint: flops_of(workload_module(function))
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


_TO_WHOLE = ("tirx.nearbyint", "tirx.round")
"""TensorIR's names of what rounds to whole numbers."""


def extract_tasks(
    module: tvm.IRModule, flops: Mapping[str, float], directory: Path
) -> tuple[TuningTask, ...]:
    """One task per distinct kernel, heaviest first; their workloads are written to `directory`.

    Args:
        flops: by a kernel's name.

    Raises:
        UnsupportedModel: a kernel whose sizes are not known before the run.
    """
    calls: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            for arg in node.args:
                if isinstance(arg, tvm.ir.GlobalVar):
                    calls[arg.name_hint] = calls.get(arg.name_hint, 0) + 1

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    tasks: dict[str, TuningTask] = {}
    for variable, function in module.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        name = variable.name_hint
        workload = workload_module(function)
        task = workload_id(workload)
        args = _arguments(name, function)
        if task in tasks:
            known = tasks[task]
            tasks[task] = TuningTask(
                **{
                    **known.__dict__,
                    "functions": (*known.functions, name),
                    "weight": known.weight + calls.get(name, 0),
                }
            )
            continue
        least = needed(function, args)
        text = tvm.ir.save_json(workload)
        (directory / "workloads" / f"{task}.json").write_text(text)
        tasks[task] = TuningTask(
            id=task,
            name=_readable(name, args),
            functions=(name,),
            weight=calls.get(name, 0),
            flops=flops[name] * least.share,
            bytes=least.bytes,
            rounds=_rounds(function),
            args=args,
            constants=free_arguments(function),
        )
    found = sorted(tasks.values(), key=lambda t: (-t.weight * t.flops, t.id))
    again = rereads(module, found)
    return tuple(dataclasses.replace(task, again=again.get(task.id, 0)) for task in found)


def _arguments(name: str, function: Any) -> tuple[TensorSpec, ...]:
    try:
        return argument_specs(function)
    except (TypeError, ValueError):
        raise UnsupportedModel(
            f"the sizes in kernel {_readable(name, ())} depend on what the model's inputs hold",
            hint="Cut off what selects by value (NonZero, Compress, Unique, ...), or fix its size.",
        ) from None


def _rounds(function: Any) -> bool:
    """See `TuningTask.rounds`."""
    found: set[str] = set()
    structural_walk(function.body, (Call, lambda call: found.add(getattr(call.op, "name", ""))))
    return not found.isdisjoint(_TO_WHOLE)


def flops_of(workload: tvm.IRModule) -> float:
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(workload))
    except Exception:  # kernels of pure data movement have none that it can count
        return 0.0


def _readable(name: str, args: Collection[TensorSpec]) -> str:
    """``fused_conv2d10_add6_relu61`` -> ``conv2d_add_relu``; the numbers only tell copies apart."""
    parts = [re.sub(r"(?<=[a-z])\d+$", "", part) for part in name.split("_")]
    plain = "_".join(part for part in parts if part and part != "fused")
    whole = any(spec.dtype in (*BYTES, BYTES_KEPT) for spec in args)
    for steps, name in (*_SPELLED, *(_SPELLED_OF_BYTES if whole else ())):
        plain = re.sub(rf"(?<![a-z]){steps}(?![a-z])", name, plain)
    return plain


_SPELLED = (
    ("(multiply_)?maximum_minimum_tir_round_(subtract_)?multiply", "quantize_dequantize"),
    ("(multiply_)?maximum_minimum_tir_round_(cast_add_)?cast", "quantize"),
    ("(multiply_)?tir_round_add_maximum_minimum_(subtract_)?multiply", "quantize_dequantize"),
    ("(multiply_)?tir_round_add_maximum_minimum_cast", "quantize"),
)
_SPELLED_OF_BYTES = (("cast_(subtract_)?multiply", "dequantize"),)
"""What `relax.spelled` makes of an operator, and that operator; the last of it is something else
where nothing has 8 bits."""
