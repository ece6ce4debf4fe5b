"""A device on paper, for what is measured by file."""

from __future__ import annotations

from tunefarm.measure.facts import Screening, ScreenOutcome
from tunefarm.measure.requests import ScreenRequest


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
