"""What a measurement is about and what it yields; plain data, no runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import Failure
from tunefarm.frontend.program import TensorSpec, TuningTask
from tunefarm.measure.gate import Parity

PREVIOUS = "previous"
"""The build of a model that an earlier job has shipped; and kind of the event that says which."""
BUILT_IN = "vm.builtin."
"""What the names of the virtual machine's own functions begin with."""
PART = "__part"
"""In a library, between the name of a kernel and the place at which it writes into a whole."""


@dataclass(frozen=True)
class KernelFacts:
    """What running a kernel takes beside its library.

    Attributes:
        args: its arguments; the last is the output.
        reference: the file with its reference results.
        constants: positions of its weights among them.
        between: bytes that its model reads before it comes to the same weights again; 0 for a
            kernel that is timed for itself, with everything at hand. See `measure.rotation`.
        rounds: see `TuningTask`.
    """

    task: str
    args: tuple[TensorSpec, ...]
    flops: float
    reference: Path
    constants: tuple[int, ...] = ()
    between: int = 0
    rounds: bool = False

    @classmethod
    def of(cls, task: TuningTask, reference: Path, between: int = 0) -> KernelFacts:
        between = min(between, task.again or between)
        return cls(task.id, task.args, task.flops, reference, task.constants, between, task.rounds)


@dataclass(frozen=True)
class InPlace:
    """Where a whole model's time goes.

    Attributes:
        model_s: an inference, undisturbed by being watched; on a GPU one whose kernels are begun
            one by one, as they are where they are watched, and not the graph that users call.
        functions: seconds of an inference in each of the library's functions, all calls together;
            the virtual machine's own, `BUILT_IN`, are among them.
        outside: share of an inference that is in no kernel; of each watched inference and the one
            beside it, so that what disturbs now and then is in both.
    """

    model_s: float
    functions: dict[str, float]
    outside: float


@dataclass(frozen=True)
class Checked:
    """`library` is the one that was taken, `parity` its outputs against what was expected;
    `refused` those of the one before it, which computes something else."""

    library: Path
    parity: Parity
    in_place: InPlace | None
    refused: Parity | None = None


@dataclass(frozen=True)
class ColdStart:
    """What a fresh process went through with the build that it loaded first.

    Attributes:
        build: see `ModelRequest.builds`.
        load_s: seconds of reading its library and its weights; the runtime was there.
        first_s: seconds of its first inference.
        peak_bytes: the most memory that the process has held until then, the runtime's included.
    """

    build: str
    load_s: float
    first_s: float
    peak_bytes: int


@dataclass(frozen=True)
class Compared:
    """What one process has seen of a model's builds.

    Attributes:
        samples: seconds per inference, by build, in rounds of all of them.
        cold: of the first.
        tail: seconds of the tuned build's inferences one after another, as a service has them,
            with nobody waiting for the machine to be quiet.
    """

    samples: dict[str, tuple[float, ...]]
    cold: ColdStart
    tail: tuple[float, ...]


@dataclass(frozen=True)
class Screening:
    """A candidate's samples in seconds per call; `truncated` when it was given up as too slow."""

    samples: tuple[float, ...]
    truncated: bool


@dataclass(frozen=True)
class ScreenOutcome:
    screening: Screening | None
    failure: Failure | None


@dataclass(frozen=True)
class Raced:
    """What one process of a race has come to.

    Attributes:
        samples: seconds per call, by kernel and candidate; of who faulted there are none.
        faults: what they died of, by candidate.
    """

    samples: dict[str, dict[str, tuple[float, ...]]]
    faults: dict[str, Failure]


@dataclass(frozen=True)
class Block:
    """A measuring block begins: the canary's seconds, and what the machine was like."""

    canary_s: float
    conditions: dict[str, float | str]
