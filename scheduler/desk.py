"""What people ask of a farm, whether they sit at its home or at the other end of a network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tunefarm.devices.registry import local_devices, registered
from tunefarm.errors import FarmUnreachable, JobError, TunefarmError, from_document
from tunefarm.home import Home
from tunefarm.results import documents
from tunefarm.results.driver_lock import driver_is_alive
from tunefarm.results.journal import Journal
from tunefarm.results.life import TERMINAL

CANCEL_LIMIT_S = 60.0
COMMAND_LIMIT_S = 300.0
DRIVER_LIMIT_S = 30.0
PATIENCE_S = 60.0
"""How long whoever follows a job puts up with a farm out of reach, if it answered before."""


class Desk(Protocol):
    """Answers are plain data, as `results.documents` has them; `wanted` is a job's id, the
    beginning of one, or its name.

    All of these raise `UnknownJob` and whatever else the farm has to say.
    """

    def jobs(self) -> list[dict[str, Any]]: ...

    def job(self, wanted: str) -> dict[str, Any]: ...

    def log(self, wanted: str) -> dict[str, Any]: ...

    def cancel(self, wanted: str) -> dict[str, Any]:
        """End it for good; returns when it has ended."""

    def resume(self, wanted: str) -> dict[str, Any]:
        """Let it go on, in the background."""

    def artifacts(self) -> list[dict[str, Any]]: ...

    def fetch(self, name: str, alias: str | None, into: Path) -> tuple[Path, str]:
        """An artifact of the registry as a file in `into`, and the digest that was promised."""

    def devices(self) -> list[dict[str, Any]]: ...


class HomeDesk:
    """At the farm's home.

    Args:
        farm: where its machines are (``address`` and ``token``), None for this one alone.
    """

    def __init__(self, home: Home, farm: dict[str, str] | None = None) -> None:
        self.home = home
        self.farm = farm

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        journal = Journal(self.home)
        try:
            yield journal
        finally:
            journal.close()

    def jobs(self) -> list[dict[str, Any]]:
        with self._journal() as journal:
            return documents.jobs(journal)

    def job(self, wanted: str) -> dict[str, Any]:
        with self._journal() as journal:
            return documents.status(journal, journal.job(wanted))

    def log(self, wanted: str) -> dict[str, Any]:
        with self._journal() as journal:
            return documents.log(journal, journal.job(wanted))

    def cancel(self, wanted: str) -> dict[str, Any]:
        with self._journal() as journal:
            job = journal.job(wanted).id
            if (status := journal.status(job)) in TERMINAL:
                raise JobError(f"job {job} has ended already: {status}")
            journal.add_event(job, "cancel_requested")
            deadline = time.monotonic() + CANCEL_LIMIT_S
            while driver_is_alive(self.home, job) and time.monotonic() < deadline:
                time.sleep(0.2)
            if journal.status(job) not in TERMINAL and not driver_is_alive(self.home, job):
                journal.add_event(job, "cancelled")  # nobody drives it who could say so
            return {"job": job, "status": journal.status(job)}

    def resume(self, wanted: str) -> dict[str, Any]:
        with self._journal() as journal:
            job = journal.job(wanted)
            check_resumable(job.id, status := journal.status(job.id))
            if status != "running":
                await_driver(self.home, job.id, start_driver(self.home, job.id))
            return {"job": job.id, "status": "queued", "name": job.name}

    def artifacts(self) -> list[dict[str, Any]]:
        with self._journal() as journal:
            return documents.artifacts(journal)

    def fetch(self, name: str, alias: str | None, into: Path) -> tuple[Path, str]:
        from tunefarm.results import tracking  # MLflow takes seconds to import

        return tracking.pull(self.home, self.home.mlflow_uri, name, alias, into)

    def devices(self) -> list[dict[str, Any]]:
        if self.farm is None:
            local_devices(self.home)  # so that they are registered
            rows = [documents.device(self.home, one) for one in registered(self.home)]
        else:
            where = ("--farm", self.farm["address"], "--token", self.farm["token"])
            rows = ask_command(self.home, ["devices", "list", *where, "--json"])["devices"]
        with self._journal() as journal:
            return [{**row, "noise": documents.noise(journal, row["id"])} for row in rows]


def check_resumable(job: str, status: str) -> None:
    """
    Raises:
        JobError: it has ended.
    """
    if status in ("succeeded", "cancelled"):
        raise JobError(f"job {job} has {status}; there is nothing to resume")


def start_driver(home: Home, job: str) -> subprocess.Popen[bytes]:
    """In a process of its own, which outlives this one."""
    log = home.job_dir(job) / "detached.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            _command(["resume", job]),
            env=home.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def await_driver(home: Home, job: str, process: subprocess.Popen[bytes]) -> None:
    """Until the job is driven, so that whoever looks at it does not see how it was before.

    Raises:
        JobError: its driver has ended without driving it.
    """
    until = time.monotonic() + DRIVER_LIMIT_S
    while not driver_is_alive(home, job) and time.monotonic() < until:
        if process.poll() not in (None, 0):
            log = home.job_dir(job) / "detached.log"
            said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise JobError(f"nobody drives job {job}: {said[-1][:300]}", hint=f"See {log}")
        time.sleep(0.1)


def ask_command(home: Home, arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON document that a command prints, in a process of its own.

    Raises:
        TunefarmError: the one that it ended with.
    """
    try:
        done = subprocess.run(
            _command(arguments),
            env=home.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise TunefarmError(
            f"tunefarm {arguments[0]} has not ended in {COMMAND_LIMIT_S:.0f} s",
            hint="Look at the head: are its machines there?",
        ) from None
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise TunefarmError(f"tunefarm {arguments[0]} says {said[-1][:300]}") from None
    if done.returncode and "error" in found:
        raise from_document(found)
    return found


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tunefarm", *arguments]


def follow(
    desk: Desk,
    wanted: str,
    every_s: float,
    say: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Look at a job until it has ended; `say` hears what is new. Its last document."""
    last: Any = None
    heard = None
    while True:
        try:
            found, heard = desk.job(wanted), time.monotonic()
        except FarmUnreachable:
            if heard is None or time.monotonic() - heard > PATIENCE_S:
                raise
            time.sleep(every_s)
            continue
        new = (found["status"], found["phase"], found["counts"])
        if new != last:
            say(found)
            last = new
        if found["status"] not in ("queued", "running"):
            return found
        time.sleep(every_s)
