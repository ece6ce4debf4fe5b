"""Running a bundle where it has been taken to: needs the runtime alone."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tunefarm.devices import cpu
from tunefarm.devices.device import Device
from tunefarm.devices.here import device_here
from tunefarm.devices.naming import lacking
from tunefarm.devices.target import Target
from tunefarm.errors import (
    ArtifactError,
    ArtifactIncompatible,
    DeviceLost,
    Failure,
    FailureKind,
    TunefarmError,
)
from tunefarm.measure.bundles.bundle import (
    Bundle,
    Report,
    read_bundle,
    read_report,
    unpack_files,
    write_report,
)
from tunefarm.measure.facts import Block
from tunefarm.measure.files import makes, needs
from tunefarm.measure.protocol import Protocol as MeasuringProtocol
from tunefarm.measure.runner import METHODS, Runner
from tunefarm.process import ChildDied, ChildError, ChildTimeout

SAVE_EVERY_S = 60.0
PART = ".part"
"""After the name of a report that is unfinished."""
_CANARY_EVERY = MeasuringProtocol().canary_every


class Measures(Protocol):
    """What a `Runner` does, as far as a bundle needs it."""

    def canary(self) -> float | None: ...
    def conditions(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def run_bundle(
    path: Path,
    report: Path,
    say: Callable[[str], None] = print,
    device: Device | None = None,
    runner: Measures | None = None,
    limit_s: float = math.inf,
) -> Report:
    """Measure what is in the bundle at `path`, and write `report`; after an interruption, or when
    the time is over, with what there is by then.

    Args:
        device, runner: instead of this machine's.
        limit_s: after which no measurement is begun.

    Raises:
        ArtifactTampered, ArtifactIncompatible: see `bundle`; nothing of it has been run then.
        DeviceLost: the device does not answer any more; what it has said is in the report.
    """
    until = time.monotonic() + limit_s
    bundle = read_bundle(path)
    device = device or device_here(bundle.target)
    _check_fit(path, bundle, device)
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as directory:
        root = Path(directory)
        requests = unpack_files(path, bundle, root)
        runs = runner or Runner(
            device.cores, _memory(requests), kind=device.target.kind, uuid=device.uuid
        )
        try:
            return _Run(bundle, device, runs, root, report, say, until).measure(requests)
        finally:
            runs.close()


def _memory(requests: tuple[Any, ...]) -> int:
    return max((int(one.protocol.memory_bytes) for one in requests), default=2**32)


def _check_fit(path: Path, bundle: Bundle, device: Device) -> None:
    if bundle.device and bundle.device != device.fingerprint:
        raise ArtifactIncompatible(
            f"{path} is for a device of the kind {bundle.device}; this is {device.sku}, of the "
            f"kind {device.fingerprint}",
            hint="Run it where its job's first bundle was run.",
        )
    if not _admits(bundle.target, device.target):
        raise ArtifactIncompatible(
            f"{path} was built for {bundle.target.text}; this machine is {device.target.text}",
            hint="Submit the job with this machine's target.",
        )
    if missing := lacking(str(bundle.target.get("mcpu")), device.features):
        raise ArtifactIncompatible(
            f"{path} was built for {bundle.target.text}; this processor lacks "
            f"{', '.join(missing)}, or the system keeps that back",
            hint="Submit the job with this machine's target.",
        )


def _admits(built: Target, here: Target) -> bool:
    named = ("kind", "arch", "mcpu", "num-cores")
    return built.kind == here.kind and all(
        built.get(one) == here.get(one) for one in named if built.get(one) is not None
    )


class _Run:
    def __init__(
        self,
        bundle: Bundle,
        device: Device,
        runner: Measures,
        root: Path,
        report: Path,
        say: Callable[[str], None],
        until: float,
    ) -> None:
        self._bundle, self._device, self._runner = bundle, device, runner
        self._root, self._path, self._say, self._until = root, report, say, until
        self._answers: dict[int, Any] = {}
        self._files: dict[str, bytes] = {}
        self._blocks: dict[int, Block] = {}
        self._saved = time.monotonic()

    @property
    def _part(self) -> Path:
        """Where an unfinished report lies: whoever waits for it must not take it for the whole."""
        return self._path.with_name(self._path.name + PART)

    def measure(self, requests: tuple[Any, ...]) -> Report:
        self._say(f"{len(requests)} measurements on {self._device.sku}")
        self._recall()
        left = self._left(requests)
        started = time.monotonic()
        try:
            for done, number in enumerate(left):
                if time.monotonic() > self._until:
                    self._say_how_far("the time is over", requests)
                    break
                if done % _CANARY_EVERY == 0:
                    self._begin_block(number)
                self._answers.setdefault(number, self._answer(requests[number]))
                self._keep(makes(requests[number], self._answers[number]))
                self._progress(done + 1, len(left), started)
                if time.monotonic() - self._saved > SAVE_EVERY_S:
                    self._save(self._part)
        except KeyboardInterrupt:
            self._say_how_far("interrupted", requests)
        except DeviceLost:
            if self._answers:
                self._say_how_far("the device is lost", requests)
                self._finish()
            raise
        return self._finish()

    def _finish(self) -> Report:
        report = self._save(self._path)
        self._part.unlink(missing_ok=True)
        return report

    def _left(self, requests: tuple[Any, ...]) -> list[int]:
        """What has no answer yet; and what made, in an earlier run, what these need, where that did
        not come home: it is made once more."""
        left = [n for n in range(len(requests)) if n not in self._answers]
        gone = {file for n in left for file in needs(requests[n]) if not file.exists()}
        makers = [n for n in self._answers if gone & {*makes(requests[n], self._answers[n])}]
        return sorted([*left, *makers])

    def _keep(self, made: list[Path]) -> None:
        for one in made if self._bundle.returns else ():
            if one.exists():
                self._files[one.relative_to(self._root).as_posix()] = one.read_bytes()

    def _say_how_far(self, why: str, requests: tuple[Any, ...]) -> None:
        self._say(f"{why}: {len(self._answers)} of {len(requests)} are in the report")

    def _answer(self, request: Any) -> Any:
        """What came of it, or that its process faults (a candidate's own faults are its answer).

        Raises:
            DeviceLost: nothing will come of this one, nor of those after it.
        """
        try:
            return getattr(self._runner, METHODS[type(request)])(request)
        except DeviceLost:
            raise
        except (TunefarmError, ChildTimeout, ChildDied, ChildError) as error:
            return Failure(FailureKind.CRASH, f"{type(error).__name__}: {error}"[:500])

    def _recall(self) -> None:
        """What an earlier run of the same bundle on the same device has come to."""
        for path in (self._part, self._path):
            try:
                found = read_report(path, self._root)
            except ArtifactError:
                continue
            if (found.bundle, found.device.fingerprint) != (
                self._bundle.id,
                self._device.fingerprint,
            ):
                continue
            self._answers.update(found.answers)
            self._blocks.update(found.blocks)
            for name, data in found.files.items():
                self._files[name] = data
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                (self._root / name).write_bytes(data)
        if self._answers:
            self._say(f"{len(self._answers)} of them are in an earlier report")

    def _begin_block(self, number: int) -> None:
        canary_s = self._runner.canary()
        if canary_s is not None:
            conditions = {**cpu.conditions(), **self._runner.conditions()}
            self._blocks[number] = Block(canary_s, conditions)

    def _progress(self, done: int, of: int, started: float) -> None:
        left = (time.monotonic() - started) / done * (of - done)
        if done == of or done % 10 == 0:
            self._say(f"{done}/{of} done, about {left:.0f} s left")

    def _save(self, path: Path) -> Report:
        report = Report(
            self._bundle.id,
            self._device,
            dict(self._answers),
            dict(self._blocks),
            dict(self._files),
        )
        write_report(path, report, self._root)
        self._saved = time.monotonic()
        return report
