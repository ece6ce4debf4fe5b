"""TVM's own sketches: multi-level tiling, vectorisation, unrolling, parallelism, and layout
rewriting of constant arguments, for any TensorIR kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

from tvm.s_tir.schedule import ScheduleError, Trace

from tunefarm.devices.gpu import arch_of
from tunefarm.devices.target import Target
from tunefarm.frontend.dtypes import numpy_dtype
from tunefarm.frontend.relax.tir import argument_specs
from tunefarm.search import replay
from tunefarm.search.kernels.tensor_cores import PRODUCTS, STAGES, TENSOR_CORES, variants
from tunefarm.search.space import Knob, KnobKind, Modelled, Point, Proposal, Value
from tunefarm.search.spaces.features import features_of_stores
from tunefarm.search.spaces.gpu_tile import tiles

DRAWS = 8
"""For a kernel's sketches, before it counts as having none."""
_SAMPLING = {
    "SamplePerfectTile": KnobKind.TILE,
    "SampleCategorical": KnobKind.CHOICE,
    "SampleComputeLocation": KnobKind.LOCATION,
}


def tensor_core_space(workload: Any, target: Target) -> GenericSpace | None:
    """Sketches that multiply on tensor cores; None where kernel or GPU have no use for them."""
    inputs = {spec.dtype for spec in argument_specs(workload["main"])}
    if target.kind != "cuda" or not inputs & PRODUCTS & set(arch_of(target).tensor_cores):
        return None
    try:
        space = GenericSpace(workload, target, TENSOR_CORES)
    except ScheduleError:
        return None
    return space if space.tensorised else None


class GenericSpace:
    """The design space that TVM's `PostOrderApply` generates for a workload, by the rules of the
    target's kind or by others (`replay.make_context`)."""

    def __init__(self, workload: Any, target: Target, rules: str = "") -> None:
        self._workload = workload
        self._target = target
        self._context, schedules = _generated(workload, target, rules)
        if rules == TENSOR_CORES:
            arch = arch_of(target)
            schedules = [one for schedule in schedules for one in variants(schedule, arch)]
        self._traces = [schedule.trace for schedule in schedules]
        self._shapes = [self._structure(trace) for trace in self._traces]

    @property
    def tensorised(self) -> bool:
        """Whether any sketch multiplies on tensor cores."""
        return any(replay.rules_of(shape) == TENSOR_CORES for shape in self._shapes)

    @cached_property
    def sketches(self) -> tuple[tuple[Knob, ...], ...]:
        return tuple(self._knobs(trace) for trace in self._traces)

    def _knobs(self, trace: Any) -> tuple[Knob, ...]:
        knobs = []
        for instruction in _samplings(trace):
            kind = _SAMPLING[instruction.kind.name]
            if kind is KnobKind.TILE:
                size, limit = (int(a) for a in instruction.attrs)
                extent = 1
                for factor in trace.decisions[instruction]:
                    extent *= int(factor)
                knobs.append(Knob(kind, size, extent, limit))
            elif kind is KnobKind.CHOICE:
                options = tuple(int(one) for one in instruction.attrs[0])
                knobs.append(Knob(kind, len(options), options=options))
            else:
                knobs.append(Knob(kind, 0))
        return tuple(knobs)

    def modelled(self) -> Sequence[Modelled]:
        return self._modelled

    @cached_property
    def _modelled(self) -> tuple[Modelled, ...]:
        """Of contractions on a GPU; on a processor the families of their own know more."""
        if self._target.kind != "cuda":
            return ()
        operand, *_, result = argument_specs(self._workload["main"])
        element_bytes, elements = numpy_dtype(operand.dtype).itemsize, prod(result.shape)
        arch, tensor = arch_of(self._target), self.tensorised
        return tuple(
            one
            for number, knobs in enumerate(self.sketches)
            for one in tiles(
                *(number, knobs, tensor, element_bytes),
                *(_stages(self._shapes[number]), arch, elements),
            )
        )

    def describe(self, point: Point) -> None:
        return None

    def realise(self, point: Point, seed: int) -> Proposal | None:
        schedule = replay.new_schedule(self._workload, seed=seed % (2**31 - 2) + 1)
        values = iter(point.values)

        def decide(instruction: Any, _inputs: Any, _attrs: Any, _decision: Any) -> Any:
            if instruction.kind.name not in _SAMPLING:
                return None
            value = next(values)
            return list(value) if isinstance(value, tuple) else value

        trace = Trace(self._traces[point.sketch].insts, {})
        try:
            trace.apply_to_schedule(schedule, True, decision_provider=decide)
        except Exception:  # TVM raises many types for a decision that cannot be applied
            return None
        applied = Point(point.sketch, _decisions(schedule.trace))
        text = replay.trace_json(schedule)
        try:
            replay.postprocess(self._context, schedule)
        except replay.InvalidTrace:
            return None
        return Proposal(applied, text, features_of_stores(schedule, self._target))

    def locate(self, trace: str) -> Point | None:
        instructions, decisions = json.loads(trace)
        structure = _without_values(instructions)
        if structure not in self._shapes:
            return None
        values = tuple(
            tuple(value) if isinstance(value, list) else value
            for index, value in decisions
            if instructions[index][0] in _SAMPLING
        )
        return Point(self._shapes.index(structure), values)

    def _structure(self, trace: Any) -> str:
        return _without_values(replay.plain(trace.as_json())[0])


def _generated(workload: Any, target: Target, rules: str) -> tuple[Any, list[Any]]:
    """A context and its sketches, which have the same structure whatever they are drawn with; but
    not every draw can be applied: of a padded convolution for tensor cores one in six stops TVM.

    Raises:
        ScheduleError: none of them can.
    """
    seed = 1
    while True:
        context = replay.make_context(workload, target, rules, seed)
        try:
            return context, list(context.generate_design_space())
        except ScheduleError:
            if seed == DRAWS:
                raise
            seed += 1


def _stages(structure: str) -> int:
    """How many steps' operands a sketch holds in shared memory at a time."""
    for kind, inputs, attributes, _outputs in json.loads(structure):
        if kind == "Annotate" and attributes == [STAGES]:
            return 1 + int(max(inputs[1]))
    return 1


def _without_values(instructions: list[Any]) -> str:
    return json.dumps(instructions)


def _samplings(trace: Any) -> list[Any]:
    return [i for i in trace.insts if i.kind.name in _SAMPLING]


def _decisions(trace: Any) -> tuple[Value, ...]:
    values: list[Value] = []
    for instruction in _samplings(trace):
        decision = replay.plain(trace.decisions[instruction])
        values.append(tuple(decision) if isinstance(decision, list) else decision)
    return tuple(values)
