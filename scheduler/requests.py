"""What workers are asked for about kernels of one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tunefarm.measure.build import BuildRequest
from tunefarm.measure.facts import KernelFacts
from tunefarm.measure.requests import RaceRequest, ScreenRequest
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import Phase
from tunefarm.scheduler.races import Races


class Requests:
    """Made from what the ledger knows and who races.

    Args:
        directory: the target's own, in the job's.
    """

    def __init__(self, ledger: Ledger, races: Races, directory: Path) -> None:
        self._ledger = ledger
        self._races = races
        self._directory = directory

    def build(self, candidate: str) -> BuildRequest:
        one = self._ledger.candidates[candidate]
        return BuildRequest(
            self._races.program.workload(one.task),
            self._races.target.resolved,
            one.trace,
            self._directory / "candidates" / f"{one.id}.so",
        )

    def screen(self, candidate: str, incumbent_s: float | None) -> ScreenRequest:
        one = self._ledger.candidates[candidate]
        return ScreenRequest(
            self._ledger.libraries[candidate],
            self._facts(one.task),
            self._races.protocol,
            incumbent_s,
            make_reference=one.untuned,
        )

    def racers(self, phase: Phase) -> dict[str, list[str]]:
        """See `Races.entries`."""
        return self._races.entries(phase, self._ledger.latencies)

    def race(self, racers: Mapping[str, Sequence[str]], phase: Phase, process: int) -> RaceRequest:
        """Of those who are built: a schedule that an earlier job or life has left may not be; a
        final without one of the two would decide nothing."""
        protocol, built = self._races.protocol, self._ledger.libraries
        there = {task: [c for c in chosen if c in built] for task, chosen in racers.items()}
        kernels = tuple(
            (self._facts(task), tuple((c, built[c]) for c in chosen))
            for task, chosen in there.items()
            if chosen and (phase is not Phase.FINAL or chosen == list(racers[task]))
        )
        offset = 100 if phase is Phase.FINAL else 0  # other orders than in the race
        rounds = protocol.final_rounds if offset else protocol.race_rounds
        return RaceRequest(kernels, self._races.settled(), rounds, process + offset)

    def unbuilt(self, racers: Mapping[str, Sequence[str]]) -> dict[str, BuildRequest]:
        """Of those who race, what an earlier job or life has built and has to be built again."""
        return {
            c: self.build(c)
            for chosen in racers.values()
            for c in chosen
            if c not in self._ledger.libraries and c not in self._ledger.dropped
        }

    def _facts(self, task: str) -> KernelFacts:
        of = self._races.program.task(task)
        reference = self._directory / "reference" / f"{task}.npz"
        between = self._races.program.between_bytes
        return KernelFacts.of(of, reference, between)
