"""A device's lock holds between users, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tunefarm.devices.device import Device
from tunefarm.devices.lock import DeviceLock


@contextmanager
def somebody_else() -> Iterator[None]:
    """Root becomes nobody; others stay who they are, and the file is made so that they may only
    read it."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """As ``/tmp``: everybody may write there, and remove what is his."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o1777)
        yield Path(directory)


@pytest.mark.parametrize("mode", [0o666, 0o444])
def test_another_users_lock_counts_and_can_be_taken(
    shared: Path, device: Device, mode: int
) -> None:
    theirs, mine = DeviceLock(device, shared), DeviceLock(device, shared)
    assert theirs.acquire({"job": "theirs"})
    assert theirs.path.stat().st_mode & 0o777 == 0o666, "whatever the umask"
    theirs.path.chmod(mode)
    with somebody_else():
        assert not mine.acquire({"job": "mine"})
        assert mine.holder()["job"] == "theirs"
        theirs.release()
        assert mine.acquire({"job": "mine"})
        assert not theirs.acquire({"job": "theirs"})
        mine.release()
    assert theirs.acquire({"job": "theirs"})
    theirs.release()


@pytest.mark.slow
def test_who_waits_is_told_for_whom_and_may_give_up(shared: Path, device: Device) -> None:
    first, second = DeviceLock(device, shared), DeviceLock(device, shared)
    assert first.acquire({"job": "first"})
    told: list[str] = []
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        second.wait({"job": "second"}, told.append, check)
    assert told == ["first"], "once"
    first.release()
    second.wait({"job": "second"}, told.append, check)
    assert second.holder()["job"] == "second"
    second.release()


def test_all_users_look_in_one_place(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    here = DeviceLock(device).path
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert DeviceLock(device).path == here
