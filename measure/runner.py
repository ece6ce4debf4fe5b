"""Running what was built, in a killable child with nothing of the compiler in it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunefarm.devices.here import RUNTIME_ONLY, only
from tunefarm.errors import Failure, FailureKind, JobFailed
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library, failure_of_death, is_memory_error
from tunefarm.measure.facts import Checked, KernelFacts, Screening
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.steady import VARIABLE
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

MODEL_LIMIT_S = 900.0
MODEL_WAIT_S = 5.0
SCREEN_WAIT_S = 10.0
"""A search believes what it sees, so it rather waits. In races all that are compared are slower at
once."""
PREPARE_LIMIT_S = 60.0
STEADY_ALLOWANCE_S = 2.0
"""Timing again what was disturbed is not on the candidate's time."""
KIND = "TUNEFARM_DEVICE_KIND"
"""Environment variable that tells a runner's child what it runs on."""


def thread_env(threads: int) -> dict[str, str]:
    """Both pools: TVM's, and the one of the canary's matrix product."""
    return {"TVM_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


@dataclass(frozen=True)
class Prepare:
    """Make a kernel's inputs and read its references, and wait for a steady machine for `wait_s`
    at most: not on the candidate's time."""

    facts: KernelFacts
    seeds: tuple[int, ...]
    wait_s: float = SCREEN_WAIT_S


@dataclass(frozen=True)
class ScreenRequest:
    """Screen `library`; the untuned kernel first makes the reference that it is checked against."""

    library: Library
    facts: KernelFacts
    protocol: Protocol
    incumbent_s: float | None
    make_reference: bool = False


@dataclass(frozen=True)
class KernelRace:
    facts: KernelFacts
    entries: tuple[tuple[str, Library], ...]
    protocol: Protocol
    rounds: int
    seconds: float
    order_seed: int


@dataclass(frozen=True)
class RaceRequest:
    """One process's share of the races: for each kernel, its entries by candidate."""

    kernels: tuple[tuple[KernelFacts, tuple[tuple[str, Library], ...]], ...]
    protocol: Protocol
    rounds: int
    process: int


@dataclass(frozen=True)
class ModelRequest:
    """One process's interleaved rounds of two builds of one model; of the tuned one alone, where
    there is no `base`: others have called it."""

    base: Path | None
    tuned: Path
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol
    process: int


@dataclass(frozen=True)
class CheckRequest:
    """The first of `libraries` that computes what the model does (`expected`, see
    `measure.expected`), and of that one, if it is among `watched`, where its time goes."""

    libraries: tuple[Path, ...]
    watched: tuple[Path, ...]
    expected: Path
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol


@dataclass(frozen=True)
class PlaceRequest:
    """One process's interleaved rounds of several builds of one model, watched."""

    variants: tuple[Path, ...]
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol
    process: int


@dataclass(frozen=True)
class ScreenOutcome:
    screening: Screening | None
    failure: Failure | None


class Runner:
    """Runs requests one at a time on a device of this machine; a fault costs its child.

    Args:
        threads: of the kernels' thread pool.
        gauge: file of the gauge that tells whether all cores are there (`measure.steady`); without
            one nothing waits for them.
        kind: of the device: ``llvm`` for the processor, ``cuda`` for a GPU.
        uuid: which GPU; "" for the first.
    """

    def __init__(
        self,
        threads: int,
        memory_bytes: int,
        gauge: Path | None = None,
        kind: str = "llvm",
        uuid: str = "",
    ) -> None:
        self._environment = {**RUNTIME_ONLY, **thread_env(threads), KIND: kind, **only(uuid)}
        if gauge is not None:
            self._environment[VARIABLE] = str(gauge)
        # A GPU's driver reserves far more addresses than there is memory.
        self._memory_bytes = memory_bytes if kind == "llvm" else None
        self._child = self._new_child()

    def _new_child(self) -> Child:
        return Child(
            "tunefarm.measure.serve:serve",
            env=self._environment,
            memory_bytes=self._memory_bytes,
        )

    def start(self) -> None:
        self._child.start()

    def screen(self, request: ScreenRequest) -> ScreenOutcome:
        limit = request.protocol.run_limit(request.incumbent_s)
        limit += STEADY_ALLOWANCE_S if VARIABLE in self._environment else 0.0
        try:
            if not request.make_reference:
                self._child.insist(Prepare(request.facts, request.protocol.seeds), PREPARE_LIMIT_S)
            return ScreenOutcome(self._child.insist(request, limit), None)
        except ChildTimeout:
            failure = Failure(FailureKind.RUN_TIMEOUT, f"no result within {limit:.1f} s")
        except ChildDied as error:
            failure = failure_of_death(error, "the kernel")
        except ChildError as error:
            failure = _failure(error)
            # Whoever computes nonsense may have written where it should not: its inputs are
            # everybody's, so they are made anew.
            self._child.kill()
        return ScreenOutcome(None, failure)

    def race(self, request: RaceRequest) -> dict[str, dict[str, list[float]]]:
        """In a fresh process: samples by task and candidate.

        A kernel whose race faults has no samples from this process; whoever judges it must take
        that as "not proven".
        """
        results: dict[str, dict[str, list[float]]] = {}
        with self._new_child() as child:
            for index, (facts, entries) in enumerate(request.kernels):
                seed = 1000 * request.process + index
                seconds = request.protocol.kernel_s(len(request.kernels))
                one = KernelRace(facts, entries, request.protocol, request.rounds, seconds, seed)
                try:
                    results[facts.task] = child.insist(one, 2 * request.protocol.run_limit_s)
                except (ChildTimeout, ChildDied, ChildError):
                    results[facts.task] = {}
                    child.kill()  # a fault on a GPU leaves a process that can do nothing more
        return results

    def model(self, request: ModelRequest) -> dict[str, list[float]]:
        """Samples of ``base`` and ``tuned`` in a fresh process, begun while all cores are there."""
        self.await_steady()
        with self._new_child() as child:
            samples: dict[str, list[float]] = child.insist(request, MODEL_LIMIT_S)
        return samples

    def check(self, request: CheckRequest) -> Checked:
        """In a fresh process, begun while all cores are there.

        Raises:
            JobFailed: a library faults.
        """
        self.await_steady()
        try:
            with self._new_child() as child:
                found: Checked = child.insist(request, MODEL_LIMIT_S)
        except (ChildTimeout, ChildDied, ChildError) as error:
            raise JobFailed(f"the compiled model cannot be checked: {error}") from error
        return found

    def place(self, request: PlaceRequest) -> list[dict[str, list[float]]]:
        """Seconds of an inference in each function of each variant, in a fresh process begun while
        all cores are there; nothing where one faults, or takes too long for enough of them."""
        self.await_steady()
        try:
            with self._new_child() as child:
                found: list[dict[str, list[float]]] = child.insist(request, MODEL_LIMIT_S)
        except (ChildTimeout, ChildDied, ChildError):
            return []
        return found

    def await_steady(self, limit_s: float = MODEL_WAIT_S) -> bool:
        """Until the gauge says that all cores are there, or for `limit_s`; whether they are."""
        until = time.monotonic() + limit_s
        while True:
            try:
                if self._child.call("steady", 30.0):
                    return True
            except (ChildTimeout, ChildDied, ChildError):
                self._child.kill()
            if time.monotonic() > until:
                return False
            time.sleep(0.05)

    def canary(self) -> float | None:
        """Median seconds of a fixed small piece of work, to tell a disturbed machine by.

        None when the child does not survive it: an earlier candidate may have spoilt it.
        """
        try:
            answer: float = self._child.call("canary", 30.0)
        except (ChildTimeout, ChildDied, ChildError):
            self._child.kill()
            return None
        return answer

    def conditions(self) -> dict[str, Any]:
        """Of the device itself, where it tells: clocks, temperature and the like."""
        try:
            found: dict[str, Any] = self._child.call("conditions", 30.0)
        except (ChildTimeout, ChildDied, ChildError):
            self._child.kill()
            return {}
        return found

    def close(self) -> None:
        self._child.kill()


METHODS: dict[type, str] = {
    ScreenRequest: "screen",
    RaceRequest: "race",
    PlaceRequest: "place",
    ModelRequest: "model",
    CheckRequest: "check",
}
"""What a runner is asked to do, by the request."""


def _failure(error: ChildError) -> Failure:
    if error.type_name == "WrongResult":
        return Failure(FailureKind.WRONG_RESULT, error.message)
    if is_memory_error(error):
        return Failure(FailureKind.OUT_OF_MEMORY, error.message[-500:])
    return Failure(FailureKind.CRASH, error.message[-500:])
