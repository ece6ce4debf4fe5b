from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command import tunefarm
from tunefarm.devices import cpu
from tunefarm.devices.device import Device, device_from_dict
from tunefarm.devices.gpu_driver import Driver, Gpu
from tunefarm.devices.here import identified
from tunefarm.devices.lock import DeviceLock
from tunefarm.devices.probe import PROBED
from tunefarm.devices.registry import (
    _installed_tvm,
    device_for,
    local_devices,
    probe_and_register,
    register,
    registered,
)
from tunefarm.devices.standing import Use, check_free, set_standing, standing
from tunefarm.devices.target import Target, parse_target
from tunefarm.errors import NoDevice
from tunefarm.home import Home


def test_a_device_is_read_back_as_it_was(home: Home, device: Device) -> None:
    register(home, device)
    assert registered(home) == (device,)
    assert device_from_dict(device.to_dict()).fingerprint == device.fingerprint


def test_a_damaged_registration_is_passed_over(home: Home, device: Device) -> None:
    register(home, device)
    (home.devices / "other.json").write_text("{")
    (home.devices / "gone.json").symlink_to("nowhere")  # between two looks
    assert registered(home) == (device,)


@pytest.mark.parametrize(("probed", "again"), [(PROBED, 0), ("1", 1), ("", 1)])
def test_what_was_probed_otherwise_is_probed_again(
    probed: str, again: int, home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other rules it may have another name."""
    known = {"tvm": _installed_tvm(), **({"probed": probed} if probed else {})}
    here = replace(
        device,
        host=cpu.host_name(),
        sku=cpu.cpu_model(),
        cores=cpu.usable_cores(),
        features=cpu.cpu_features(),
        toolchain=tuple(sorted(known.items())),
    )
    register(home, here)
    asked: list[int] = []

    def probe() -> tuple[Device, ...]:
        asked.append(1)
        return (here,)

    monkeypatch.setattr("tunefarm.devices.registry.probe", probe)
    monkeypatch.setattr("tunefarm.devices.registry._gpus", tuple)
    assert local_devices(home) == (here,)
    assert len(asked) == again


def test_who_looks_meanwhile_finds_a_device(
    home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is put on record before what is there no more is taken off it."""
    here = replace(device, host=cpu.host_name())
    newer = replace(here, id="cpu-newer")
    register(home, here)
    monkeypatch.setattr("tunefarm.devices.registry.probe", lambda: (newer,))
    monkeypatch.setattr("tunefarm.devices.registry._gpus", tuple)
    seen: list[int] = []
    unlink = Path.unlink

    def looks_first(path: Path, missing_ok: bool = False) -> None:
        seen.append(len(registered(home)))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", looks_first)
    probe_and_register(home)
    assert seen == [2]
    assert registered(home) == (newer,)


def test_every_gpu_of_a_machine_is_a_device(
    home: Home, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a driver of paper: two GPUs of a kind, and one that its runtime cannot use."""
    gpus = tuple(Gpu((9, 0), f"GPU-{number}") for number in range(3))
    target = parse_target("cuda:arch=sm_90")

    def here(wanted: Target, uuid: str) -> Device:
        if uuid == "GPU-1":
            raise NoDevice("it has fallen off the bus")
        gpu = replace(device, sku="H", target=target, uuid=uuid)
        return device_from_dict(identified(gpu, "cuda-sm_90"))

    monkeypatch.setattr("tunefarm.devices.gpu_driver.driver", lambda: Driver(13, gpus))
    monkeypatch.setattr("tunefarm.devices.here.device_here", here)
    monkeypatch.setattr("tunefarm.devices.registry.probe", lambda: (device,))
    found = probe_and_register(home)
    assert [one.uuid for one in found] == ["", "GPU-0", "GPU-2"]
    assert len({one.id for one in found}) == 3
    assert len({one.fingerprint for one in found}) == 2, "results of two of a kind are comparable"
    assert set(registered(home)) == set(found)
    first = device_for(target, found)
    locks = [DeviceLock(one, home.root) for one in (first, found[2])]
    assert [lock.acquire({"job": "any"}) for lock in locks] == [True, True], "each has its own"
    for lock in locks:
        lock.release()


def test_no_device_says_what_there_is(device: Device) -> None:
    with pytest.raises(NoDevice) as caught:
        device_for(parse_target("cuda"), (device,))
    assert device.id in caught.value.message
    assert caught.value.exit_code == 4


def _hold(directory: Path, device: Device, ready: object, done: object) -> None:
    lock = DeviceLock(device, directory)
    assert lock.acquire({"job": "first"})
    ready.set()
    done.wait(30)


def test_one_job_at_a_time_and_a_dead_holder_lets_go(tmp_path: Path, device: Device) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, device, ready, done))
    holder.start()
    assert ready.wait(60)
    mine = DeviceLock(device, tmp_path)
    assert not mine.acquire({"job": "second"})
    assert mine.holder()["job"] == "first"
    holder.kill()
    holder.join()
    assert mine.acquire({"job": "second"})
    mine.release()
    assert mine.holder() == {}


def test_a_standing_lasts_until_it_is_released(home: Home, device: Device) -> None:
    register(home, device)
    check_free(home, device.id)
    set_standing(home, device.id, Use.QUARANTINED, "its fan is broken")
    register(home, device)
    assert registered(home) == (device,)
    with pytest.raises(NoDevice, match="quarantined: its fan is broken"):
        check_free(home, device.id)
    set_standing(home, device.id, Use.FREE, "")
    check_free(home, device.id)
    (home.devices / f"{device.id}.standing").write_text("{")
    assert standing(home, device.id).use is Use.QUARANTINED


@pytest.mark.slow
def test_devices_are_drained_and_released_by_command(home: Home, device: Device) -> None:
    register(home, device)
    drained = tunefarm("devices", "drain", device.id, "--reason", "it moves", "--json")
    assert drained.json["devices"][0]["standing"]["use"] == "draining", drained.err
    assert "it moves" in drained.json["devices"][0]["standing"]["reason"]
    assert tunefarm("devices", "release", device.id).code == 0
    assert standing(home, device.id).use is Use.FREE
    unknown = tunefarm("devices", "drain", "cpu-7")
    assert unknown.code == NoDevice.exit_code
    assert device.id in unknown.err
