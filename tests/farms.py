"""A farm of several machines on one: real Ray nodes, with homes and host names of their own."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.command import start
from tests.networks import Bridge, Network, need_networks, refusal
from tests.ports import free_port
from tunefarm.home import Home
from tunefarm.results.journal import Journal


@functools.cache
def under_a_name() -> tuple[tuple[str, ...], str]:
    """What gives a command a host name of its own: root may, and others in a user namespace.
    Nothing, and what was said, where the system allows neither."""
    said = ""
    for command in (("unshare", "--uts"), ("unshare", "--user", "--map-root-user", "--uts")):
        try:
            subprocess.run([*command, "hostname", "x"], capture_output=True, text=True, check=True)
            return command, ""
        except (OSError, subprocess.CalledProcessError) as error:
            said = refusal(error)
    return (), said


def need_machines() -> None:
    """Skip the test that asks, where machines of one farm cannot be told apart by their names."""
    command, said = under_a_name()
    if not command:
        pytest.skip(f"no host names of one's own, neither as root nor in a user namespace: {said}")


class Machine:
    """A process of `tunefarm up` or `tunefarm worker join`, with a home and a host name; `code`: a
    directory with a tunefarm of its own."""

    def __init__(
        self,
        place: Path,
        name: str,
        *args: object,
        network: Network | None = None,
        code: Path | None = None,
    ) -> None:
        self.name = name
        self.network = network
        self.starts = 1
        self._asked = False
        self.home = Home(place / name).prepare()
        self.log = place / f"{name}.log"
        command = [sys.executable, "-m", "tunefarm", *map(str, args)]
        (named, _), entered = under_a_name(), network.enter() if network else []
        assert named, "see `need_machines`"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*entered, *named, "sh", "-c", f'hostname {name}; exec "$@"', "sh", *command],
                env={**os.environ, "TUNEFARM_HOME": str(self.home.root)},
                cwd=code,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_line(self, words: str, times: int = 1) -> None:
        """Until it has said so, so often."""
        for _ in range(900):
            if self.log.read_text().count(words) >= times:
                return
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            time.sleep(0.1)
        raise AssertionError(f"{self.name} never said {words!r}: {self.log.read_text()[-2000:]}")

    def processes(self) -> list[psutil.Process]:
        """All that live with this machine's home in their environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TUNEFARM_HOME") == str(self.home.root):
                    found.append(process)
        return found

    def cut_off(self, is_cut: bool) -> None:
        assert self.network is not None
        self.network.cut_off(is_cut)

    def kill(self) -> None:
        """As if its power were cut."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(30)

    def end(self) -> None:
        """Ask it to, once: a second time would disturb it at that."""
        if not self._asked and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self._asked = True

    def close(self) -> None:
        """Until it is gone."""
        self.end()
        if self.process.poll() is None:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        left = self.processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()


class Farm:
    """All on loopback, or its machines on networks of their own, which can be cut off."""

    def __init__(self, place: Path, bridge: Bridge | None = None) -> None:
        self.place, self.bridge = place, bridge
        self.host = bridge.address if bridge else "127.0.0.1"
        self.ports = free_port(), free_port()
        self.address, self.door = (
            f"{self.host}:{self.ports[0]}",
            f"http://{self.host}:{self.ports[1]}",
        )
        self.starts = 0
        self.machines: list[Machine] = []
        self.start_head()
        self.token = self.head.home.root / "farm.token"

    @property
    def head(self) -> Machine:
        return self.machines[0]

    def start_head(self) -> None:
        """Also again, where it was killed."""
        self.starts += 1
        ports = ("--port", self.ports[0], "--door", self.ports[1])
        options = ("--host", self.host, *ports, "--no-device", "--builders", 2)
        self.machines[:1] = [Machine(self.place, "head", "up", *options)]
        self.head.await_line("submit: tunefarm", self.starts)

    def rejoin(self, lost: Machine) -> Machine:
        """A machine that was killed is started again, with what its home still has."""
        again = self.join(lost.name, lost.network)
        self.machines.remove(lost)
        again.starts = lost.starts + 1
        return again

    def join(
        self,
        name: str,
        network: Network | None = None,
        code: Path | None = None,
        builders: int = 0,
    ) -> Machine:
        if network is None and self.bridge is not None:
            network = self.bridge.network()
        host = network.address if network else self.host
        machine = Machine(
            self.place,
            name,
            *("worker", "join", self.address, "--token", self.token),
            *("--host", host, "--builders", builders),
            network=network,
            code=code,
        )
        self.machines.append(machine)
        return machine

    def user(self, name: str) -> dict[str, str]:
        """The environment of somebody who has a home of their own, and the door's token."""
        token = self.place / f"{name}.token"
        token.write_bytes((self.head.home.root / "door.token").read_bytes())
        home = Home(self.place / name).prepare()
        return {
            "TUNEFARM_HOME": str(home.root),
            "TUNEFARM_FARM": self.door,
            "TUNEFARM_FARM_TOKEN": str(token),
        }

    def environment(self) -> dict[str, str]:
        return {"TUNEFARM_HOME": str(self.head.home.root)}

    def submit(self, model: Path, *args: object) -> subprocess.Popen[str]:
        return start(
            *("submit", model, "--targets", "llvm", "--farm", self.address, "--json", *args),
            **self.environment(),
        )

    def units(self, job: str, *stages: str) -> set[str | None]:
        journal = Journal(self.head.home)
        found = {m.unit for m in journal.measurements(job, "llvm", stages or None)}
        journal.close()
        return found


@contextlib.contextmanager
def farm_of(place: Path, *names: str, networks: bool = False) -> Iterator[Farm]:
    """A head that builds, and machines of these names that measure."""
    need_machines()
    if networks:
        need_networks()
    with contextlib.ExitStack() as stack:
        bridge = stack.enter_context(contextlib.closing(Bridge())) if networks else None
        found = Farm(place, bridge)
        try:
            for name in names:  # one after another: they share Ray's session directory
                found.join(name).await_line("joined the farm")
            yield found
        finally:
            for machine in found.machines:  # each takes its time, and none another's
                machine.end()
            for machine in reversed(found.machines):
                machine.close()
