"""Which devices a job's targets are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefarm.cli.targets import targets_of
from tunefarm.devices.device import Device
from tunefarm.devices.registry import register
from tunefarm.devices.target import make_target
from tunefarm.errors import UnsupportedTarget
from tunefarm.home import Home

pytestmark = pytest.mark.tvm  # it is asked what a processor has
ROUNDING = "llvm:precision=bfloat16"


def test_of_several_devices_one_that_can_do_what_is_allowed(home: Home, device: Device) -> None:
    able = _called(device, "cpu-able", "znver4")
    for one in (device, able):
        register(home, one)
    (chosen,), skipped = targets_of(home, (device, able), ROUNDING, "fail")
    assert (chosen.device.id, chosen.resolved.get("precision")) == ("cpu-able", "bfloat16")
    (plain,), _ = targets_of(home, (device, able), "llvm", "fail")
    assert plain.device.id == device.id
    assert not skipped


@pytest.mark.parametrize("otherwise", ["fail", "build"])
def test_a_device_that_cannot_is_named(home: Home, device: Device, otherwise: str) -> None:
    """A processor is not built for without a device; here one is there."""
    register(home, device)
    with pytest.raises(UnsupportedTarget, match="does not multiply bfloat16") as caught:
        targets_of(home, (device,), ROUNDING, otherwise)
    assert caught.value.exit_code == 4


def test_it_is_skipped_where_others_are_wanted_too(home: Home, device: Device) -> None:
    register(home, device)
    (chosen,), skipped = targets_of(home, (device,), f"llvm,{ROUNDING}", "skip")
    assert chosen.name == "llvm"
    assert "does not multiply bfloat16" in skipped[ROUNDING]


def test_a_device_is_held_to_what_it_is_called(home: Home, device: Device) -> None:
    """As one that hides its matrix registers: code for it has none of what it is not known for."""
    hidden = _called(device, "cpu-hidden", "icelake-server")
    register(home, hidden)
    (chosen,), skipped = targets_of(home, (hidden,), f"llvm,{ROUNDING}", "skip")
    assert chosen.name == "llvm"
    assert "cpu-hidden, built for as icelake-server, does not multiply" in skipped[ROUNDING]


def _called(device: Device, name: str, mcpu: str) -> Device:
    """One that has the instruction, and is called so by the compiler."""
    features = (*device.features, "avx512_bf16")
    target = make_target("llvm", {"mcpu": mcpu, "num-cores": 2})
    return replace(device, id=name, features=features, target=target)
