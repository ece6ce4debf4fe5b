"""The compiled model against ONNX Runtime, on the same random inputs, in a child."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import JobFailed
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.gate import Parity, make_input, parity
from tunefarm.measure.runner import RUNTIME_ONLY, thread_env
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

PARITY_LIMIT_S = 600.0


@dataclass(frozen=True)
class ParityRequest:
    model: Path
    library: Path
    inputs: tuple[TensorSpec, ...]
    threads: int
    seeds: tuple[int, int]


def check_parity(request: ParityRequest) -> Parity:
    """Worst error over the seeds' inputs.

    Raises:
        JobFailed: one of the runtimes fails on the model.
    """
    env = {**RUNTIME_ONLY, **thread_env(request.threads)}
    with Child("tunefarm.measure.parity:run_parity", env=env) as child:
        try:
            result: Parity = child.call(request, PARITY_LIMIT_S)
        except (ChildTimeout, ChildDied, ChildError) as error:
            raise JobFailed(f"parity with ONNX Runtime could not be checked: {error}") from error
    return result


def run_parity(request: ParityRequest) -> Parity:
    """In the child."""
    import onnxruntime

    from tunefarm.measure.model import CompiledModel

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request.threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(request.model), options, ["CPUExecutionProvider"])
    compiled = CompiledModel(request.library)
    worst = Parity(0.0, 0.0, True)
    for seed in request.seeds:
        inputs = [
            make_input(spec, 7919 * seed + index, positive=False)
            for index, spec in enumerate(request.inputs)
        ]
        feed = {spec.name: array for spec, array in zip(request.inputs, inputs, strict=True)}
        found = parity(compiled(inputs), session.run(None, feed))
        worst = max(worst, found, key=lambda p: p.max_rel_err)
    return worst
