"""Who waits for whom."""

from __future__ import annotations

import pytest

from tunefarm.devices.device import Device
from tunefarm.devices.target import parse_target
from tunefarm.scheduler.pace import Pace, paced


def device(target: str, cores: int) -> Device:
    return Device("d", "sku", "host", parse_target(target), cores, 1, (0, 0, 0), (), ())


@pytest.mark.parametrize(
    ("target", "cores", "by_file", "beside", "expected"),
    [
        ("llvm", 2, False, True, Pace(2, 16, True)),
        ("llvm", 2, False, False, Pace(2, 16, False)),
        ("llvm", 2, True, True, Pace(4, 1, False)),
        ("cuda:arch=sm_90", 16, False, True, Pace(15, 1, False)),
        ("cuda:arch=sm_90", 1, False, False, Pace(1, 1, False)),
        ("cuda:arch=sm_90", 16, True, True, Pace(4, 1, False)),
    ],
)
def test_only_processors_take_turns(target, cores, by_file, beside, expected) -> None:
    assert paced(device(target, cores), by_file, beside, cores_here=4) == expected
