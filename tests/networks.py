"""Machines on networks of their own: namespaces on a bridge, any of which can be cut off."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from dataclasses import dataclass

import pytest

PREFIX = "10.77.13"


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class Network:
    """One machine's; the head's is the bridge itself."""

    name: str
    address: str

    def enter(self) -> list[str]:
        """What a command is to be run with."""
        return ["ip", "netns", "exec", self.name]

    def cut_off(self, is_cut: bool) -> None:
        _ip("link", "set", f"{self.name}h", "down" if is_cut else "up")


class Bridge:
    """`close` it: what it made is the system's."""

    def __init__(self) -> None:
        self.name = f"tf{os.getpid()}"
        self.networks: list[Network] = []
        _ip("link", "add", self.name, "type", "bridge")
        _ip("addr", "add", f"{PREFIX}.1/24", "dev", self.name)
        _ip("link", "set", self.name, "up")

    @property
    def address(self) -> str:
        return f"{PREFIX}.1"

    def network(self) -> Network:
        number = len(self.networks) + 2
        made = Network(f"{self.name}n{number}", f"{PREFIX}.{number}")
        _ip("netns", "add", made.name)
        self.networks.append(made)
        here, there = f"{made.name}h", f"{made.name}t"
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", made.name)
        _ip("link", "set", here, "master", self.name, "up")
        _ip("-n", made.name, "addr", "add", f"{made.address}/24", "dev", there)
        for device in (there, "lo"):
            _ip("-n", made.name, "link", "set", device, "up")
        return made

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            for network in self.networks:
                _ip("netns", "del", network.name)
            _ip("link", "del", self.name)


REFUSALS = (
    *("not permitted", "permission denied", "not supported", "unknown device type"),
    "no space left on device",
)
"""What a kernel says that does not allow or does not have something (the last: no user namespaces);
in small letters."""


def refusal(error: OSError | subprocess.CalledProcessError) -> str:
    """What the system said that does not let a test have what it needs: no such command, or a
    refusal. Anything else is a fault, and is raised."""
    if isinstance(error, FileNotFoundError | PermissionError):
        return str(error)
    said = str(getattr(error, "stderr", "") or "").strip()
    if not any(one in said.lower() for one in REFUSALS):
        raise error
    return said


@functools.cache
def why_none() -> str:
    """What keeps this system from having such networks; empty where nothing does."""
    try:
        Bridge().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return refusal(error)
    return ""


def need_networks() -> None:
    """Skip the test that asks, where its machines cannot be cut off: it takes root and `ip`."""
    if why := why_none():
        pytest.skip(f"network namespaces and bridges take root, and the command `ip`: {why}")
