"""From a trace to a scheduled kernel: the one way, for search, build and packaging alike."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace
from tvm_ffi import structural_walk

from tunefarm.devices.gpu import with_dynamic_shared
from tunefarm.devices.target import Target
from tunefarm.errors import last_line
from tunefarm.frontend.program import TensorSpec
from tunefarm.frontend.relax.halos import STAGE
from tunefarm.frontend.relax.tir import argument_specs, stage_name
from tunefarm.search.candidate import IN_MATRICES, UNTUNED
from tunefarm.search.kernels.halo import stays_aligned, with_halo, within
from tunefarm.search.kernels.intrinsics import register_intrinsics, without_stack
from tunefarm.search.kernels.matrices import in_registers
from tunefarm.search.kernels.neighbours import FAMILY, importing, register_neighbours
from tunefarm.search.kernels.neighbours import KEY as OF_BFLOAT16
from tunefarm.search.kernels.prefetch import KEY as PREFETCH
from tunefarm.search.kernels.prefetch import prefetching
from tunefarm.search.kernels.streaming import KEY as STREAM
from tunefarm.search.kernels.streaming import streaming
from tunefarm.search.kernels.tensor_cores import TENSOR_CORES, schedule_rules

KERNEL = "kernel"
"""Name of a built kernel's entry function."""
PREPACK = "prepack"
"""Name of the function that brings its constant arguments into the kernel's own layout."""


class InvalidTrace(Exception):
    """The trace does not apply to its workload, or a check after it refuses the result."""


@lru_cache(maxsize=64)
def load_workload(path: Path) -> Any:
    """A workload's IRModule, with its one function ``main``."""
    return tvm.ir.load_json(path.read_text())


def tvm_target(target: Target) -> Any:
    return tvm.target.Target(target.tvm)


_TENSORISED = '"meta_schedule.auto_tensorize"'


def make_context(workload: Any, target: Target, rules: str = "", seed: int = 1) -> Any:
    """A `TuneContext` with TVM's own design space and checks for `target`; by other `rules` than
    those of its kind. `seed` is for what its sketches are first drawn with."""
    register_intrinsics(rules or target.kind, platform.machine())
    generator = "post-order-apply"
    if rules == TENSOR_CORES:
        target = with_dynamic_shared(target)
    # By default a GPU's rules would be those for tensor cores alone, and a processor's those with
    # intrinsics for products of 8 bits, which the compiler refuses.
    if rules or target.kind == "cuda" or "int8" in _types(workload):
        rules = rules or target.kind
        generator = ms.space_generator.PostOrderApply(
            sch_rules=schedule_rules() if rules == TENSOR_CORES else rules,
            postprocs=rules,
            mutator_probs=rules,
        )
    return ms.TuneContext(
        workload,
        target=tvm_target(target),
        space_generator=generator,
        search_strategy="replay-trace",
        num_threads=1,
        rand_state=seed,
    )


def _types(workload: Any) -> set[str]:
    return {spec.dtype for spec in argument_specs(workload["main"])}


def rules_of(trace: str) -> str:
    """By which rules the trace of one of TVM's sketches was made, see `make_context`."""
    return TENSOR_CORES if _TENSORISED in trace else ""


def new_schedule(workload: Any, seed: int) -> Any:
    return Schedule(workload, seed=seed, debug_mask=0, error_render_level="none")


def plain(node: Any) -> Any:
    """A trace's `as_json()` in Python's own types, so that `json` writes it one way."""
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, str):
        return str(node)
    if isinstance(node, int):
        return int(node)
    if isinstance(node, float):
        return float(node)
    if hasattr(node, "value"):
        return plain(node.value)
    return [plain(item) for item in node]


def trace_json(schedule: Any) -> str:
    """The applied trace of a schedule, canonical: equal schedules of one sketch, equal text."""
    return json.dumps(plain(schedule.trace.as_json()), separators=(",", ":"))


def apply_trace(workload: Any, trace: str) -> Any:
    """The schedule after `trace` (before the checks and rewrites that follow it).

    Raises:
        InvalidTrace: it does not apply.
    """
    if FAMILY in trace:
        register_neighbours()
    try:
        schedule = new_schedule(rewritten(workload, algorithm_of(trace)), seed=1)
        Trace.apply_json_to_schedule(_present_names(json.loads(trace), schedule), schedule)
    except Exception as error:
        raise InvalidTrace(last_line(error)) from error
    return schedule


def _present_names(trace: Any, schedule: Any) -> Any:
    """The trace with the names that its stages have in this kernel: journals of before
    `tir.stage_name` call reductions after tensors of their own networks."""
    present: list[str] = []
    structural_walk(
        schedule.mod["main"].body, (SBlock, lambda node: present.append(node.name_hint))
    )
    for kind, _inputs, attributes, _outputs in trace[0]:
        if kind == "GetSBlock" and attributes[0] not in present:
            attributes[0] = stage_name(attributes[0])
    return trace


