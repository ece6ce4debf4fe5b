"""The roof of this machine, and the gauge, really measured."""

from __future__ import annotations

import os

import pytest

from tunefarm.devices.probe import probe
from tunefarm.home import Home
from tunefarm.measure.roofline import known_roof, measure_roof, roof_path
from tunefarm.measure.steady import gauge_from_file, near_from_file

pytestmark = [pytest.mark.tvm, pytest.mark.alone]


def test_a_roof_is_measured_once_and_known_from_then_on(home: Home) -> None:
    (device,) = probe()
    assert known_roof(home, device) is None
    roof = measure_roof(home, device)
    assert known_roof(home, device) == roof
    assert 1e9 < roof.flops < 1e14
    fastest, *_, slowest = (speed for _, speed in roof.bandwidth)
    assert fastest > slowest > 1e8, "caches are faster than memory"
    gauge = gauge_from_file(roof_path(home, device))
    assert gauge is not None
    assert 1e-6 < gauge.seconds < 1e-2
    near_s = near_from_file(roof_path(home, device))
    assert (near_s is None) == (len(os.sched_getaffinity(0)) < 2)
    assert near_s is None or near_s < 1e-2
    path = roof_path(home, device)
    path.write_text(path.read_text()[:40])
    assert known_roof(home, device) is None, "a damaged file is measured again"
