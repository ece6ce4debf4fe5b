"""Running what was built, in a killable child with nothing of the compiler in it."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from tunefarm.devices.gpu_driver import KIND
from tunefarm.devices.here import RUNTIME_ONLY, only
from tunefarm.errors import DeviceLost, JobFailed
from tunefarm.measure.allowance import of_the_machine
from tunefarm.measure.facts import Checked, Compared, Raced, ScreenOutcome
from tunefarm.measure.faults import FAULTS, ask, failure_of, ready
from tunefarm.measure.racing import race_kernel
from tunefarm.measure.requests import (
    CheckRequest,
    KernelRace,
    ModelRequest,
    PlaceRequest,
    Prepare,
    RaceRequest,
    ScreenRequest,
)
from tunefarm.measure.steady import VARIABLE
from tunefarm.process import Child

MODEL_LIMIT_S = 900.0
MODEL_WAIT_S = 5.0
PREPARE_LIMIT_S = 60.0
ONCE_MORE_S = 2.0
"""Timing again what was disturbed is not on the candidate's time."""


def thread_env(threads: int) -> dict[str, str]:
    """Both pools: TVM's, and the one of the canary's matrix product."""
    return {"TVM_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


class Runner:
    """Runs requests one at a time on a device of this machine; a fault costs its child. Where the
    device does not answer, before or after, all but `canary` and `conditions` raise `DeviceLost`.

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
        self._allowance = of_the_machine()
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

    def ready(self) -> None:
        """Returns when the device has answered."""
        ready(self._child)

    def screen(self, request: ScreenRequest) -> ScreenOutcome:
        limit = request.protocol.run_limit(request.incumbent_s)
        limit += ONCE_MORE_S if VARIABLE in self._environment else 0.0
        try:
            if not request.make_reference:
                prepare = Prepare(request.facts, request.protocol.seeds)
                ask(self._child, prepare, PREPARE_LIMIT_S)
            return ScreenOutcome(ask(self._child, request, limit), None)
        except FAULTS as error:
            return ScreenOutcome(None, failure_of(error, limit))

    def race(self, request: RaceRequest) -> Raced:
        """In a fresh process. Who faults is found out and left out, and the others race without it;
        whoever judges must take that it lacks this process as "not proven"."""
        samples, faults = {}, {}
        with self._new_child() as child:
            for index, (facts, entries) in enumerate(request.kernels):
                seed = 1000 * request.process + index
                seconds = request.protocol.kernel_s(len(request.kernels))
                one = KernelRace(facts, entries, request.protocol, request.rounds, seconds, seed)
                samples[facts.task], of_it = race_kernel(child, one)
                faults.update(of_it)
        return Raced(samples, faults)

    def model(self, request: ModelRequest) -> Compared:
        """A model's builds, in turns in a fresh process, begun while all cores are there. Where a
        previous one may have brought it down, once more without that."""
        self.await_steady()
        try:
            with self._new_child() as child:
                found: Compared = ask(child, request, MODEL_LIMIT_S)
        except (*FAULTS, DeviceLost):
            if request.previous is None:
                raise
            return self.model(dataclasses.replace(request, previous=None))
        return found

    def check(self, request: CheckRequest) -> Checked:
        """In a fresh process, begun while all cores are there.

        Raises:
            JobFailed: a library faults.
        """
        self.await_steady()
        try:
            with self._new_child() as child:
                found: Checked = ask(child, request, MODEL_LIMIT_S)
        except FAULTS as error:
            raise JobFailed(f"the compiled model cannot be checked: {error}") from error
        return found

    def place(self, request: PlaceRequest) -> list[dict[str, list[float]]]:
        """Seconds of an inference in each function of each variant, in a fresh process begun while
        all cores are there; nothing where one faults, or takes too long for enough of them."""
        self.await_steady()
        try:
            with self._new_child() as child:
                found: list[dict[str, list[float]]] = ask(child, request, MODEL_LIMIT_S)
        except FAULTS:
            return []
        return found

    def await_steady(self, limit_s: float = MODEL_WAIT_S) -> bool:
        """Until the gauge says that all cores are there, or for `limit_s`, or as long as may still
        be waited; whether they are. Then the process that was asked stands still: its pool's
        threads wait for work with a core in hand, for longer than it takes others to begin."""
        limit_s = min(limit_s, self._allowance.left_s())
        there, began, waited = bool(self._asked("steady")), time.monotonic(), 0.0
        while not there and waited < limit_s:
            time.sleep(0.05)
            there, waited = bool(self._asked("steady")), time.monotonic() - began
        if waited:
            self._allowance.take(waited)
        self._child.freeze()
        return there

    def canary(self) -> float | None:
        """Median seconds of a fixed small piece of work, to tell a disturbed machine by.

        None when the child does not survive it: an earlier candidate may have spoilt it.
        """
        answer: float | None = self._asked("canary")
        return answer

    def conditions(self) -> dict[str, Any]:
        """Of the device itself, where it tells: clocks, temperature and the like."""
        return self._asked("conditions") or {}

    def _asked(self, what: str) -> Any:
        """None where the child does not survive it."""
        try:
            return self._child.call(what, 30.0)
        except FAULTS:
            self._child.kill()
            return None

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
