"""Whole jobs on simulated farms; `make torture` runs many more of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation import NONE, Faults, SimulatedJob, jobs
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.scheduler.state import Limits


@pytest.mark.long
def test_nothing_is_lost_or_stored_twice_whatever_dies(home: Home, device: Device) -> None:
    fenced = stale = lives = 0
    for job in jobs(home, device, iter(range(100)), Faults()):
        fenced += job.fenced
        stale += job.stale
        lives += len(job.epochs)
    assert fenced > 5, "drivers were taken over"
    assert stale > 30, "workers came back from the dead"
    assert lives > 130, "drivers died"


def test_without_faults_every_unit_is_used(home: Home, device: Device) -> None:
    limits = Limits(trials=40, builders=8, shared_processor=False, processes=(2, 2, 2, 2))
    job = SimulatedJob(home, device, 1, NONE, tasks=3, units=8, limits=limits)
    job.run()
    assert len(job.epochs) == 1
    assert job.used >= set(job.units)


def test_a_unit_that_reports_what_cannot_be_true_is_not_asked_any_more(
    home: Home, device: Device
) -> None:
    """`SimulatedJob` checks that no result of its is on record."""
    limits = Limits(trials=30, builders=4, shared_processor=False, processes=(2, 2, 2, 2))
    lying = replace(NONE, liars=("unit1",))
    job = SimulatedJob(home, device, 1, lying, tasks=2, units=3, limits=limits)
    job.run()
    assert job.flagged == {"unit1": 3}