def postprocess(context: Any, schedule: Any) -> None:
    """TVM's post-processing: parallel, vectorise, unroll, reduction, tensorise, layout, checks.

    Raises:
        InvalidTrace: a check refuses the schedule.
    """
    schedule.enter_postproc()
    for step in context.space_generator.postprocs:
        try:
            passed = step.apply(schedule)
        except Exception as error:
            raise InvalidTrace(last_line(error)) from error
        if not passed:
            raise InvalidTrace(f"refused by {type(step).__name__}")


_ALGORITHM = "tunefarm.algorithm"
_COMPLETE = "tunefarm.point"


def mark_algorithm(schedule: Any, algorithm: str) -> None:
    """Note in the schedule, and so in its trace, that its kernel was rewritten (`rewritten`)."""
    schedule.annotate(schedule.get_sblock("root"), _ALGORITHM, algorithm)


def mark_complete(schedule: Any, point: str) -> None:
    """Note in the schedule, and so in its trace, the point that it is; nothing follows it: TVM's
    post-processing is for TVM's own sketches. `point` is plain words, without quotes."""
    schedule.annotate(schedule.get_sblock("root"), _COMPLETE, point)


def completed_by(trace: str) -> str | None:
    """What `mark_complete` noted in this trace, None where it did not."""
    return _noted(trace, _COMPLETE)


def algorithm_of(trace: str) -> str | None:
    """What `mark_algorithm` noted in this trace, None where it did not."""
    return _noted(trace, _ALGORITHM)


def _noted(trace: str, key: str) -> str | None:
    if f'"{key}"' not in trace:
        return None
    for kind, inputs, attributes, _outputs in json.loads(trace)[0]:
        if kind == "Annotate" and attributes == [key]:
            return str(inputs[1]).strip('"')
    return None


def rewritten(workload: Any, algorithm: str | None) -> Any:
    """The kernel computed by another algorithm, such as ``winograd 4`` or ``across 6``; None
    leaves it.

    Raises:
        ValueError: an algorithm that is not known, or that does not fit the kernel.
    """
    if algorithm is None:
        return workload
    from tunefarm.search.kernels.filling import filled
    from tunefarm.search.kernels.folding import fold
    from tunefarm.search.kernels.lapping import lapped
    from tunefarm.search.kernels.overlapping import overlapped
    from tunefarm.search.kernels.score_rows import in_rows
    from tunefarm.search.kernels.spreading import spread
    from tunefarm.search.kernels.tables import tabled
    from tunefarm.search.kernels.winograd import winograd

    name, _, size = algorithm.partition(" ")
    known = {"winograd": winograd, "filled": filled, "spread": spread, "fold": fold}
    known |= {"overlapped": overlapped, "across": partial(overlapped, across=True)}
    known |= {"lapped": lapped, "rows": in_rows, "table": tabled}
    if name not in known or not size.isdigit():
        raise ValueError(f"no algorithm {algorithm!r} is known")
    return known[name](workload, int(size))


@lru_cache(maxsize=4)
def feature_context(target: Target) -> Any:
    """A context for extracting features alone: it holds the target, and no space."""
    return ms.TuneContext(target=tvm_target(target), num_threads=1)


def scheduled_function(workload: Any, target: Target, trace: str) -> Any:
    """The scheduled PrimFunc; layout changes of constants still stand inside it. A kernel that pads
    its result is scheduled as what it is without (`kernels.halo`), and its trace is of that."""
    if trace == UNTUNED:
        return by_default(workload, target)["main"] if target.kind == "cuda" else workload["main"]
    halo = None
    if f'"{STAGE}"' not in trace:  # nor is it in any trace of the farm's own
        workload, halo = within(workload)
    schedule = apply_trace(workload, trace)
    if completed_by(trace) is None:
        postprocess(make_context(workload, target, rules_of(trace)), schedule)
    function = schedule.mod["main"]
    function = _completed(function, target, trace)
    function = in_full(function, target, completed_by(trace))
    if halo is None:
        return function
    if not stays_aligned(function, halo):
        raise InvalidTrace("with zeros around it the result's vectors would not be aligned")
    return with_halo(function, halo)


def _completed(function: Any, target: Target, trace: str) -> Any:
    """With the statements that schedules have no primitives for."""
    from tunefarm.search.kernels.tables import KEY as LOOK_UP
    from tunefarm.search.kernels.tables import looking_up

    steps = (
        *((PREFETCH, prefetching), (STREAM, streaming), (OF_BFLOAT16, importing)),
        (IN_MATRICES, partial(in_registers, target=target)),
        (LOOK_UP, partial(looking_up, target=target)),
    )
    try:
        for key, step in steps:
            function = step(function) if f'"{key}"' in trace else function
    except ValueError as error:
        raise InvalidTrace(str(error)) from error
    return function


