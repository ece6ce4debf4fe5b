"""tunefarm devices"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import json_option, show_json

if TYPE_CHECKING:
    from tunefarm.devices.device import Device
    from tunefarm.home import Home


@click.group("devices")
def command() -> None:
    """The devices of this farm: what they are, what they do, whether they may be used."""


@command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The registered devices, whether they may be used, and which job is on each."""
    from tunefarm.devices.registry import local_devices, registered
    from tunefarm.home import Home

    home = Home.from_environment().prepare()
    local_devices(home)
    _show(home, registered(home), as_json)


@command.command("probe")
@json_option
def probe(as_json: bool) -> None:
    """Look at this machine again, register what it has, and measure what that can do."""
    from tunefarm.devices.lock import DeviceLock
    from tunefarm.devices.registry import probe_and_register
    from tunefarm.home import Home
    from tunefarm.measure.roofline import measure_roof

    home = Home.from_environment().prepare()
    devices = probe_and_register(home)
    for device in devices:
        lock = DeviceLock(device)
        if lock.acquire({"job": "devices probe"}):  # while a job measures, nothing else does
            try:
                measure_roof(home, device)
            finally:
                lock.release()
        else:
            job = lock.holder().get("job", "?")
            click.echo(f"{device.id} is busy with {job}: what it can do is not measured", err=True)
    _show(home, devices, as_json)


@command.command("drain")
@click.argument("device")
@click.option("--reason", default="", help="For whoever asks why.")
@json_option
def drain(device: str, reason: str, as_json: bool) -> None:
    """Let the job that is on DEVICE end, and no other begin."""
    _set(device, "draining", reason, as_json)


@command.command("quarantine")
@click.argument("device")
@click.option("--reason", required=True, help="For whoever asks why.")
@json_option
def quarantine(device: str, reason: str, as_json: bool) -> None:
    """Measure on DEVICE no more: the job that is on it is interrupted, and can be resumed later.

    What it has measured still counts: see tunefarm journal withdraw.
    """
    _set(device, "quarantined", reason, as_json)


@command.command("release")
@click.argument("device")
@json_option
def release(device: str, as_json: bool) -> None:
    """Let DEVICE be used again."""
    _set(device, "free", "", as_json)


def _set(wanted: str, use: str, reason: str, as_json: bool) -> None:
    from tunefarm.devices.registry import registered
    from tunefarm.devices.standing import Use, set_standing
    from tunefarm.errors import NoDevice
    from tunefarm.home import Home

    home = Home.from_environment().prepare()
    known = {device.id: device for device in registered(home)}
    if wanted not in known:
        raise NoDevice(
            f"no device {wanted!r} is registered",
            hint=f"There are: {', '.join(known)}" if known else "Probe: tunefarm devices probe",
        )
    set_standing(home, wanted, Use(use), reason)
    _show(home, (known[wanted],), as_json)


def _show(home: Home, devices: tuple[Device, ...], as_json: bool) -> None:
    rows = [_row(home, device) for device in devices]
    if as_json:
        show_json({"devices": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("device", "target", "what", "memory", "at best", "now"):
        table.add_column(name)
    for row, device in zip(rows, devices, strict=True):
        busy = f"busy: {row['busy']['job']}" if row["busy"] else "idle"
        if row["standing"]["use"] != "free":
            busy += f", {row['standing']['use']}"
        memory = f"{device.memory_bytes / 2**30:.0f} GiB"
        roof = row["roof"]
        best = f"{roof['flops'] / 1e9:.0f} GFLOP/s" if roof else "-"
        table.add_row(device.id, device.target.text, device.sku, memory, best, busy)
    Console(highlight=False).print(table)


def _row(home: Home, device: Device) -> dict[str, Any]:
    from tunefarm.devices.lock import DeviceLock
    from tunefarm.devices.standing import standing
    from tunefarm.measure.roofline import known_roof

    roof = known_roof(home, device)
    lock = DeviceLock(device)
    holder: dict[str, Any] | None = None
    if lock.acquire({"job": "devices list"}):
        lock.release()
    else:
        holder = lock.holder()
    known = roof.to_dict() if roof is not None else None
    stands = standing(home, device.id).to_dict()
    return {**device.to_dict(), "roof": known, "busy": holder, "standing": stands}
