"""tunefarm devices"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import json_option, show_json

if TYPE_CHECKING:
    from tunefarm.devices.device import Device


@click.group("devices")
def command() -> None:
    """List or probe the devices of this farm."""


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The registered devices, and which job is on each."""
    from tunefarm.devices.registry import local_devices, registered
    from tunefarm.home import Home

    home = Home.from_environment().prepare()
    local_devices(home)
    _show(registered(home), as_json)


@command.command("probe")
@json_option
def probe(as_json: bool) -> None:
    """Look at this machine again, and register what it has."""
    from tunefarm.devices.registry import probe_and_register
    from tunefarm.home import Home

    _show(probe_and_register(Home.from_environment().prepare()), as_json)


def _show(devices: tuple[Device, ...], as_json: bool) -> None:
    rows = [_row(device) for device in devices]
    if as_json:
        show_json({"devices": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("device", "target", "what", "memory", "now"):
        table.add_column(name)
    for row, device in zip(rows, devices, strict=True):
        busy = f"busy: {row['busy']['job']}" if row["busy"] else "idle"
        memory = f"{device.memory_bytes / 2**30:.0f} GiB"
        table.add_row(device.id, device.target.text, device.sku, memory, busy)
    Console(highlight=False).print(table)


def _row(device: Device) -> dict[str, Any]:
    from tunefarm.devices.lock import DeviceLock

    lock = DeviceLock(device)
    holder: dict[str, Any] | None = None
    if lock.acquire({"job": "devices list"}):
        lock.release()
    else:
        holder = lock.holder()
    return {**device.to_dict(), "busy": holder}
