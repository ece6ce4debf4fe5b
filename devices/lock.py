"""Exclusive use of a device: one job at a time per device and machine.

The lock is the kernel's (flock), so it goes away with its holder, however that one dies. It lies
where all of a machine's users may write: two farm homes on one machine share the machine's devices,
whoever they are of.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunefarm.devices.device import Device

WAIT_S = 0.5
_SHARED = Path("/tmp")
"""Not `TMPDIR`, which may differ between two who share a device."""


_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Others may have put there what leads elsewhere, or what has to be waited for."""


def shared_directory() -> Path:
    """Where all of a machine's users may write."""
    return _SHARED if _SHARED.is_dir() else Path(tempfile.gettempdir())


class DeviceLock:
    """Held from a successful `acquire` until `release` or the end of the process."""

    def __init__(self, device: Device, directory: Path | None = None) -> None:
        self.path = (directory or shared_directory()) / f"tunefarm-{device.id}.lock"
        self._descriptor: int | None = None

    def acquire(self, holder: dict[str, Any]) -> bool:
        """Take the lock for `holder` (said to those who wait); False when it is taken."""
        descriptor = opened(self.path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._say(json.dumps({**holder, "pid": os.getpid()}))
        return True

    def wait(
        self, holder: dict[str, Any], told: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        """Take the lock, however long that takes. `told` hears who has it, whenever that changes;
        `check` is called again and again, and may raise."""
        before = None
        while not self.acquire(holder):
            job = str(self.holder().get("job", "?"))
            if job != before:
                told(job)
                before = job
            check()
            time.sleep(WAIT_S)

    def holder(self) -> dict[str, Any]:
        """What the present holder said of itself; empty when nobody did."""
        try:
            data: dict[str, Any] = json.loads(self.path.read_text())
            return data
        except (OSError, ValueError):
            return {}

    def release(self) -> None:
        if self._descriptor is not None:
            self._say("")
            os.close(self._descriptor)
            self._descriptor = None

    def _say(self, text: str) -> None:
        """Whose file it is may let others only read it, and lock it."""
        assert self._descriptor is not None
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text.encode(), 0)


def opened(path: Path) -> int:
    """A file that all of a machine's users may have open. One that is there is opened as such:
    where everybody may write, Linux lets nobody open another's for creation
    (`fs.protected_regular`)."""
    for _ in range(3):  # it may go between two looks
        for access in (os.O_RDWR, os.O_RDONLY):
            with contextlib.suppress(FileNotFoundError, PermissionError):
                return os.open(path, access | _PLAIN)
        with contextlib.suppress(FileExistsError):
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            os.fchmod(made, 0o666)
            return made
    return os.open(path, os.O_RDWR | _PLAIN)
