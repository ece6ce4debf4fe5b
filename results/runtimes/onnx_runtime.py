"""ONNX Runtime's CPU provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from tunefarm.devices import cpu
from tunefarm.frontend.dtypes import INT8, narrowest
from tunefarm.measure.expected import exact_feed, exact_session, moves
from tunefarm.results.runtimes.contract import Array, Run, Runtime, Subject

_PROVIDERS = ["CPUExecutionProvider"]


class OnnxRuntime(Runtime):
    """Its threads spin between requests, each bound to a core or not, or sleep. It binds them where
    it chooses their number itself, and where it is told that number does not."""

    name: ClassVar[str] = "onnxruntime"
    needs: ClassVar[Mapping[str, str]] = {"onnxruntime": "onnxruntime"}
    settings: ClassVar[tuple[str, ...]] = ("spinning", "pinned", "sleeping")

    def load(self, subject: Subject, setting: str) -> Run:
        import onnxruntime

        options = _options(subject.threads)
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0" if setting == "sleeping" else "1"
        )
        caller, *others = cpu.one_of_each_core(os.sched_getaffinity(0))[: subject.threads]
        is_pinned = setting == "pinned" and len(others) == subject.threads - 1 > 0
        if is_pinned:  # it counts processors from 1, and the calling thread is no one of its own
            cores = ";".join(str(core + 1) for core in others)
            options.add_session_config_entry("session.intra_op_thread_affinities", cores)
        session = onnxruntime.InferenceSession(str(subject.model), options, _PROVIDERS)
        if is_pinned:
            os.sched_setaffinity(0, {caller})
        return lambda feed: list(session.run(list(subject.outputs), dict(feed)))


def reference(subject: Subject, feed: Mapping[str, Array]) -> tuple[list[Array], str, float]:
    """What the model computes (`exact_session`): all results are held against it. And what else
    `measure.gate.parity` asks for: the model's precision, and how far a quantised one moves."""
    precision, session = exact_session(subject.model, subject.threads)
    if subject.rounds and precision != INT8:
        precision = narrowest([precision, subject.rounds])
    arrays = [feed[spec.name] for spec in subject.inputs]

    def answer(inputs: list[Array]) -> list[Array]:
        return list(session.run(list(subject.outputs), exact_feed(subject.inputs, inputs)))

    outputs = answer(arrays)
    return outputs, precision, moves(answer, arrays, outputs) if precision == INT8 else 0.0


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
