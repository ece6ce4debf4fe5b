"""The whole model from its program and the winning traces, in a killable child.

Its constants do not go into its library but into a file of their own (`measure.weights`), and are
the last argument of its function: one tuple.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.devices.target import Target
from tunefarm.errors import JobFailed
from tunefarm.measure import weights
from tunefarm.measure.cuda.compiler import PTX_DIRECTORY
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

ASSEMBLE_LIMIT_S = 900.0


@dataclass(frozen=True)
class AssembleRequest:
    """`traces` by function name of the program in `module`; other functions stay untuned. `ptx`:
    where that of kernels for GPUs is kept, see `cuda.PTX_DIRECTORY`."""

    module: Path
    workloads: tuple[tuple[str, Path], ...]
    traces: tuple[tuple[str, str], ...]
    target: Target
    library: Path
    ptx: Path | None = None


@dataclass(frozen=True)
class Assembled:
    """The library.

    Attributes:
        packing_left: packing functions that could not be run ahead of time (0 is right).
        functions: that it has.
        joined: concatenations that are no kernel any more, see `measure.joining`.
    """

    library: Path
    packing_left: int
    functions: int
    joined: int


def assemble(request: AssembleRequest) -> Assembled:
    """Build in a child of its own.

    Raises:
        JobFailed: the compiler fails, crashes or takes too long.
    """
    kept = {PTX_DIRECTORY: str(request.ptx)} if request.ptx is not None else {}
    with Child("tunefarm.measure.assemble:run_assemble", kept) as child:
        try:
            result: Assembled = child.call(request, ASSEMBLE_LIMIT_S)
        except ChildTimeout:
            raise JobFailed(
                f"the whole model was not compiled within {ASSEMBLE_LIMIT_S:g} s"
            ) from None
        except (ChildDied, ChildError) as error:
            raise JobFailed(f"the whole model cannot be compiled: {error}") from error
    return result


def run_assemble(request: AssembleRequest) -> Assembled:
    """In the child."""
    from tvm import relax

    from tunefarm.frontend.stored import load_program_module
    from tunefarm.measure import joining
    from tunefarm.measure.cuda.graphs import graphed
    from tunefarm.measure.lowering import pipeline
    from tunefarm.search import replay
    from tunefarm.search.kernels.intrinsics import register_intrinsics
    from tunefarm.search.plugins import load_plugins

    register_intrinsics(request.target.kind, platform.machine())
    load_plugins()
    target = replay.tvm_target(request.target)
    module = load_program_module(request.module)
    concatenations = joining.concatenations(module) if request.traces else {}
    workloads = dict(request.workloads)
    for name, trace in request.traces:
        workload = replay.load_workload(workloads[name])
        function = replay.scheduled_function(workload, request.target, trace)
        scheduled = function.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
        module.update_func(module.get_global_var(name), scheduled)
    on_gpu = request.target.kind == "cuda"
    with target:
        if not on_gpu:  # kernels for GPUs pack nothing
            module = packed_apart(module)
        module = relax.transform.FoldConstant()(module)
        module = relax.transform.DeadCodeElimination()(module)
        module, joined = joining.join(module, concatenations)
        module, constants = lift_constants(module)
        weights.write(weights.beside(request.library), constants)
        del constants
        names = [variable.name_hint for variable in module.get_global_vars()]
        if on_gpu:
            module = replay.by_default(module, request.target)
        relaxed = graphed if on_gpu else "default"
        executable = relax.build(
            module, target, relax_pipeline=relaxed, tir_pipeline=pipeline(request.target)
        )
    temporary = request.library.with_name(f".{os.getpid()}.so")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        pack = _packing(request.target) if on_gpu else None
        executable.export_library(str(temporary), fcompile=_link, fpack_imports=pack)
        os.replace(temporary, request.library)
    finally:
        temporary.unlink(missing_ok=True)
    packing = sum(name.endswith("_weight_prepack") for name in names)
    return Assembled(request.library, packing, len(names), joined)


_PACKS = "meta_schedule.layout_rewrite_preproc"
"""An annotation: the block only brings a weight into the layout that its kernel wants."""


def packed_apart(module: Any) -> Any:
    """What packs weights as functions of their own, once for all that read the same in one layout
    (the steps of a recurrence do)."""
    import tvm
    from tvm import relax, tirx
    from tvm.s_tir import SBlock
    from tvm_ffi import structural_walk

    others = {}  # in which the transformation would look for blocks, and stop where there are none
    for variable, function in module.functions_items():
        blocks: list[Any] = []
        if isinstance(function, tirx.PrimFunc):
            structural_walk(function.body, (SBlock, blocks.append))
            if not any(_PACKS in block.annotations for block in blocks):
                others[variable] = function
    rest = {v: f for v, f in module.functions_items() if v not in others}
    module = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(rest, attrs=module.attrs))
    for variable, function in others.items():
        module[variable] = function
    return relax.transform.EliminateCommonSubexpr(call_only=True)(module)


def lift_constants(module: Any) -> tuple[Any, list[Any]]:
    """`main` with its constants as one more argument, a tuple; and what it is to be given."""
    from tvm import relax
    from tvm.relax.expr_functor import PyExprMutator, mutator

    main = module["main"]
    found: dict[int, tuple[Any, Any]] = {}

    @mutator
    class Lift(PyExprMutator):  # type: ignore[misc]
        def visit_generic_const_(self, constant: Any) -> Any:
            handle = constant.__chandle__()
            if handle not in found:
                found[handle] = (constant, relax.Var(f"weight{len(found)}", constant.ty))
            return found[handle][1]

    body = Lift().visit_expr(main.body)
    if not found:
        return module, []
    params = [*main.params, *(variable for _, variable in found.values())]
    lifted = relax.Function(params, body, main.ret_ty, is_pure=main.is_pure, attrs=main.attrs)
    module.update_func(
        module.get_global_var("main"), lifted.with_attr("num_input", len(main.params))
    )
    module = relax.transform.BundleModelParams("weights")(module)
    return module, [constant.value.numpy() for constant, _ in found.values()]


def _packing(target: Target) -> Any:
    """How `export_library` is to pack what a library for a GPU imports: as machine code."""
    from tunefarm.devices.gpu import arch_of
    from tunefarm.measure.cuda import cubin

    arch = arch_of(target).name

    def pack(module: Any, _is_system: bool, _prefix: str, directory: str) -> str:
        packed, _ = cubin.pack_imports(module, arch)
        file = os.path.join(directory, "devc.o")
        packed.write_to_file(file)
        return file

    return pack


def _link(output: str, objects: list[str], **_options: Any) -> None:
    """`export_library`'s linker: the kernels need nothing of a C runtime, so `ld` is enough."""
    subprocess.run(["ld", "-shared", "-o", output, *objects], check=True, capture_output=True)
