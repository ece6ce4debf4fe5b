"""What a journal is told and tells: a job, its targets, the measurements made for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunefarm.devices.device import Device
from tunefarm.devices.target import Target


@dataclass(frozen=True)
class Job:
    """A job as it was submitted; `status` is derived from its events and its driver's life."""

    id: str
    name: str
    created: float
    model_digest: str
    model_source: str
    options: dict[str, Any]
    protocol: dict[str, Any]


@dataclass(frozen=True)
class JobTarget:
    """A target as the user named it, what it stands for, and the device that serves it."""

    name: str
    resolved: Target
    device: Device
    toolchain: str


@dataclass(frozen=True)
class Measurement:
    """One process's samples (seconds per call) of one candidate at one stage; `unit` is the device
    that it ran on, None for the job's only one."""

    candidate: str
    stage: str
    process: int
    samples: tuple[float, ...]
    truncated: bool = False
    build_s: float | None = None
    block: int | None = None
    unit: str | None = None


COLD = "cold"
"""Kind of the event that says how a process of the whole model began: `measure.facts.ColdStart`."""
PACKAGED = "packaged"
"""Kind of the event that says which version of tunefarm has packaged a target."""
FAULT = "fault"
"""Kind of the event that a candidate, sound when it was screened, has faulted in a race."""
