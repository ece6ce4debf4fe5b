"""Whoever carries assignments out: the contract between the conductor and its workers.

Ray's actors are one crew (`ray_crew`), threads of this process another (`local`), workers on a
simulated network a third (`simulation`). A crew decides nothing; it may lose, repeat and delay what
it is given and what it says, and what it says may come from workers that were given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tunefarm.scheduler.messages import Assignment, Builders, Joined, Lease, Left


@dataclass(frozen=True)
class Answered:
    """A worker has done what it held `lease` for."""

    lease: Lease
    answer: Any


@dataclass(frozen=True)
class Raised:
    """The work under `lease` ended in an exception that is not the candidate's."""

    lease: Lease
    error: Exception


@dataclass(frozen=True)
class Died:
    """Whoever held `lease` is gone, or was given up.

    Attributes:
        innocent: it waited behind what killed its worker.
    """

    lease: Lease
    reason: str
    innocent: bool = False


Heard = Answered | Raised | Died | Joined | Left | Builders


class Crew(Protocol):
    """Every assignment given is answered by an `Answered`, a `Raised` or a `Died`, or its unit by a
    `Left`; perhaps more than once, and late."""

    def give(self, assignment: Assignment, work: Any) -> None:
        """Hand `work`, what the assignment's instruction comes to, to a worker."""
        ...

    def wait(self, limit_s: float) -> list[Heard]:
        """What is heard next, after at most `limit_s` seconds; empty when nothing was."""
        ...
