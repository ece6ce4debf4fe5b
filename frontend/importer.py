"""The import itself. Runs in a child process with limits on time and memory."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import shutil
import signal
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import TensorProto

from tunefarm.devices.gpu import multiplies_tf32
from tunefarm.devices.target import Target
from tunefarm.errors import InvalidModel, UnsupportedModel, last_line
from tunefarm.frontend.dtypes import INT8, TF32, narrowest
from tunefarm.frontend.onnx.channel_shuffle import shuffles_after_depthwise
from tunefarm.frontend.onnx.file import (
    ImportLimits,
    bind_shapes,
    input_specs,
    name_plainly,
    read_model,
)
from tunefarm.frontend.onnx.half import half_types, widen_inside, widen_islands
from tunefarm.frontend.onnx.identity import model_digest
from tunefarm.frontend.onnx.one_row import rows_as_images
from tunefarm.frontend.onnx.padding import fold_padding
from tunefarm.frontend.onnx.passes import PASSES, Graph, attribute
from tunefarm.frontend.onnx.unit_axes import sink_unit_axes
from tunefarm.frontend.pass_log import BASELINE, PassLog
from tunefarm.frontend.program import Program, TensorSpec, load_program, program_to_dict
from tunefarm.frontend.quantised import passes as quantised
from tunefarm.frontend.spelled.expansion import expand, inline_functions
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

_MOST_BYTES = 2**31 - 1
"""Of a message of protobuf's."""
_HINT = "Replace it by standard operators before export, or cut it off the model."
_HINTS = {
    **dict.fromkeys(
        ("If", "Loop", "Scan"),
        "Its course, or how large what it makes is, depends on what the inputs hold. Export the "
        "model without it, or cut it off.",
    ),
    **dict.fromkeys(
        ("LSTM", "GRU", "RNN", "DFT", "STFT"),
        "Its number of steps is not known. Fix the inputs' sizes (--shape, or in the export).",
    ),
}
_COMPUTED = frozenset(
    {
        *(TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
        *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
        TensorProto.BOOL,
    }
)
"""ONNX's numbers of the types that anything is computed in."""
HANDLER = "tunefarm.frontend.importer:run_import"


@dataclass(frozen=True)
class ImportRequest:
    """`model` is imported for `target` into `directory`, which appears whole or not at all.

    Where `digest` is given (see `onnx.identity.model_digest`), another model in a file of the same
    name is refused. A `layout` (``NCHW``, ``NHWC``) is that of images inside the network; by
    default see `relax.layout`.
    """

    model: Path
    directory: Path
    target: Target
    digest: str = ""
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    layout: str | None = None
    limits: ImportLimits = field(default_factory=ImportLimits)


def import_model(request: ImportRequest, child: Child | None = None) -> Program:
    """Import in a child process (of the caller's, who may then end it).

    Raises:
        InvalidModel, UnsupportedModel, UsageError: see `onnx.file`; also when the
            import crashes, hangs or needs more memory than its limits allow.
    """
    if (request.directory / "evidence.json").exists():
        return load_program(request.directory)
    limits = request.limits
    child = child or Child(HANDLER, memory_bytes=limits.memory_bytes)
    hint = "The file may be hostile or broken; if it is sound, raise the import limits."
    with child:
        try:
            child.call(request, limits.seconds)
        except ChildTimeout:
            raise InvalidModel(
                f"{request.model}: the import took more than {limits.seconds:g} s", hint=hint
            ) from None
        except ChildDied as error:
            what = "needed too much memory" if error.returncode == -signal.SIGKILL else "crashed"
            raise InvalidModel(f"{request.model}: the import {what} ({error})", hint=hint) from None
        except ChildError as error:
            if out_of_memory(error):
                raise InvalidModel(
                    f"{request.model}: the import needs more than {limits.memory_bytes} bytes",
                    hint=hint,
                ) from None
            raise UnsupportedModel(
                f"{request.model} cannot be imported: {last_line(error.message)}",
                hint="The compiler refused it; the whole story is in the job's log.",
            ) from error
    return load_program(request.directory)


def out_of_memory(error: ChildError) -> bool:
    """Whether this is how a limit of memory shows: in Python, in C++, or in a system call."""
    words = ("bad_alloc", os.strerror(errno.ENOMEM), "failed to map segment")
    return error.type_name == "MemoryError" or any(
        word.lower() in error.message.lower() for word in words
    )


class Importing:
    """An import under way, which can be waited for and given up."""

    def __init__(self, request: ImportRequest) -> None:
        self._child = Child(HANDLER, memory_bytes=request.limits.memory_bytes)
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._future = self._pool.submit(import_model, request, self._child)

    def wait(self, seconds: float) -> bool:
        """True when it has ended, one way or another."""
        return bool(concurrent.futures.wait([self._future], timeout=seconds).done)

    def result(self) -> Program:
        return self._future.result()

    def close(self) -> None:
        self._child.kill()
        self._pool.shutdown(wait=False)


def run_import(request: ImportRequest) -> None:
    """In the child: read, rewrite, import, legalise, fuse, extract; then publish the directory."""
    warnings.simplefilter("ignore")
    log = PassLog()
    model = read_model(request.model, request.limits)
    digest = model_digest(request.model, here=True)
    if request.digest and digest != request.digest:
        raise InvalidModel(
            f"{request.model} is not the file that was submitted (its content has changed)",
            hint="Put the old file back, or submit the new one.",
        )
    origin = {
        "source": request.model.name,
        "digest": digest,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "ir_version": model.ir_version,
        "opset": {o.domain or "ai.onnx": o.version for o in model.opset_import},
    }
    bind_shapes(model, dict(request.shapes))
    counts = Counter(node.op_type for node in model.graph.node)
    _load_compiler()
    from tunefarm.frontend.relax import (
        attention,
        halos,
        kept_wide,
        layout,
        rounded_factors,
        whole,
    )
    from tunefarm.frontend.relax import passes as relax_passes
    from tunefarm.frontend.stored import save_program

    if model.ByteSize() >= _MOST_BYTES:
        raise UnsupportedModel(
            f"{request.model} has more than 2 GiB with its weights",
            hint="Split it, or store its weights in half precision.",
        )
    original = model.SerializeToString()
    known = relax_passes.importable_operators() | quantised.SPELLED
    started, nodes = time.perf_counter(), len(model.graph.node)
    model = inline_functions(model, request.limits.nodes)
    model = expand(model, known, request.limits.nodes)
    log.note("onnx.expand", started, f"{nodes} to {len(model.graph.node)} nodes")
    _check_operators(model, known)
    graph = Graph(model)
    types, is_quantised = half_types(model), quantised.is_quantised(model)
    for_processor = request.target.kind == "llvm"
    before = (widen_inside,) if types and for_processor else ()
    after = (widen_islands,) if types and not for_processor else ()
    # A reshape that went past what quantises would take it away from its product, which then is
    # none of whole numbers: ten kernels less are no gain beside that.
    sunk = () if is_quantised else (sink_unit_axes,)
    rows = () if is_quantised else (rows_as_images,)  # nor is a convolution then
    passes = (*before, *PASSES, *sunk, fold_padding, *rows)
    passes += (quantised.PASSES[request.target.kind],)
    for graph_pass in (*passes, shuffles_after_depthwise, *after):
        started, count = time.perf_counter(), len(graph.nodes)
        graph_pass(graph)
        log.note(f"onnx.{graph_pass.__name__}", started, f"{count} to {len(graph.nodes)} nodes")
    model, used = graph.store(), graph.uses()
    parameter_bytes = int(sum(a.nbytes for name, a in graph.constants.items() if used[name]))
    if parameter_bytes >= _MOST_BYTES:
        raise UnsupportedModel(
            f"{request.model} has {parameter_bytes / 2**30:.1f} GiB of weights in float32, in "
            "which a processor computes it; less than 2 can be imported",
            hint="Split it.",
        )
    inputs = input_specs(model)
    _check_inputs(inputs, used)
    name_plainly(model)
    module = relax_passes.from_onnx(model, log)
    temporary = request.directory.with_name(f".{request.directory.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / "workloads").mkdir(parents=True)
    try:
        (temporary / "model.onnx").write_bytes(original)
        module = relax_passes.simplify(module, request.target, log)
        baseline = relax_passes.lower(module, request.target, log, BASELINE)
        save_program(baseline, temporary / "baseline.json")
        wanted = layout.Layout(request.layout) if request.layout else None
        laid = layout.convert_layout(module, request.target, log, wanted)
        module = attention.gather_attention(laid.module, request.target, log, is_quantised)
        module = whole.gather_whole(module, request.target, log)
        module = kept_wide.keep_wide(module, log)
        rounded = 0
        if not is_quantised:
            module, rounded = rounded_factors.round_factors(module, request.target, log)
        module = halos.give_halos(module, request.target, log)
        module = relax_passes.fast_math(module, request.target, log)
        module = relax_passes.lower(module, request.target, log, "program")
        flops = relax_passes.flops_by_name(module)  # before one operation becomes many
        module = relax_passes.cheapen(module, request.target, log)
        save_program(module, temporary / "program.json")
        tasks = relax_passes.extract_tasks(module, flops, temporary)
        if not tasks:  # nor could it be linked: there is no code in it
            raise UnsupportedModel(
                f"{request.model} has nothing to compute: each output is a constant or an input"
            )
        program = Program(
            directory=temporary,
            inputs=inputs,
            outputs=relax_passes.output_specs(module, [o.name for o in model.graph.output]),
            tasks=tasks,
            evidence={
                **origin,
                "operators": {op: {"count": n, "taken": n} for op, n in sorted(counts.items())},
                "passes": log.entries(),
                "layout": laid.layout,
                "other_layout": laid.other,
                "kernels": sum(task.weight for task in tasks),
                "distinct_kernels": len(tasks),
                "parameter_bytes": parameter_bytes,
                "precision": INT8 if is_quantised else _precision(types, request.target, rounded),
                "untuned_precision": INT8 if is_quantised else _plain(types, request.target),
                "target": request.target.text,
            },
        )
        text = json.dumps(program_to_dict(program), indent=1)
        (temporary / "evidence.json").write_text(text)
        shutil.rmtree(request.directory, ignore_errors=True)
        temporary.rename(request.directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _precision(types: frozenset[str], target: Target, rounded: int) -> str:
    """See `Program.precision`; `rounded`, products whose factors are."""
    plain = _plain(types, target)
    if target.kind == "llvm":
        return "bfloat16" if rounded else plain
    return narrowest([plain, TF32]) if multiplies_tf32(target) else plain


def _plain(types: frozenset[str], target: Target) -> str:
    """Of a build that rounds nothing more than the model does."""
    return "float32" if target.kind == "llvm" else narrowest(types)


def _load_compiler() -> None:
    """TVM does without its compiler where that cannot be loaded, as where there is no memory for
    it, and says nothing.

    Raises:
        OSError: it cannot; in the system's words.
    """
    import tvm.base
    from tvm_ffi.libinfo import load_lib_ctypes

    if "tvm_compiler" not in tvm.base._LOADED_LIBS:
        paths = tvm.libinfo.package_lib_paths()
        load_lib_ctypes("tvm", "tvm_compiler", "RTLD_LOCAL", extra_lib_paths=paths)


def _check_operators(model: onnx.ModelProto, known: frozenset[str]) -> None:
    for node in model.graph.node:
        if node.op_type not in known:
            domain = f"{node.domain}." if node.domain else ""
            raise UnsupportedModel(
                f"operator {domain}{node.op_type} (node {node.name or node.output[0]!r}) "
                "cannot be imported",
                hint=_HINTS.get(node.op_type, _HINT),
            )
        if node.op_type == "Cast" and (wanted := attribute(node, "to", 0)) not in _COMPUTED:
            raise UnsupportedModel(
                f"Cast (node {node.name or node.output[0]!r}) makes numbers of type "
                f"{onnx.TensorProto.DataType.Name(wanted)}, in which nothing is computed"
            )


def _check_inputs(inputs: tuple[TensorSpec, ...], used: Counter[str]) -> None:
    computed = {onnx.helper.tensor_dtype_to_np_dtype(number).name for number in _COMPUTED}
    for spec in inputs:
        if 0 in spec.shape and used[spec.name]:
            raise UnsupportedModel(f"input {spec.name!r} has no elements: {list(spec.shape)}")
        if spec.dtype not in computed:
            raise UnsupportedModel(f"input {spec.name!r} has dtype {spec.dtype}")
