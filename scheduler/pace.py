"""How building and measuring go together. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.devices.device import Device

_BATCH = 8
"""Candidates to a core of a unit, between two turns."""


@dataclass(frozen=True)
class Pace:
    """`takes_turns`: nothing is built while something is measured. `batch`: see `state.Limits`."""

    builders: int
    batch: int
    takes_turns: bool


def paced(device: Device, by_file: bool, beside: bool, cores_here: int) -> Pace:
    """For units like `device`.

    A GPU measures by its own clock what runs on it alone, so builders beside it may go on; they
    leave a core to the process that measures.

    Args:
        by_file: no builder is where it is measured; they all are on this machine.
        beside: builders and units share machines.
        cores_here: of this machine.
    """
    if by_file:
        return Pace(max(1, cores_here), 1, False)
    if device.target.kind == "cuda":
        return Pace(max(1, device.cores - 1), 1, False)
    return Pace(max(1, device.cores), _BATCH * max(1, device.cores), beside)
