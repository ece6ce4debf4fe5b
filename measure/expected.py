"""What a model computes: ONNX Runtime's outputs for the parity check's inputs, made in a child.

Of a model in half precision they are those of the same model in single precision.

They are made where the model was compiled. Whoever checks a library against them, on its device,
needs the runtime alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunefarm.errors import JobFailed
from tunefarm.frontend.dtypes import HALF, INT8, narrowest
from tunefarm.frontend.program import TensorSpec
from tunefarm.home import atomically
from tunefarm.measure.gate import NUDGES, Array, distance, make_input, nudged
from tunefarm.measure.runner import thread_env
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

EXPECTED_LIMIT_S = 600.0
WITHOUT_OVERFLOW = ("session.x64quantprecision", "1")
"""A session's entry, heard where optimisation is not below "extended". On processors without VNNI
ONNX Runtime sums products of bytes two and two in numbers of 16 bits, which do not hold them; so
told, it takes the slower way, and what a build is held against is what the model says."""
FATAL = 4
"""Of ONNX Runtime's log: what a session fails over is in its error."""


@dataclass(frozen=True)
class ExpectedRequest:
    """`file` is where the outputs go, for the inputs of each of `seeds`, with the `precision` that
    they are to be held to (`gate.parity`)."""

    model: Path
    inputs: tuple[TensorSpec, ...]
    threads: int
    seeds: tuple[int, int]
    file: Path
    precision: str = "float32"


def make_expected(request: ExpectedRequest) -> Path:
    """The outputs' file.

    Raises:
        JobFailed: ONNX Runtime fails on the model.
    """
    with Child("tunefarm.measure.expected:run_expected", env=thread_env(request.threads)) as child:
        try:
            child.call(request, EXPECTED_LIMIT_S)
        except (ChildTimeout, ChildDied, ChildError) as error:
            raise JobFailed(f"ONNX Runtime cannot tell what the model computes: {error}") from error
    return request.file


def run_expected(request: ExpectedRequest) -> None:
    """In the child."""
    _, session = exact_session(request.model, request.threads)
    arrays: dict[str, Any] = {"precision": np.array(request.precision)}
    for seed in request.seeds:
        inputs = parity_inputs(request.inputs, seed)
        feed = exact_feed(request.inputs, inputs)
        outputs = session.run(None, feed)
        arrays |= {f"{seed}/{number}": output for number, output in enumerate(outputs)}
        if request.precision == INT8:

            def answer(moved: list[Array]) -> list[Array]:
                return list(session.run(None, exact_feed(request.inputs, moved)))

            arrays[f"moved/{seed}"] = np.array(moves(answer, inputs, outputs))
    with atomically(request.file) as file:
        np.savez(file, **arrays)


def moves(
    answer: Callable[[list[Array]], list[Array]], inputs: list[Array], outputs: Sequence[Array]
) -> float:
    """How far a quantised model's outputs are moved by inputs that are `nudged`, at most."""
    return max(distance(answer(nudged(inputs, seed)), outputs) for seed in range(NUDGES))


def exact_session(path: Path, threads: int) -> tuple[str, Any]:
    """The narrowest type of a model's numbers, and a session that computes what the model says in
    single precision, every node by itself.

    A quantised model is rewritten first, into products of integers that do not overflow, which may
    round a number that is half a step from two to the other one. Where ONNX Runtime fails over that
    (it names a constant's copy once for each node that reads it), its nodes are computed by
    themselves too: what was dequantised is multiplied in float32, which overflows nowhere."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    precision, model = _exact_model(path)
    level = onnxruntime.GraphOptimizationLevel

    def session(optimised: Any, *entries: tuple[str, str]) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = FATAL
        options.graph_optimization_level = optimised
        for entry in entries:
            options.add_session_config_entry(*entry)
        return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])

    if precision == INT8:
        with contextlib.suppress(Fail):
            return precision, session(level.ORT_ENABLE_EXTENDED, WITHOUT_OVERFLOW)
    return precision, session(level.ORT_DISABLE_ALL)


def _exact_model(path: Path) -> tuple[str, str | bytes]:
    """The narrowest type of a model's numbers, and what is computed in its place: a
    model in half precision from end to end in float32, by its bytes; another as it is, by its path.
    """
    import onnx

    from tunefarm.frontend.onnx.half import half_types, widened
    from tunefarm.frontend.quantised.passes import is_quantised

    model = onnx.load(path, load_external_data=False)
    types = half_types(model)
    precision = INT8 if is_quantised(model) else narrowest(types)
    if not types:
        return precision, str(path)
    onnx.load_external_data_for_model(model, str(path.parent))
    return precision, widened(model).SerializeToString()


def exact_feed(inputs: Sequence[TensorSpec], arrays: Sequence[Array]) -> dict[str, Array]:
    """What `exact_session` takes for these inputs, by name."""
    return {
        spec.name: array.astype(np.float32) if spec.dtype in HALF else array
        for spec, array in zip(inputs, arrays, strict=True)
    }


def parity_inputs(inputs: tuple[TensorSpec, ...], seed: int) -> list[Array]:
    return [
        make_input(spec, 7919 * seed + index, positive=False) for index, spec in enumerate(inputs)
    ]


def expected_outputs(file: Path, seed: int) -> tuple[list[Array], str, float]:
    """Of the inputs of `seed`, in the model's order; the precision they are held to; and how far
    they move (`gate.parity`)."""
    with np.load(file) as arrays:
        mine = [name for name in arrays.files if name.startswith(f"{seed}/")]
        outputs = [arrays[f"{seed}/{number}"] for number in range(len(mine))]
        # A file of an earlier version is a float32 model's.
        precision = str(arrays["precision"]) if "precision" in arrays.files else "float32"
        moved = float(arrays[f"moved/{seed}"]) if f"moved/{seed}" in arrays.files else 0.0
        return outputs, precision, moved
