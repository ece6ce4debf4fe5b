"""Who drives a job: a lock that the kernel drops when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from typing import IO

from tunefarm.home import Home


class DriverLock:
    """Held by the process that drives a job; the kernel drops it when that process ends."""

    def __init__(self, home: Home, job: str) -> None:
        self._path = home.job_dir(job) / "driver.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self._path, "a+")  # noqa: SIM115 - held, not used and closed
        deadline = time.monotonic() + 1.0  # somebody who only looks holds it for a moment
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    file.close()
                    return False
                time.sleep(0.05)
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"pid": os.getpid()}))
        file.flush()
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def driver_is_alive(home: Home, job: str) -> bool:
    path = home.job_dir(job) / "driver.lock"
    if not path.exists():
        return False
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def driver_is_elsewhere(home: Home, job: str) -> bool:
    """A living driver that is not this process."""
    return driver_pid(home, job) not in (None, os.getpid())


def driver_pid(home: Home, job: str) -> int | None:
    """Process id of the living driver."""
    if not driver_is_alive(home, job):
        return None
    try:
        data: Mapping[str, int] = json.loads((home.job_dir(job) / "driver.lock").read_text())
        return data.get("pid")
    except (OSError, ValueError):
        return None
