"""What an import yields: the program, its kernels as tuning tasks, and the import's evidence."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.frontend.dtypes import BFLOAT16, BYTES, BYTES_KEPT

ATTENTION = "attention"
"""Name of a kernel that is two products with a softmax between them."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape (elements per dimension) and dtype of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        bits = int(re.sub(r"\D", "", self.dtype) or 8)
        return math.prod(self.shape) * max(1, bits // 8)


@dataclass(frozen=True)
class TuningTask:
    """One distinct kernel of a program.

    Attributes:
        id: hash of the workload (its structure, not its name), 16 hex digits.
        name: what the kernel computes, from the graph: ``conv2d_add_relu``.
        functions: the program's functions that are this kernel.
        weight: calls per inference.
        flops: floating-point operations that one call cannot do without.
        bytes: bytes that it has to read and write, each element once; of a table of which some rows
            are read, those.
        args: inputs, then outputs.
        constants: positions among them of weights, whose layout is free.
        rounds: whether numbers are rounded to whole ones inside, as where it quantises.
        again: bytes that are read before a call of it reads the same weights again, where most do
            within one inference, as the steps of a recurrence: whole times its weights; else 0.
    """

    id: str
    name: str
    functions: tuple[str, ...]
    weight: int
    flops: float
    bytes: int
    args: tuple[TensorSpec, ...]
    constants: tuple[int, ...] = ()
    rounds: bool = False
    again: int = 0

    @property
    def constant_bytes(self) -> int:
        """Of its weights."""
        return sum(self.args[place].nbytes for place in self.constants)

    def float_flops(self, features: Collection[str] = ()) -> float:
        """Operations on float32 that take a processor as long: see `as_floats`."""
        args = [(arg.shape, arg.dtype) for arg in self.args]
        return as_floats(self.name, self.flops, args, features)

    def fewest_flops(self, features: Collection[str] = ()) -> float:
        """What a kernel takes by any algorithm that is known: of a convolution with 3x3 or 5x5 taps
        and without stride, channels last, not of bfloat16, a sixth (minimal filtering takes 64
        products for 16 times 25 at the least); of what makes a number of 8 bits of each such
        number, those of 256."""
        image, result = self.args[0].shape, self.args[-1].shape
        fewest = self.float_flops(features)
        if self._is_of_bytes_alone:
            return fewest * min(1.0, 256 / math.prod(result))
        weights = (self.args[place] for place in self.constants)
        for taps, columns, channels, _, *together in (
            one.shape for one in weights if len(one.shape) >= 4 and one.dtype != "bfloat16"
        ):
            filtered = taps == columns and taps in (3, 5) and channels * math.prod(together) > 1
            # Four integers at once are four times as many: none is saved.
            if filtered and len(image) == 4 and together != [4]:
                strided = result[1] < image[1] - taps + 1
                return fewest if strided else min(fewest, self.flops / 6)
        return fewest

    @property
    def _is_of_bytes_alone(self) -> bool:
        """Whether it reads one tensor of 8 bits, and writes one with as many elements."""
        *inputs, result = self.args
        tensors = [one for one in inputs if math.prod(one.shape) > 1]
        return (
            len(tensors) == 1
            and {tensors[0].dtype, result.dtype} <= set(BYTES)
            and math.prod(tensors[0].shape) == math.prod(result.shape)
        )


def as_floats(
    kernel: str,
    flops: float,
    args: Sequence[tuple[Sequence[int], str]],
    features: Collection[str] = (),
) -> float:
    """Operations on float32 that take a processor as long at best as `flops` of a kernel of this
    name, with arguments of these shapes and types: of products of 8 bits one instruction does four
    times as many, of those of 16 twice, integers or bfloat16; and in matrix registers thirty-two
    times as many are done in a cycle, of bfloat16 sixteen times.

    Args:
        features: of the processor, by the system's names.
    """
    dtypes = [dtype for _, dtype in args]
    if {"uint8", "int8"} <= set(dtypes):
        return flops / (32 if "amx_int8" in features else 4)
    halves, paired = dtypes.count(BFLOAT16), (BFLOAT16, [2])
    pairs = halves > 1 and any((dtype, list(shape[-1:])) == paired for shape, dtype in args)
    if pairs or (halves and kernel == ATTENTION):
        return flops / (16 if "amx_bf16" in features else 2 if "avx512_bf16" in features else 1)
    return flops / 2 if dtypes.count(BYTES_KEPT) > 1 else flops


@dataclass(frozen=True)
class Program:
    """An imported model in its directory.

    `directory` holds ``model.onnx`` (as submitted, shapes bound, weights inside), ``program.json``
    (Relax, after every pass), ``baseline.json`` (Relax, as a plain build would have it), both with
    their weights beside them (`stored`), ``workloads/<task>.json`` (TensorIR) and
    ``evidence.json``.
    """

    directory: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tasks: tuple[TuningTask, ...]
    evidence: dict[str, Any]

    @property
    def module(self) -> Path:
        return self.directory / "program.json"

    @property
    def model(self) -> Path:
        return self.directory / "model.onnx"

    @property
    def baseline(self) -> Path:
        return self.directory / "baseline.json"

    @property
    def precision(self) -> str:
        """The narrowest type of numbers that its kernels hand on to each other, or may round
        factors of products to."""
        return str(self.evidence.get("precision", "float32"))

    @property
    def between_bytes(self) -> int:
        """Read by an inference before it comes to the same weights again: all weights, and what it
        works on, which is as much as the largest kernel has (buffers are used again)."""
        work = max((task.bytes for task in self.tasks), default=0)
        return int(self.evidence["parameter_bytes"]) + work

    @property
    def again(self) -> dict[str, int]:
        """By task, where it is not an inference until the same weights are read again."""
        return {task.id: task.again for task in self.tasks if task.again}

    def workload(self, task: str) -> Path:
        return workload_path(self.directory, task)

    def task(self, task: str) -> TuningTask:
        return next(t for t in self.tasks if t.id == task)


def workload_path(directory: Path, task: str) -> Path:
    return directory / "workloads" / f"{task}.json"


def weights_of(module: Path) -> Path:
    """Where the weights of a program's module lie."""
    return module.with_suffix(".npz")


def program_to_dict(program: Program) -> dict[str, Any]:
    data = dataclasses.asdict(program)
    del data["directory"]
    return data


def load_program(directory: Path) -> Program:
    """Read back what an import wrote to `directory`."""
    data = json.loads((directory / "evidence.json").read_text())
    return Program(
        directory=directory,
        inputs=_specs(data["inputs"]),
        outputs=_specs(data["outputs"]),
        tasks=tuple(
            TuningTask(
                **{
                    **task,
                    "functions": tuple(task["functions"]),
                    "constants": tuple(task.get("constants", ())),
                    "args": _specs(task["args"]),
                }
            )
            for task in data["tasks"]
        ),
        evidence=data["evidence"],
    )


def _specs(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(r["name"], tuple(r["shape"]), r["dtype"]) for r in rows)
