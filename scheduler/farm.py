"""The machines of a Ray cluster, as a job sees them: which are there, and what each has to offer.

A machine that has joined offers `device:<id>` for each of its devices, of which a job has the
whole, and `builder` for each build that it takes at a time. Beside them it says which tunefarm it
has, `tunefarm:<digest>`: with another one than the driver's it is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.standing import standing
from tunefarm.errors import FarmUnreachable
from tunefarm.home import Home
from tunefarm.measure.code import whole_code
from tunefarm.scheduler.ray_processes import without_what_no_job_needs

DEVICE, BUILDER, CODE = "device:", "builder", "tunefarm:"
"""Names of what nodes offer."""
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Node:
    """A machine that is there.

    Attributes:
        id: Ray's; a machine that comes back has another.
        devices: ids of those it offers.
        builders: builds at a time.
        code: of its tunefarm (`measure.code.whole_code`); empty where it does not say.
    """

    id: str
    address: str
    devices: tuple[str, ...]
    builders: int
    code: str = ""


def offers(devices: Collection[str], builders: int) -> dict[str, float]:
    """What a machine tells Ray that it has."""
    of_devices = {f"{DEVICE}{name}": 1.0 for name in devices}
    return {**of_devices, BUILDER: float(builders), f"{CODE}{whole_code()}": 1.0}


def machines() -> tuple[list[Node], dict[str, str]]:
    """Those that are there now and have this tunefarm; and what is to be said of each that has
    another one, by its id: what it makes would not be what it is taken for."""
    mine, found = whole_code(), _all_nodes()
    strangers = {
        node.id: f"the machine at {node.address} is left alone: its tunefarm is another one "
        f"({node.code or 'older'}, not {mine}); install the same there, and join again"
        for node in found
        if node.code != mine and (node.devices or node.builders)
    }
    return [node for node in found if node.code == mine], strangers


def nodes() -> list[Node]:
    """Those of `machines` that have this tunefarm."""
    return machines()[0]


def _all_nodes() -> list[Node]:
    found = []
    for row in ray.nodes():
        if not row["Alive"]:
            continue
        resources = row["Resources"]
        devices = tuple(
            sorted(name.removeprefix(DEVICE) for name in resources if name.startswith(DEVICE))
        )
        builders = int(resources.get(BUILDER, 0))
        code = next((n.removeprefix(CODE) for n in resources if n.startswith(CODE)), "")
        found.append(Node(row["NodeID"], row["NodeManagerAddress"], devices, builders, code))
    return found


def builders_beside(device: Device) -> bool:
    """Whether builders share a machine with devices like `device`, as far as their names tell."""
    kind = device.id.rpartition("-")[0]
    return any(
        node.builders and any(name.startswith(kind) for name in node.devices) for node in nodes()
    )


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def on(node: str) -> Any:
    """Run there and nowhere else."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


@dataclass
class Devices:
    """What is known of the devices of the machines that are there; each is asked once."""

    known: dict[str, Mapping[str, Device]] = field(default_factory=dict)
    """By node."""
    _asked: dict[str, Any] = field(default_factory=dict)
    """By node, what it will answer."""

    def of(self, node: Node, limit_s: float = PROBE_LIMIT_S) -> Mapping[str, Device]:
        """By id, those that it offers; none as long as it has not answered.

        Args:
            limit_s: to wait for that, the first time.

        Raises:
            ray.exceptions.RayError: it is gone.
        """
        if node.id not in self.known:
            wait_s = 0.0 if node.id in self._asked else limit_s
            if node.id not in self._asked:
                where = _describe.options(scheduling_strategy=on(node.id))
                self._asked[node.id] = where.remote()
            if not ray.wait([self._asked[node.id]], timeout=wait_s)[0]:
                return {}
            rows = ray.get(self._asked.pop(node.id))
            devices = [device_from_dict(row) for row in rows]
            self.known[node.id] = {d.id: d for d in devices if d.id in node.devices}
        return self.known[node.id]

    def all(self) -> dict[str, Device]:
        """Of every machine that answers."""
        found: dict[str, Device] = {}
        for node in nodes():
            try:
                found.update(self.of(node))
            except ray.exceptions.RayError:
                continue  # gone since
        return found


def _devices_here() -> list[dict[str, Any]]:
    from tunefarm.devices.registry import local_devices
    from tunefarm.results import documents

    home = Home.from_environment().prepare()
    return [documents.device(home, device) for device in local_devices(home)]


_describe: Any = ray.remote(num_cpus=0)(_devices_here)


def devices_there(home: Home) -> list[dict[str, Any]]:
    """What the farm's machines say of their devices now (`documents.device`), and what the farm's
    home says of whether they may be used."""
    asked = [
        (node, _describe.options(scheduling_strategy=on(node.id)).remote()) for node in nodes()
    ]
    found: dict[str, dict[str, Any]] = {}
    for node, reference in asked:
        with contextlib.suppress(ray.exceptions.RayError):  # gone since
            for row in ray.get(reference, timeout=PROBE_LIMIT_S):
                if row["id"] in node.devices:
                    found[row["id"]] = {**row, "standing": standing(home, row["id"]).to_dict()}
    return list(found.values())


def start_local(cpus: int, devices: Collection[str], builders: int) -> None:
    """A Ray of our own on this machine: `local`, for a stray cluster on it must not be joined."""
    _quiet()
    with without_what_no_job_needs():
        ray.init(
            address="local",
            num_cpus=cpus,
            resources=offers(devices, builders),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )


def has_joined() -> bool:
    """Whether this process is, or was, one of a farm's drivers."""
    return bool(_joined)


_joined: list[str] = []
"""Where."""


def connect(address: str, token: Path) -> None:
    """Join the farm's Ray as a driver; after `token.authenticate`.

    Raises:
        FarmUnreachable: nobody answers there, or not to this token; or this machine is a part of it
            with another tunefarm than it has now.
    """
    if ray.is_initialized():
        return
    _quiet()
    try:
        ray.init(
            address=address,
            namespace="tunefarm",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
        )
        _joined.append(address)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise FarmUnreachable(
            f"the farm at {address} cannot be reached: {str(error).splitlines()[0]}",
            hint=f"Is it up (tunefarm up), and is {token} its token?",
        ) from error
    if this_node() in machines()[1]:
        raise FarmUnreachable(
            f"this machine is in the farm at {address} with another tunefarm than it has now",
            hint="Start that again: `tunefarm up` on the head, `tunefarm worker join` elsewhere",
        )


def _quiet() -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
