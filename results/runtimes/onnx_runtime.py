"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tunefarm.results.runtimes.contract import Run, Runtime, Subject


class OnnxRuntime(Runtime):
    """Its threads spin between requests, or sleep."""

    name: ClassVar[str] = "onnxruntime"
    needs: ClassVar[Mapping[str, str]] = {"onnxruntime": "onnxruntime"}
    settings: ClassVar[tuple[str, ...]] = ("spinning", "sleeping")

    def load(self, subject: Subject, setting: str) -> Run:
        options = _options(subject.threads)
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "1" if setting == "spinning" else "0"
        )
        return _session(subject, options)


def reference(subject: Subject) -> Run:
    """The model without any rewriting: what all results are held against."""
    import onnxruntime

    options = _options(subject.threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _session(subject, options)


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _session(subject: Subject, options: Any) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(subject.model), options, ["CPUExecutionProvider"])
    return lambda feed: list(session.run(list(subject.outputs), dict(feed)))
