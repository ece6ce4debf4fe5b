"""How a job's driver takes devices, and ends where some targets have failed."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.errors import DeviceLost, JobFailed, UnsupportedModel
from tunefarm.home import Home
from tunefarm.results.artifact import Packaged
from tunefarm.results.facts import JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler import driver
from tunefarm.scheduler.driver import of_several


@pytest.mark.parametrize("first", [JobFailed, UnsupportedModel, DeviceLost])
def test_all_that_failed_is_said_and_what_was_packaged(first: type[JobFailed]) -> None:
    """With the exit code of the first, in the targets' order."""
    failed = {"cuda": first("no kernels", hint="Look."), "llvm": JobFailed("it is wrong")}
    error = of_several(failed, {"llvm:mcpu=znver5": Packaged(Path("a.tfa"), "d", {})})
    assert error.exit_code == first.exit_code
    assert error.message == "cuda: no kernels; llvm: it is wrong"
    assert error.hint == "Look. Packaged all the same: llvm:mcpu=znver5: a.tfa"
    assert of_several(failed, {}).hint == "Look."


def test_all_jobs_take_devices_in_one_order(
    home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However their targets are named: else two wait for each other."""
    first, second = (dataclasses.replace(device, id=f"unit-{name}") for name in "ab")
    taken: list[str] = []

    class Lock:
        def __init__(self, device: Device) -> None:
            self.device = device

        def wait(self, *_: object) -> None:
            taken.append(self.device.id)

    monkeypatch.setattr(driver, "DeviceLock", Lock)
    with contextlib.closing(Journal(home)) as journal:
        for order in ((first, second), (second, first)):
            one = driver._Driver(home, journal, make_job(), None, driver.StopFlag())  # type: ignore
            one._take_devices([JobTarget(d.id, d.target, d, "tc") for d in order])
    assert taken == ["unit-a", "unit-b"] * 2
