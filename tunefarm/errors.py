"""What can go wrong, in one tree, and the kinds of failure a candidate can have.

    TunefarmError
    ├── UsageError              exit 2: a wrong option or value
    ├── ModelError              exit 3
    │   ├── InvalidModel            not a model, or one over the import limits
    │   └── UnsupportedModel        an operator, shape or dtype that cannot be imported
    ├── TargetError             exit 4
    │   ├── UnsupportedTarget       no such target here
    │   └── NoDevice                the target is known, no device is registered for it
    │       └── DeviceLost              it was there, and does not answer any more
    ├── JobError                exit 5
    │   ├── JobFailed               no valid result
    │   ├── UnknownJob              no job of that name in this farm home
    │   ├── StoreError              the farm home or its journal cannot be used
    │   ├── Fenced                  another driver has taken the job over
    │   └── FarmUnreachable         nobody answers at a farm's address, or not to this token
    ├── ArtifactError           exit 6
    │   ├── ArtifactIncompatible    does not fit this host
    │   └── ArtifactTampered        its bytes are not the ones its manifest lists
    ├── Cancelled               exit 5: somebody asked for the job's end
    └── Interrupted             exit 130: stopped by the user, resumable

A candidate's failure is a result, not an exception: it is stored under a `FailureKind` and the
job goes on. Exceptions of this tree end a command; each says what failed, where, and what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


class FailureKind(enum.StrEnum):
    """Why a candidate has no latency."""

    INVALID_SCHEDULE = "invalid_schedule"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    RUN_TIMEOUT = "run_timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out_of_memory"
    WRONG_RESULT = "wrong_result"
    NOISY_DEVICE = "noisy_device"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Failure:
    """A candidate's failure: its kind and one sentence (plus a tail of the child's output)."""

    kind: FailureKind
    message: str


class TunefarmError(Exception):
    """Base of every error a command ends with; `hint` says what to do next."""

    exit_code = 1
    job = ""
    """The job that it ended, where there was one."""
    targets: Mapping[str, object] = MappingProxyType({})
    """What that job has packaged all the same, by target, as `submit --json` prints it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def document(self) -> dict[str, object]:
        """What a command that ends with it prints with ``--json``."""
        found = {"error": self.message, "hint": self.hint, "exit_code": self.exit_code}
        found |= {"job": self.job} if self.job else {}
        return {**found, "targets": self.targets} if self.targets else found


class UsageError(TunefarmError):
    exit_code = 2


class ModelError(TunefarmError):
    exit_code = 3


class InvalidModel(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass


class TargetError(TunefarmError):
    exit_code = 4


class UnsupportedTarget(TargetError):
    pass


class NoDevice(TargetError):
    pass


class DeviceLost(NoDevice):
    pass


class JobError(TunefarmError):
    exit_code = 5


class JobFailed(JobError):
    pass


class UnknownJob(JobError):
    pass


class StoreError(JobError):
    pass


class Fenced(JobError):
    pass


class FarmUnreachable(JobError):
    pass


class ArtifactError(TunefarmError):
    exit_code = 6


class ArtifactIncompatible(ArtifactError):
    pass


class ArtifactTampered(ArtifactError):
    pass


class Cancelled(TunefarmError):
    exit_code = 5


class Interrupted(TunefarmError):
    exit_code = 130


def last_line(error: object, limit: int = 300) -> str:
    """The last line that says something: where compilers put what matters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:limit] if lines else type(error).__name__


def from_document(document: Mapping[str, object]) -> TunefarmError:
    """The error of another process, or of another machine's."""
    error = TunefarmError(str(document["error"]), hint=str(document.get("hint", "")))
    error.exit_code = int(str(document.get("exit_code", TunefarmError.exit_code)))
    error.job = str(document.get("job", ""))
    return error
