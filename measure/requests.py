"""What a runner can be asked for; plain data, no runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.facts import PREVIOUS, KernelFacts
from tunefarm.measure.protocol import Protocol

SCREEN_WAIT_S = 10.0
"""A search believes what it sees, so it rather waits. In races all that are compared are slower at
once."""


@dataclass(frozen=True)
class Prepare:
    """Make a kernel's inputs and read its references, and wait for a steady machine for `wait_s`
    at most: not on the candidate's time."""

    facts: KernelFacts
    seeds: tuple[int, ...]
    wait_s: float = SCREEN_WAIT_S


@dataclass(frozen=True)
class ScreenRequest:
    """Screen `library`; the untuned kernel first makes the reference that it is checked against."""

    library: Library
    facts: KernelFacts
    protocol: Protocol
    incumbent_s: float | None
    make_reference: bool = False


@dataclass(frozen=True)
class KernelRace:
    facts: KernelFacts
    entries: tuple[tuple[str, Library], ...]
    protocol: Protocol
    rounds: int
    seconds: float
    order_seed: int


@dataclass(frozen=True)
class RaceRequest:
    """One process's share of the races: for each kernel, its entries by candidate."""

    kernels: tuple[tuple[KernelFacts, tuple[tuple[str, Library], ...]], ...]
    protocol: Protocol
    rounds: int
    process: int


@dataclass(frozen=True)
class ModelRequest:
    """One process's interleaved rounds of the builds of one model: untuned, tuned, and what an
    earlier job has shipped, where there is any; without `base` where others have called it enough.
    """

    base: Path | None
    tuned: Path
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol
    process: int
    previous: Path | None = None

    def builds(self) -> dict[str, Path]:
        """``base``, ``tuned`` and ``previous``, those that there are, in the order in which this
        process loads them. By turns: who is the first has other pages than the others, and starts
        cold."""
        named = {"base": self.base, "tuned": self.tuned, PREVIOUS: self.previous}
        there = [(name, library) for name, library in named.items() if library is not None]
        turn = self.process % len(there)
        return dict(there[turn:] + there[:turn])


@dataclass(frozen=True)
class CheckRequest:
    """The first of `libraries` that computes what the model does (`expected`, see
    `measure.expected`), and of that one, if it is among `watched`, where its time goes."""

    libraries: tuple[Path, ...]
    watched: tuple[Path, ...]
    expected: Path
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol


@dataclass(frozen=True)
class PlaceRequest:
    """One process's interleaved rounds of several builds of one model, watched."""

    variants: tuple[Path, ...]
    inputs: tuple[TensorSpec, ...]
    protocol: Protocol
    process: int
