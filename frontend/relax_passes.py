"""The compiler's side of an import: from ONNX to fused TensorIR kernels (needs TVM)."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax import transform
from tvm.relax.frontend.onnx import onnx_frontend

from tunefarm.devices.target import Target
from tunefarm.errors import UnsupportedModel, last_line
from tunefarm.frontend.pass_log import PassLog, run_passes
from tunefarm.frontend.program import TensorSpec, TuningTask
from tunefarm.frontend.tir import (
    argument_specs,
    free_arguments,
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
    started = time.perf_counter()
    try:
        module = onnx_frontend.from_onnx(model, keep_params_in_input=False)
    except Exception as error:
        raise UnsupportedModel(f"the importer refuses this model: {last_line(error)}") from error
    log.note("relax.from_onnx", started)
    return module


def simplify(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    passes = [
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        transform.FoldConstant(),
    ]
    return run_passes(module, passes, target, log, "simplify")


def lower(module: tvm.IRModule, target: Target, log: PassLog, stage: str) -> tvm.IRModule:
    """Operators to TensorIR, fused; the arguments whose layout is free (constants) are marked."""
    passes = [
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
        transform.AttachAttrLayoutFreeBuffers(),
    ]
    return run_passes(module, passes, target, log, stage)


def fast_math(module: tvm.IRModule, target: Target, log: PassLog) -> tvm.IRModule:
    """Exponentials and their kin as polynomials, in vectors: the library's are called once for
    every element. The largest relative error seen was 4e-7 (`docs/benchmarks.md`)."""
    return run_passes(module, [transform.FastMathTransform()], target, log, "fast math")


def cheapen(module: tvm.IRModule, log: PassLog) -> tvm.IRModule:
    """Dear operations as cheaper ones, in every kernel: see `tir.shared_divisors`, `tir.roots`."""
    for one, what in ((shared_divisors, "divisions"), (roots, "powers")):
        started, total = time.perf_counter(), 0
        for variable, function in module.functions_items():
            if isinstance(function, tvm.tirx.PrimFunc):
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


def extract_tasks(module: tvm.IRModule, directory: Path) -> tuple[TuningTask, ...]:
    """One task per distinct kernel, heaviest first; their workloads are written to `directory`."""
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
        args = argument_specs(function)
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
        text = tvm.ir.save_json(workload)
        (directory / "workloads" / f"{task}.json").write_text(text)
        tasks[task] = TuningTask(
            id=task,
            name=_readable(name),
            functions=(name,),
            weight=calls.get(name, 0),
            flops=flops_of(workload),
            bytes=sum(_bytes(spec) for spec in args),
            args=args,
            constants=free_arguments(function),
        )
    return tuple(sorted(tasks.values(), key=lambda t: (-t.weight * t.flops, t.id)))


def flops_of(workload: tvm.IRModule) -> float:
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(workload))
    except Exception:  # kernels of pure data movement have none that it can count
        return 0.0


def _bytes(spec: TensorSpec) -> int:
    elements = 1
    for size in spec.shape:
        elements *= size
    bits = int(re.sub(r"\D", "", spec.dtype) or 8)
    return elements * max(1, bits // 8)


def _readable(name: str) -> str:
    """``fused_conv2d10_add6_relu61`` -> ``conv2d_add_relu``; the numbers only tell copies apart."""
    parts = [re.sub(r"(?<=[a-z])\d+$", "", part) for part in name.split("_")]
    return "_".join(part for part in parts if part and part != "fused")
