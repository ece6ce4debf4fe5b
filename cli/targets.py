"""Which targets a submitted job has: those that devices serve, that a file leads to, or that nobody
has a device for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from tunefarm.devices.bfloat16 import can_round, check_bfloat16
from tunefarm.devices.device import Device, no_device
from tunefarm.devices.gpu import completed
from tunefarm.devices.registry import device_for, local_devices
from tunefarm.devices.standing import Use, check_free, standing
from tunefarm.devices.target import Target, parse_targets
from tunefarm.errors import NoDevice, UnsupportedTarget, UsageError
from tunefarm.home import Home
from tunefarm.measure.code import CODE, code_of
from tunefarm.measure.cuda.compiler import cuda_compiler
from tunefarm.results.facts import JobTarget
from tunefarm.scheduler.exchange import await_device
from tunefarm.scheduler.token import authenticate


def devices_of(home: Home, joined: dict[str, str] | None) -> tuple[Device, ...]:
    """Those that a job may have."""
    if joined is None:
        return local_devices(home)
    authenticate(Path(joined["token"]))
    from tunefarm.scheduler import farm  # Ray reads the token as it is imported

    farm.connect(joined["address"], Path(joined["token"]))
    return tuple(farm.Devices().all().values())


def left_alone(joined: dict[str, str] | None) -> list[str]:
    """Why machines of the farm that `devices_of` has asked are not among those."""
    if joined is None:
        return []
    from tunefarm.scheduler import farm

    return list(farm.machines()[1].values())


def targets_of(
    home: Home,
    devices: tuple[Device, ...],
    text: str,
    otherwise: str,
    reasons: Sequence[str] = (),
) -> tuple[list[JobTarget], dict[str, str]]:
    """The targets that devices serve, and why the others do not count; what to do with these is
    `otherwise` (``fail``, ``skip`` or ``build``). `reasons`: why there may be no more devices."""
    wanted = parse_targets(text)
    free = tuple(device for device in devices if standing(home, device.id).use is Use.FREE)
    kinds = [device.target for device in free]
    chosen: list[JobTarget] = []
    skipped: dict[str, str] = {}
    for target in wanted:
        try:
            among = free if any(map(target.admits, kinds)) else devices
            device = device_for(target, _able(target, among))
            check_free(home, device.id)
            resolved = target.with_attrs(dict(device.target.attrs))
            if target.kind == "cuda":
                resolved = completed(resolved)
        except (NoDevice, UnsupportedTarget) as error:
            there = isinstance(error, UnsupportedTarget) and target.kind == "llvm"
            if otherwise == "fail" or (there and otherwise == "build"):
                error.hint = ". ".join([*reasons, error.hint])
                raise
            if otherwise == "build":
                chosen.append(_unserved(target, home))
            else:
                skipped[target.text] = error.message
            continue
        if any((t.resolved, t.device) == (resolved, device) for t in chosen):
            continue  # the same target under another name
        tools = _toolchain(target, local_devices(home)[0] if target.kind == "cuda" else device)
        chosen.append(JobTarget(target.text, resolved, device, tools))
    if not chosen:
        reasons = "; ".join(skipped.values())
        raise NoDevice(f"no target is left: {reasons}", hint="tunefarm devices list")
    return chosen, skipped


def _able(target: Target, devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """Those of `devices` that can do what `target` allows.

    Raises:
        UnsupportedTarget: some would serve it, and none of them can.
    """
    if target.kind != "llvm":
        return devices
    serving = [device for device in devices if target.admits(device.target)]
    able = tuple(device for device in serving if can_round(target, device))
    if serving and not able:
        check_bfloat16(target, serving[0])
    return able or devices


def _toolchain(target: Target, builder: Device) -> str:
    """What makes kernels for `target` on the machine of `builder`, a part of a candidate's
    identity."""
    tools = dict(builder.toolchain)
    found = f"tvm-{tools['tvm']} llvm-{tools['llvm']} {tools['linker']}"
    found += f" {CODE}{code_of(target.kind)}"
    if target.kind != "cuda":
        return found
    return f"{found} {cuda_compiler()}"


def _unserved(target: Target, home: Home) -> JobTarget:
    """A target to build for without a device.

    Raises:
        UsageError: it is for a processor.
        UnsupportedTarget: see `devices.gpu.arch_of`; or nothing here compiles for it.
    """
    (builder, *_) = local_devices(home)
    if target.kind != "cuda":
        raise UsageError(
            f"target {target.text!r}: without a device only cuda is built for",
            hint="What a processor must have to run the artifact is read off the device.",
        )
    resolved = completed(target)
    device = no_device(resolved.hardware, builder)
    return JobTarget(target.text, resolved, device, _toolchain(target, builder))


def by_file(home: Home, directory: Path, text: str) -> list[JobTarget]:
    """Targets whose devices are reached by file."""
    (builder, *_) = local_devices(home)
    chosen: list[JobTarget] = []
    for target in parse_targets(text):
        toolchain = _toolchain(target, builder)  # before anybody is sent anywhere
        directory.mkdir(parents=True, exist_ok=True)
        wanted = completed(target) if target.kind == "cuda" else target
        if target.kind == "llvm" and target.get("mcpu") is None:
            wanted = target.with_attrs({"mcpu": str(builder.target.get("mcpu"))})
        say = partial(click.echo, err=True)
        device = await_device(directory, wanted.hardware, say)
        if target.kind == "llvm":
            check_bfloat16(wanted, device)
        resolved = wanted.with_attrs(dict(device.target.attrs))
        if not any((t.resolved, t.device) == (resolved, device) for t in chosen):
            chosen.append(JobTarget(target.text, resolved, device, toolchain))
    return chosen
