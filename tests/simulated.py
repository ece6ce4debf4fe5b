"""A device on paper, for what is measured by file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.bench import PROTOCOL
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.facts import KernelFacts, Screening, ScreenOutcome
from tunefarm.measure.requests import ScreenRequest

X = (TensorSpec("x", (4,), "float32"), TensorSpec("y", (4,), "float32"))


class SimulatedDevice:
    """A device of a kind that nobody here has: it tells times without running anything."""

    def __init__(self) -> None:
        self.asked: list[ScreenRequest] = []

    def canary(self) -> float | None:
        return 0.001

    def conditions(self) -> dict[str, object]:
        return {"temperature_c": 40}

    def close(self) -> None:
        pass

    def screen(self, request: ScreenRequest) -> ScreenOutcome:
        self.asked.append(request)
        assert request.library.path.read_bytes() == b"a library"
        if request.make_reference:
            request.facts.reference.parent.mkdir(parents=True, exist_ok=True)
            request.facts.reference.write_bytes(b"a reference")
        else:
            assert request.facts.reference.read_bytes() == b"a reference"
        return ScreenOutcome(Screening((0.5, 0.25, 0.5), False), None)


def requests_on_paper(root: Path) -> list[ScreenRequest]:
    """A kernel untuned and once more, with a library that is none."""
    facts = KernelFacts("a" * 16, X, 8.0, root / "reference" / "a.npz", (), 12)
    library = Library(root / "candidates" / "c.so", ())
    library.path.parent.mkdir(parents=True)
    library.path.write_bytes(b"a library")
    untuned = ScreenRequest(library, facts, PROTOCOL, None, True)
    return [untuned, replace(untuned, make_reference=False, incumbent_s=0.5)]
