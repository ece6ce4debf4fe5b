"""Running a bundle where it has been taken to: needs the runtime alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tunefarm.devices import cpu
from tunefarm.devices.device import Device
from tunefarm.devices.here import device_here
from tunefarm.devices.target import Target
from tunefarm.errors import ArtifactIncompatible
from tunefarm.measure.bundle import Bundle, Report, read_bundle, unpack_files, write_report
from tunefarm.measure.files import makes
from tunefarm.measure.runner import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    Runner,
    ScreenRequest,
)

SAVE_EVERY_S = 60.0
_METHODS = {
    ScreenRequest: "screen",
    RaceRequest: "race",
    PlaceRequest: "place",
    ModelRequest: "model",
    CheckRequest: "check",
}


class Measures(Protocol):
    """What a `Runner` does, as far as a bundle needs it."""

    def canary(self) -> float | None: ...
    def close(self) -> None: ...


def run_bundle(
    path: Path,
    report: Path,
    say: Callable[[str], None] = print,
    device: Device | None = None,
    runner: Measures | None = None,
    gauge: Path | None = None,
) -> Report:
    """Measure what is in the bundle at `path`, and write `report`; after an interruption with what
    there is by then.

    Args:
        device, runner: instead of this machine's.

    Raises:
        ArtifactTampered, ArtifactIncompatible: see `bundle`; nothing of it has been run then.
    """
    bundle = read_bundle(path)
    device = device or device_here(bundle.target)
    _check_fit(path, bundle, device)
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as directory:
        root = Path(directory)
        requests = unpack_files(path, bundle, root)
        runs = runner or Runner(device.cores, _memory(requests), gauge, device.target.kind)
        try:
            return _Run(bundle, device, runs, root, report, say).measure(requests)
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
        runner: Any,
        root: Path,
        report: Path,
        say: Callable[[str], None],
    ) -> None:
        self._bundle, self._device, self._runner = bundle, device, runner
        self._root, self._path, self._say = root, report, say
        self._answers: dict[int, Any] = {}
        self._files: dict[str, bytes] = {}
        self._block: dict[str, Any] | None = None
        self._saved = time.monotonic()

    def measure(self, requests: tuple[Any, ...]) -> Report:
        self._say(f"{len(requests)} measurements on {self._device.sku}")
        canary_s = self._runner.canary()
        if canary_s is not None:
            self._block = {"canary_s": canary_s, "conditions": cpu.conditions()}
        started = time.monotonic()
        try:
            for number, request in enumerate(requests):
                answer = getattr(self._runner, _METHODS[type(request)])(request)
                self._answers[number] = answer
                for made in makes(request, answer):
                    if made.exists():
                        self._files[made.relative_to(self._root).as_posix()] = made.read_bytes()
                self._progress(number + 1, len(requests), started)
                if time.monotonic() - self._saved > SAVE_EVERY_S:
                    self._save()
        except KeyboardInterrupt:
            self._say(f"interrupted: {len(self._answers)} of {len(requests)} are in the report")
        return self._save()

    def _progress(self, done: int, of: int, started: float) -> None:
        left = (time.monotonic() - started) / done * (of - done)
        if done == of or done % 10 == 0:
            self._say(f"{done}/{of} done, about {left:.0f} s left")

    def _save(self) -> Report:
        report = Report(
            self._bundle.id, self._device, dict(self._answers), self._block, dict(self._files)
        )
        write_report(self._path, report, self._root)
        self._saved = time.monotonic()
        return report
