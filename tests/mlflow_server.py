"""An MLflow server of a test's own, on a port of loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port

START_LIMIT_S = 90.0


class MlflowServer:
    """Started and killed as often as one likes; what it was told stays in `place`."""

    def __init__(self, place: Path) -> None:
        self._place, self._port = place, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it listens."""
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
                *("--port", str(self._port), "--workers", "1"),
                *("--backend-store-uri", f"sqlite:///{self._place / 'server.db'}"),
                *("--artifacts-destination", str(self._place / "files")),
            ],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + START_LIMIT_S
        while not self._listens():
            assert time.monotonic() < until, "MLflow does not start"
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
