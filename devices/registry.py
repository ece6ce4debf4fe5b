"""The devices registered in a farm home, and which of them serve a target."""

from __future__ import annotations

import contextlib
import json

from tunefarm.devices import cpu
from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.probe import PROBED, probe
from tunefarm.devices.target import Target, make_target
from tunefarm.errors import NoDevice, UnsupportedTarget
from tunefarm.home import Home, write_atomically


def registered(home: Home) -> tuple[Device, ...]:
    """The devices on record, by id. A file that cannot be read is passed over."""
    devices = []
    for path in sorted(home.devices.glob("*.json")):
        try:
            devices.append(device_from_dict(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError):  # it may just have been replaced
            continue
    return tuple(devices)


def register(home: Home, device: Device) -> None:
    text = json.dumps(device.to_dict(), indent=2) + "\n"
    write_atomically(home.devices / f"{device.id}.json", text.encode())


def probe_and_register(home: Home) -> tuple[Device, ...]:
    """Probe this machine, and put what it has on record in place of what it had."""
    found = (*probe(), *_gpus())
    for device in found:
        register(home, device)
    now = {device.id for device in found}
    for old in registered(home):
        if old.host == cpu.host_name() and old.id not in now:
            (home.devices / f"{old.id}.json").unlink(missing_ok=True)
    return found


def _gpus() -> tuple[Device, ...]:
    """Those that the driver shows and TVM's runtime can use."""
    from tunefarm.devices.gpu_driver import driver
    from tunefarm.devices.here import device_here

    here, found = driver(), []
    for gpu in here.gpus if here else ():
        with contextlib.suppress(NoDevice, UnsupportedTarget):  # `tunefarm doctor` says more
            found.append(device_here(make_target("cuda", {}), gpu.uuid))
    return tuple(found)


def local_devices(home: Home) -> tuple[Device, ...]:
    """The registered devices of this machine; it is probed the first time, or when it changed."""
    here = tuple(d for d in registered(home) if d.host == cpu.host_name())
    unchanged = any(
        (d.sku, d.cores, d.features) == (cpu.cpu_model(), cpu.usable_cores(), cpu.cpu_features())
        and dict(d.toolchain).get("tvm") == _installed_tvm()
        and dict(d.toolchain).get("probed") == PROBED
        for d in here
    )
    return here if unchanged else probe_and_register(home)


def _installed_tvm() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return ""


def device_for(target: Target, devices: tuple[Device, ...]) -> Device:
    """The device that serves `target`: of its kind, with every attribute that it names.

    Raises:
        NoDevice: with what is registered instead.
    """
    for device in devices:
        if target.admits(device.target):
            return device
    names = ", ".join(f"{d.target.text} ({d.id})" for d in devices) or "none"
    raise NoDevice(
        f"no registered device serves target {target.text!r}; registered: {names}",
        hint="Register one (tunefarm devices probe on its machine), name another target, "
        "or go on with the rest: --no-device skip.",
    )
