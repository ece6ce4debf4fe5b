"""tunefarm devices"""

from __future__ import annotations

from typing import Any

import click

from tunefarm.cli.common import json_option, show_json
from tunefarm.cli.desk import farm_options, is_door, open_desk


@click.group("devices")
def command() -> None:
    """The devices of this farm: what they are, what they do, whether they may be used."""


@command.command("list")
@farm_options
@json_option
def list_(farm: str | None, token: str | None, as_json: bool) -> None:
    """The devices, whether they may be used, which job is on each, and how noisy they are.

    At a farm's head, `--farm HOST:PORT` asks its machines themselves.
    """
    from tunefarm.home import Home
    from tunefarm.scheduler.token import authenticate, existing_token

    if farm is None or is_door(farm):
        _show(open_desk(farm, token).devices(), as_json)
        return
    home = Home.from_environment().prepare()
    path = existing_token(home, token)
    authenticate(path)
    from tunefarm.scheduler.farm import connect, devices_there, machines  # which imports Ray

    connect(farm, path)
    for why in machines()[1].values():
        click.echo(f"warning: {why}", err=True)
    _show(devices_there(home), as_json)


@command.command("probe")
@json_option
def probe(as_json: bool) -> None:
    """Look at this machine again, register what it has, and measure what that can do."""
    from tunefarm.devices.lock import DeviceLock
    from tunefarm.devices.registry import probe_and_register
    from tunefarm.home import Home
    from tunefarm.measure.roofline import measure_roof
    from tunefarm.results import documents

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
    _show([documents.device(home, device) for device in devices], as_json)


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
    from tunefarm.results import documents

    home = Home.from_environment().prepare()
    known = {device.id: device for device in registered(home)}
    if wanted not in known:
        raise NoDevice(
            f"no device {wanted!r} is registered",
            hint=f"There are: {', '.join(known)}" if known else "Probe: tunefarm devices probe",
        )
    set_standing(home, wanted, Use(use), reason)
    _show([documents.device(home, known[wanted])], as_json)


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show_json({"devices": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("device", "target", "what", "memory", "at best", "noise", "load", "now"):
        table.add_column(name, no_wrap=name in ("device", "noise", "load", "now"))
    for row in rows:
        table.add_row(*_cells(row))
    Console(highlight=False).print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    from tunefarm.devices.device import device_from_dict

    device = device_from_dict(row)
    busy = f"busy: {row['busy']['job']}" if row["busy"] else "idle"
    if row["standing"]["use"] != "free":
        busy += f", {row['standing']['use']}"
    return [
        device.id,
        device.target.kind,
        device.sku,
        f"{device.memory_bytes / 2**30:.0f} GiB",
        f"{row['roof']['flops'] / 1e9:.0f} GFLOP/s" if row["roof"] else "-",
        f"{row['noise']:.1%}" if row.get("noise") is not None else "-",
        f"{row['load_1m']:.1f}",
        busy,
    ]
