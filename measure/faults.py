"""What a child that ran a candidate may answer with instead of a result; and what is no candidate's
doing."""

from __future__ import annotations

import time
from typing import Any

from tunefarm.errors import DeviceLost, Failure, FailureKind, last_line
from tunefarm.measure.build import failure_of_death, is_memory_error
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout, ChildUnready

FAULTS = (ChildTimeout, ChildDied, ChildError)
TRIES, PAUSE_S = 3, 1.0
"""How often a device is asked to open, and how long after it did not."""


def ask(child: Child, request: Any, limit_s: float) -> Any:
    """The answer of a child that opens its device, and tries it, before it is asked (`serve`).

    Raises:
        DeviceLost: the device does not answer, or does not any more after what was asked: nobody is
            proven to be at fault.
        ChildTimeout, ChildDied, ChildError: what was asked faults, and the device is well. The
            child is another one then: after a fault on a GPU a process can do nothing more, and one
            that computes nonsense may have written where it should not.
    """
    ready(child)
    try:
        return child.insist(request, limit_s)
    except FAULTS:
        child.kill()
        ready(child)
        raise


def ready(child: Child) -> None:
    """Returns when its device has answered. Of one that may have a single user at a time the last
    one, who was ended just now, may not be gone yet: it is asked `TRIES` times.

    Raises:
        DeviceLost: it does not answer.
    """
    for left in reversed(range(TRIES)):
        try:
            return child.warm()
        except ChildUnready as error:
            if not left:
                reason = last_line(error.tail) if error.tail else str(error)
                raise DeviceLost(
                    f"the device does not answer: {reason}", hint="tunefarm doctor"
                ) from error
            time.sleep(PAUSE_S)


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
