"""Which of ONNX's own test cases are imported, built and computed right.

    python benchmarks/operators.py RESULTS.json [--only SUBSTRING] [--workers 2]

Each case is a model of one operator or few, with inputs and what is to come out. What an exporter
would write into the file (sizes, axes, scales, numbers of steps) becomes a constant where the case
feeds it as an input and is not understood so. Each runs in a process that may die: the import, the
untuned build, the program that is tuned (without schedules); both builds' results are compared.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from tunefarm.devices.target import parse_target
from tunefarm.errors import InvalidModel, UnsupportedModel, last_line
from tunefarm.frontend import importer
from tunefarm.frontend.importer import ImportRequest
from tunefarm.frontend.program import load_program
from tunefarm.measure import gate

Array = NDArray[Any]
LIMIT_S, _CLEARED_S = 300.0, 20.0
"""For a case; and for what it has written to be removed."""
RIGHT, REFUSED, STOPPED, FAILED, WRONG = "right", "refused", "stopped", "failed", "wrong"
"""Computed right; refused in words of ours; stopped by the compiler at the import, in its words (a
job says both with exit code 3); not built or not run; computed otherwise."""
_ROUNDED = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
_SIZED = ("Resize", "Upsample", "OneHot", "STFT", "ConvInteger", *_ROUNDED)
_STARTED = ("Loop", "Range", "HannWindow", "HammingWindow", "BlackmanWindow")


@dataclass(frozen=True)
class Case:
    """`whole`: a network, of whose results errors count beside the largest number; `target` is what
    it is built for; `moved`: see `gate.parity`, by which a program that rounds is judged."""

    name: str
    model: onnx.ModelProto
    inputs: list[Array]
    outputs: list[Array]
    whole: bool = False
    target: str = "llvm"
    moved: float = 0.0

    @property
    def operators(self) -> list[str]:
        return sorted({node.op_type for node in self.model.graph.node})


@dataclass(frozen=True)
class Outcome:
    """`as_constants`: whether what an exporter writes into the file had to be there."""

    case: str
    operators: list[str]
    what: str
    why: str
    as_constants: bool


def cases() -> Iterator[Case]:
    """Of tensors alone: none of sequences or of what may be missing."""
    seen = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in sorted((one for one in found if one.model is not None), key=lambda one: one.name):
        given, made = case.data_sets[0]
        if case.name in seen or any(isinstance(v, list | type(None)) for v in (*given, *made)):
            continue
        seen.add(case.name)
        yield Case(case.name, case.model, [_array(v) for v in given], [_array(v) for v in made])
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for directory in sorted((data / kind).glob("test_*")):
            model = onnx.load(directory / "model.onnx")
            values = [_stored(directory / "test_data_set_0", k) for k in ("input", "output")]
            if all(value is not None for value in (*values[0], *values[1])):
                yield Case(f"{kind}/{directory.name}", model, *values)


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.array(value)


def _stored(directory: Path, what: str) -> list[Any]:
    files = sorted(directory.glob(f"{what}_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
    tensors = []
    for file in files:
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
            tensors.append(numpy_helper.to_array(tensor))
        except Exception:  # a sequence, which is another message
            tensors.append(None)
    return tensors


def with_constants(case: Case) -> Case:
    """What an exporter writes into the file is there: numbers, and lists of whole ones."""
    model, operators = onnx.ModelProto(), case.operators
    model.CopyFrom(case.model)
    kept, fed = [], []
    sized = any(operator in _SIZED for operator in operators)
    started = any(operator in _STARTED for operator in operators) or "window" in case.name
    given = {one.name for one in case.model.graph.initializer}
    inputs = [one for one in case.model.graph.input if one.name not in given]
    for index, (value, array) in enumerate(zip(inputs, case.inputs, strict=True)):
        small = array.ndim <= 1 and (array.dtype.kind in "iub" or array.ndim == 0 or sized)
        if (index and small) or (started and array.ndim == 0):
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            kept.append(value)
            fed.append(array)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return Case(case.name, model, fed, case.outputs)


def outcome(case: Case) -> Outcome:
    what, why = alone(case)
    constant = with_constants(case)
    as_constants = what != RIGHT and len(constant.inputs) < len(case.inputs)
    if as_constants:
        what, why = alone(constant)
    return Outcome(case.name, case.operators, what, why, as_constants)


def alone(case: Case) -> tuple[str, str]:
    """In a process of its own."""
    hears, tells = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(target=_try, args=(case, tells))
    process.start()
    tells.close()
    deadline, last = time.monotonic() + LIMIT_S, ("", "nothing was heard of it")
    try:
        while hears.poll(max(deadline - time.monotonic(), 0)):
            last = hears.recv()
            if last[0]:
                process.join(_CLEARED_S)
                return last
        return FAILED, f"{last[1]} took more than {LIMIT_S:g} s"
    except EOFError:
        process.join()
        return FAILED, f"{last[1]} ended by {process.exitcode}"
    finally:
        process.kill()
        process.join()


def _try(case: Case, tells: Connection) -> None:
    """Says what it is at, and at last what came of it."""
    directory = Path(tempfile.mkdtemp(prefix="operators-"))
    os.dup2(os.open(directory / "output", os.O_CREAT | os.O_WRONLY), 2)
    os.dup2(2, 1)
    try:
        tells.send(_seen(case, directory, tells))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(0)


def _seen(case: Case, directory: Path, tells: Connection) -> tuple[str, str]:
    from tunefarm.measure.assemble import AssembleRequest, run_assemble
    from tunefarm.measure.model import CompiledModel

    file, target = directory / "model.onnx", parse_target(case.target)
    file.write_bytes(case.model.SerializeToString())
    tells.send(("", "the import"))
    try:
        importer.run_import(ImportRequest(file, directory / "program", target))
    except (InvalidModel, UnsupportedModel) as error:
        return REFUSED, str(error).replace(f"{file} ", "").splitlines()[0]
    except Exception as error:
        return STOPPED, f"{type(error).__name__}: {last_line(error)}"
    program = load_program(directory / "program")
    builds = (
        ("untuned", program.baseline, program.evidence["untuned_precision"]),
        ("tuned", program.module, program.precision),
    )
    for name, module, precision in builds:
        library = directory / name / "model.so"
        tells.send(("", f"the {name} build"))
        try:
            run_assemble(AssembleRequest(module, (), (), target, library))
            found = CompiledModel(library)(case.inputs)
        except Exception as error:
            return FAILED, f"the {name} build: {type(error).__name__}: {last_line(error)}"
        difference = _difference(case, [np.asarray(one) for one in found], precision)
        if difference:
            return WRONG, f"the {name} build: {difference}"
    return RIGHT, ""


def _difference(case: Case, found: list[Array], precision: str) -> str:
    """Empty where there is none that counts: of results that were quantised, one step is none; of
    a network whose program rounds, what a job allows."""
    if len(found) != len(case.outputs):
        return f"{len(found)} results instead of {len(case.outputs)}"
    for one, wanted in zip(found, case.outputs, strict=True):
        if (one.shape, one.dtype) != (wanted.shape, wanted.dtype):
            return f"{one.dtype}{list(one.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if case.whole and precision != "float32":
        off = gate.parity(found, case.outputs, precision, case.moved)
        return "" if off.passed else f"{precision}, by {off.max_rel_err:.2g} of its size"
    for one, wanted in zip(found, case.outputs, strict=True):
        if wanted.dtype.kind in "iub":
            steps = 1 if _ROUNDED.intersection(case.operators) else 0
            if wanted.size and np.abs(one.astype(np.int64) - wanted.astype(np.int64)).max() > steps:
                return "other whole numbers"
        else:
            most = 1e-3 if wanted.dtype.itemsize >= 4 else 2e-2
            pair = one.astype(np.float64), wanted.astype(np.float64)
            beside = most * np.abs(pair[1]).max() if case.whole else most
            if not np.allclose(*pair, rtol=most, atol=beside, equal_nan=True):
                return f"by {np.nanmax(np.abs(pair[0] - pair[1])):.2g}, or where it is no number"
    return ""


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """How many cases came to what; by operator the cases of its own that are right, and of all
    (an operator's own are those of models of nothing else); and what was not."""
    by_operator: defaultdict[str, list[bool]] = defaultdict(list)
    for one in outcomes:
        if len(one.operators) == 1:
            by_operator[one.operators[0]].append(one.what == RIGHT)
    return {
        "onnx": onnx.__version__,
        "cases": len(outcomes),
        "came to": dict(Counter(one.what for one in outcomes).most_common()),
        "operators": {name: [sum(v), len(v)] for name, v in sorted(by_operator.items())},
        "others": [asdict(one) for one in outcomes if one.what != RIGHT],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    load()
    chosen = [case for case in cases() if arguments.only in case.name]
    outcomes: list[Outcome] = []
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        for number, one in enumerate(pool.map(outcome, chosen), 1):
            outcomes.append(one)
            if one.what in (FAILED, WRONG) or number % 100 == 0:
                print(f"{number}/{len(chosen)}  {one.case}: {one.what} {one.why}", flush=True)
    found = summary(outcomes)
    arguments.results.write_text(json.dumps(found, indent=1))
    print(", ".join(f"{count} {what}" for what, count in found["came to"].items()))
    known = found["operators"]
    whole = sum(right == count for right, count in known.values())
    some = sum(0 < right < count for right, count in known.values())
    print(f"operators: {whole} of {len(known)} in all cases of theirs, {some} in some")
    share = 100 * math.floor(1000 * found["came to"].get(RIGHT, 0) / len(outcomes)) / 1000
    print(f"{share:.1f} % of the cases")


def load() -> None:
    """What every process would load again."""
    importer._load_compiler()
    from tunefarm.frontend.relax import attention, layout, passes, whole
    from tunefarm.measure import assemble, joining, lowering, model
    from tunefarm.measure.cuda import graphs
    from tunefarm.search import replay
    from tunefarm.search.kernels import intrinsics

    del attention, layout, passes, whole
    del assemble, graphs, joining, lowering, model, intrinsics, replay


if __name__ == "__main__":
    main()
