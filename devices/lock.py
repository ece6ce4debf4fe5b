"""Exclusive use of a device: one job at a time per device and machine.

The lock is the kernel's (flock), so it goes away with its holder, however that one dies. It lies
in the machine's temporary directory: two farm homes on one machine share the machine's devices.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import IO, Any

from tunefarm.devices.device import Device


class DeviceLock:
    """Held from a successful `acquire` until `release` or the end of the process."""

    def __init__(self, device: Device, directory: Path | None = None) -> None:
        directory = directory or Path(tempfile.gettempdir())
        self.path = directory / f"tunefarm-{device.id}.lock"
        self._file: IO[str] | None = None

    def acquire(self, holder: dict[str, Any]) -> bool:
        """Take the lock for `holder` (said to those who wait); False when it is taken."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        file = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        json.dump({**holder, "pid": os.getpid()}, file)
        file.flush()
        self._file = file
        return True

    def holder(self) -> dict[str, Any]:
        """What the present holder said of itself; empty when nobody did."""
        try:
            data: dict[str, Any] = json.loads(self.path.read_text())
            return data
        except (OSError, ValueError):
            return {}

    def release(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None