def in_full(function: Any, target: Target, point: str | None) -> Any:
    """A scheduled kernel, or the one that its point alone stands for.

    Raises:
        InvalidTrace: the point does not fit the kernel or the target.
    """
    from tunefarm.search.spaces.attention_tile.space import ATTENTION_TILES
    from tunefarm.search.spaces.matrix_attention.space import MATRIX_ATTENTIONS
    from tunefarm.search.spaces.plain_tile.space import PLAIN_TILES
    from tunefarm.search.spaces.tensor_tile.space import TENSOR_TILES
    from tunefarm.search.spaces.warp_rows.space import WARP_ROWS

    written = (TENSOR_TILES, PLAIN_TILES, ATTENTION_TILES, WARP_ROWS, MATRIX_ATTENTIONS)
    families = {one.name: one.in_full for one in written}
    family = (point or "").partition(" ")[0]
    if point is None or family not in families:
        return function
    try:
        return families[family](function, target, point)
    except ValueError as error:
        raise InvalidTrace(str(error)) from error


def by_default(module: Any, target: Target) -> Any:
    """Every function of `module` that nobody has scheduled, as TVM's own build for GPUs has it by
    default (DLight): without threads there is no kernel."""
    from tvm.s_tir import dlight

    rules = dlight.gpu
    others = (rules.GEMV, rules.Reduction, rules.GeneralReduction, rules.Fallback)
    scheduled = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    for name, function in module.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        # What its rule makes of an integer product does not compile.
        integer = any(spec.dtype.startswith("int8") for spec in argument_specs(function))
        kinds = others if integer else (rules.Matmul, *others)
        with tvm_target(target), without_stack():
            made = _by_rules(function, kinds)
        scheduled.update_func(scheduled.get_global_var(name.name_hint), made)
    return scheduled


def _by_rules(function: Any, kinds: Sequence[Any]) -> Any:
    """By the first of these rules that makes a kernel of it. Some take a kernel for what it is not:
    they fail, or fold it by threads in an order that the compiler refuses."""
    from tvm.s_tir import dlight, transform

    lowered = tvm.transform.Sequential(
        [transform.CanonicalizeLoop(), transform.LowerCrossThreadReduction()]
    )

    def made(rules: Sequence[Any]) -> Any:
        module = tvm.IRModule({"main": function})  # which is changed
        return dlight.ApplyDefaultSchedule(*(kind() for kind in rules))(module)

    for first in range(len(kinds) - 1):
        try:
            lowered(module := made(kinds[first:]))
            return module["main"]
        except Exception:  # of many types
            continue
    return made(kinds[-1:])["main"]


def kernel_module(function: Any) -> tuple[Any, Any, tuple[tuple[int, TensorSpec], ...]]:
    """Modules to build: that of `KERNEL`, and that of `PREPACK` where constants change their
    layout (None where none does).

    The split is the one that packaging makes (`SplitLayoutRewritePreproc`), so the kernel that is
    timed is the kernel that ships.

    Returns:
        The modules, and the kernel's inputs that `PREPACK` makes, by position and with their
        packed shape, in the order in which it takes and returns them; empty where nothing is
        packed.
    """
    types = [relax.TensorType(spec.shape, spec.dtype) for spec in argument_specs(function)]
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{index}", type_) for index, type_ in enumerate(types[:-1])]
    callee = builder.add_func(function.without_attr("global_symbol"), "main_kernel")
    with builder.function("main", params):
        with builder.dataflow():
            output = builder.emit_output(relax.call_tir(callee, params, types[-1]))
        builder.emit_func_output(output)
    split = relax.transform.SplitLayoutRewritePreproc()(builder.get())
    functions: dict[str, Any] = {}
    for variable, item in split.functions_items():
        if isinstance(item, tvm.tirx.PrimFunc):
            name = PREPACK if variable.name_hint.endswith("_weight_prepack") else KERNEL
            functions[name] = item.with_attr("global_symbol", name)
    kernel = tvm.IRModule({KERNEL: functions[KERNEL]})
    if PREPACK not in functions:
        return kernel, None, ()
    kernel_args = argument_specs(functions[KERNEL])
    positions = _packed_positions(split["main"], params)
    packed = tuple((position, kernel_args[position]) for position in positions)
    return kernel, tvm.IRModule({PREPACK: functions[PREPACK]}), packed


def _packed_positions(main: Any, params: list[Any]) -> tuple[int, ...]:
    """Which parameters the call of the packing function takes, in its order."""
    names = {param.name: index for index, param in enumerate(params)}
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if (
                isinstance(value, relax.Call)
                and isinstance(value.op, tvm.ir.Op)
                and value.op.name == "relax.call_tir"
                and value.args[0].name_hint.endswith("_weight_prepack")
            ):
                return tuple(names[argument.name] for argument in value.args[1])
    return ()
