"""One kernel's race in a child that may die of any of the candidates."""

from __future__ import annotations

import dataclasses

from tunefarm.errors import Failure, FailureKind
from tunefarm.measure.faults import FAULTS, ask, failure_of
from tunefarm.measure.requests import KernelRace
from tunefarm.process import Child

_Raced = tuple[dict[str, tuple[float, ...]], dict[str, Failure]]
"""Of one kernel: samples, and faults, by candidate."""


def race_kernel(child: Child, race: KernelRace) -> _Raced:
    """After a fault each candidate runs alone, so that what one of them does costs no other; where
    no one faults alone, but they do together, nobody is proven.

    Raises:
        DeviceLost: a fault took the device along, and nobody is proven.
    """
    samples, fault = _attempt(child, race)
    if fault is None:
        return samples, _wrong_now(race, samples)
    if len(race.entries) == 1:
        return {}, {race.entries[0][0]: fault}
    faults: dict[str, Failure] = {}
    for name, library in race.entries:
        _, alone = _attempt(child, dataclasses.replace(race, entries=((name, library),)))
        if alone is not None:
            faults[name] = alone
    left = dataclasses.replace(race, entries=tuple(e for e in race.entries if e[0] not in faults))
    if not left.entries:
        return {}, faults
    samples, fault = _attempt(child, left)
    if fault is None:
        return samples, {**faults, **_wrong_now(left, samples)}
    return {}, {**faults, **{name: fault for name, _ in left.entries}}


def _attempt(child: Child, race: KernelRace) -> tuple[dict[str, tuple[float, ...]], Failure | None]:
    limit = 2 * race.protocol.run_limit_s
    try:
        found = ask(child, race, limit)
    except FAULTS as error:
        return {}, failure_of(error, limit)
    return {name: tuple(samples) for name, samples in found.items()}, None


def _wrong_now(race: KernelRace, samples: dict[str, tuple[float, ...]]) -> dict[str, Failure]:
    """See `kernel.race`."""
    wrong = Failure(FailureKind.WRONG_RESULT, "it was right when it was screened, and is wrong now")
    return {name: wrong for name, _ in race.entries if name not in samples}
