"""What a child that ran a candidate may answer with instead of a result."""

from __future__ import annotations

from tunefarm.errors import Failure, FailureKind
from tunefarm.measure.build import failure_of_death, is_memory_error
from tunefarm.process import ChildDied, ChildError, ChildTimeout

FAULTS = (ChildTimeout, ChildDied, ChildError)


def failure_of(error: ChildTimeout | ChildDied | ChildError, limit_s: float) -> Failure:
    if isinstance(error, ChildTimeout):
        return Failure(FailureKind.RUN_TIMEOUT, f"no result within {limit_s:.1f} s")
    if isinstance(error, ChildDied):
        return failure_of_death(error, "the kernel")
    if error.type_name == "WrongResult":
        return Failure(FailureKind.WRONG_RESULT, error.message)
    if is_memory_error(error):
        return Failure(FailureKind.OUT_OF_MEMORY, error.message[-500:])
    return Failure(FailureKind.CRASH, error.message[-500:])
