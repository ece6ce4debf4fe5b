"""One machine of a farm: Ray's processes here, with what the machine offers, as long as ours lives.

`ray start --block` runs as a child in a process group of its own. Nothing here stops other people's
Rays (`ray stop` would): the group is ended, by its number.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefarm.errors import FarmUnreachable
from tunefarm.home import Home
from tunefarm.scheduler.farm import offers
from tunefarm.scheduler.token import authentication

START_LIMIT_S = 90.0
STOP_LIMIT_S = 20.0


@dataclass(frozen=True)
class Joining:
    """What a machine brings.

    Attributes:
        cores: of its own; Ray's count of them is larger, for our workers wait more than they work.
        head: where the farm is, None to be its head at `host`:`port`.
    """

    home: Home
    token: Path
    devices: tuple[str, ...]
    builders: int
    cores: int
    host: str
    port: int
    head: str | None = None

    def command(self) -> list[str]:
        where = (
            ["--address", self.head]
            if self.head
            else ["--head", "--port", str(self.port), "--include-dashboard", "false"]
        )
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(*where, "--node-ip-address", self.host, "--include-log-monitor", "false"),
            *("--num-cpus", str(2 * self.cores + 4), "--disable-usage-stats"),
            *("--resources", json.dumps(offers(self.devices, self.builders))),
        ]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **authentication(self.token),
            "TUNEFARM_HOME": str(self.home.root),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # A job is resumed from its journal: nothing waits for work that is under way to end.
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        }


class RayNode:
    """Ray's processes on this machine; `close` ends them."""

    def __init__(self, joining: Joining) -> None:
        self._log = joining.home.root / "farm.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                joining.command(),
                env=joining.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_start(self) -> None:
        """Until Ray says that it runs.

        Raises:
            FarmUnreachable: it does not, with the last it said.
        """
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            said = self._log.read_text(errors="replace")
            if "Ray runtime started" in said:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.2)
        said = self._log.read_text(errors="replace")
        self.close()
        raise FarmUnreachable(
            f"Ray does not start here: {_last(said.splitlines())}",
            hint=f"All that it said: {self._log}",
        )

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if self.wait(STOP_LIMIT_S):
                break
        with contextlib.suppress(ProcessLookupError):  # what its main process has left behind
            os.killpg(self._process.pid, signal.SIGKILL)


def _last(lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "it says nothing"
