"""The machine's roofs as entrants: raced as kernels are, in the same processes and minutes.

A shared machine's speed changes by the hour, and that of its memory twofold: a kernel's part of a
roof of another hour says little. Multiply-adds that never leave the registers, and the plain sum of
two arrays that is as large as a kernel's arguments, race just before its schedules and just after.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefarm.devices.cpu import usable_cores
from tunefarm.devices.device import Device
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import ScreenRequest
from tunefarm.measure.roofline import CHAINS, STEPS, chained, summed
from tunefarm.measure.runner import Runner

Entrants = tuple[KernelFacts, tuple[tuple[str, Library], ...]]
"""What a kernel is, and its schedules by name."""
MULTIPLY_ADDS, SUM = "multiply-adds", "sum"
_ONLY = "roof"


@dataclass(frozen=True)
class Roof:
    """`work` of a call: operations of multiply-adds, bytes of a sum."""

    kind: str
    entrants: Entrants
    work: float


def multiply_adds(device: Device, directory: Path) -> list[Roof]:
    """With few and with many chains: which is fastest is the processor's affair."""
    return [
        _made(MULTIPLY_ADDS, f"{chains} chains", chained(device.target, chains, STEPS), directory)
        for chains in CHAINS
    ]


def plain_sum(device: Device, footprint: int, directory: Path) -> Roof:
    """Of arrays that are `footprint` bytes in all."""
    return _made(SUM, f"sum of {footprint}", summed(device.target, footprint), directory)


def before_and_after(roofs: Iterable[Roof], kernel: Entrants) -> tuple[Entrants, ...]:
    around = [roof.entrants for roof in roofs]
    again = [(replace(facts, task=_again(facts)), entries) for facts, entries in around]
    return (*around, kernel, *again)


def speeds(raced: dict[str, dict[str, list[float]]], roofs: Iterable[Roof]) -> dict[str, float]:
    """Work a second by kind: the best median of all that raced."""
    found: dict[str, float] = {}
    for roof in roofs:
        facts = roof.entrants[0]
        for task in (facts.task, _again(facts)):
            speed = roof.work / statistics.median(raced[task][_ONLY])
            found[roof.kind] = max(speed, found.get(roof.kind, 0.0))
    return found


def _again(facts: KernelFacts) -> str:
    return f"{facts.task}, again"


def _made(kind: str, name: str, built: tuple[Any, Any, float], directory: Path) -> Roof:
    from tunefarm.measure.compile import link

    module, shapes, work = built
    path = directory / f"{name.replace(' ', '-')}.so"
    link(module, path)
    args = tuple(TensorSpec(str(at), shape, "float32") for at, shape in enumerate(shapes))
    flops = work if kind == MULTIPLY_ADDS else 0.0
    facts, library = KernelFacts(name, args, flops, path.with_suffix(".npz")), Library(path, ())
    protocol = Protocol()
    runner = Runner(usable_cores(), protocol.memory_bytes)
    outcome = runner.screen(ScreenRequest(library, facts, protocol, None, make_reference=True))
    runner.close()
    assert outcome.failure is None, outcome.failure
    return Roof(kind, (facts, ((_ONLY, library),)), work)
