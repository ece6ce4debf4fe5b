"""Building candidates: from a trace to a shared library, in a killable child."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tunefarm.devices.target import Target
from tunefarm.errors import Failure, FailureKind, last_line
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.cuda.compiler import Resources
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

BUILD_MEMORY_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Library:
    """A built kernel.

    Attributes:
        path: its file.
        packed: the inputs that its packing function makes (`replay.kernel_module`).
        prepack: the packing function's file; candidates that pack alike share it.
        resources: of each GPU kernel in it, as its compiler says.
        multiplies: what it rounds factors of products to, where that is none of its arguments'
            types; see `frontend.dtypes.TF32`.
    """

    path: Path
    packed: tuple[tuple[int, TensorSpec], ...]
    prepack: Path | None = None
    resources: tuple[Resources, ...] = ()
    multiplies: str = ""


@dataclass(frozen=True)
class BuildRequest:
    """`library` is where the result goes: named by the candidate's id, so never rewritten."""

    workload: Path
    target: Target
    trace: str
    library: Path


@dataclass(frozen=True)
class BuildOutcome:
    library: Library | None
    failure: Failure | None
    seconds: float


class Builder:
    """Builds one candidate at a time; a crash or a hang costs a child, never the builder."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._child = Child(
            "tunefarm.measure.compile:run_build",
            env={"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            memory_bytes=BUILD_MEMORY_BYTES,
        )

    def start(self) -> None:
        self._child.start()

    def build(self, request: BuildRequest) -> BuildOutcome:
        started = time.monotonic()
        library, failure = None, None
        try:
            library = self._child.insist(request, self._limit_s)
        except ChildTimeout:
            failure = Failure(FailureKind.COMPILE_TIMEOUT, f"not built within {self._limit_s:g} s")
        except ChildDied as error:
            failure = failure_of_death(error, "the compiler")
        except ChildError as error:
            failure = Failure(_kind(error), last_line(error.message))
        return BuildOutcome(library, failure, time.monotonic() - started)

    def close(self) -> None:
        self._child.kill()


def failure_of_death(error: ChildDied, who: str) -> Failure:
    """A child that died of SIGKILL which we did not send was the system's out-of-memory kill."""
    oom = error.returncode == -signal.SIGKILL or "bad_alloc" in error.tail
    kind = FailureKind.OUT_OF_MEMORY if oom else FailureKind.CRASH
    return Failure(kind, f"{who}: {error}"[:500])


def _kind(error: ChildError) -> FailureKind:
    if error.type_name == "InvalidTrace":
        return FailureKind.INVALID_SCHEDULE
    if is_memory_error(error):
        return FailureKind.OUT_OF_MEMORY
    if error.type_name in ("LinkError", "OSError", "FileNotFoundError"):
        return FailureKind.INFRASTRUCTURE  # a full disk or a missing linker is not its fault
    return FailureKind.COMPILE_ERROR


def is_memory_error(error: ChildError) -> bool:
    words = ("bad_alloc", "cannot allocate", "out of memory", "failed to allocate")
    return error.type_name == "MemoryError" or any(w in error.message.lower() for w in words)
