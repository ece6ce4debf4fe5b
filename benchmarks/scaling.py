"""What the scheduler itself costs: simulated farms of up to a thousand devices.

    python benchmarks/scaling.py scaling.json

The state machine, the conductor, the ledger and the journal are those of a job. Workers are on
paper: proposing, building and measuring take simulated time, and every second that the scheduler
really takes passes on the simulated clock too, so that devices wait for it as they would. Ideal is
that every device measures without a pause from the first candidate to the last.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click

from tunefarm.devices.device import Device
from tunefarm.devices.target import make_target
from tunefarm.home import Home
from tunefarm.measure.build import BuildOutcome, Library
from tunefarm.measure.facts import Screening, ScreenOutcome
from tunefarm.measure.protocol import Protocol
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.scheduler.conductor import Conductor
from tunefarm.scheduler.crew import Answered, Heard
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import (
    Assignment,
    Build,
    Built,
    Fact,
    Imported,
    Instruction,
    Joined,
    Phase,
    Propose,
    Proposed,
    Screen,
    Screened,
    Task,
)
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate, baseline

MEASURE_S, BUILD_S, PROPOSE_S = 0.3, 0.4, 0.002
"""Of one candidate: as on two cores with SqueezeNet's kernels."""
KERNELS = 30
SIZES = ((10, 20_000), (64, 100_000), (100, 100_000), (1000, 1_000_000))
"""Devices and candidates."""
JOURNALED = 20_000
"""Candidates of the runs that keep a journal."""


@dataclass
class Paper:
    """A crew whose workers answer after simulated seconds.

    Attributes:
        now: simulated seconds.
        took: real seconds spent in here, which are not the scheduler's.
    """

    seed: int
    now: float = 0.0
    took: float = 0.0
    measuring: float = 0.0
    """Simulated seconds that devices measured."""
    on_the_way: list[tuple[float, int, Heard]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def give(self, assignment: Assignment, work: Any) -> None:
        began = time.perf_counter()
        jitter = self.rng.uniform(0.5, 1.5)
        match assignment.instruction:
            case Propose(task, count, _):
                made = range(next(self.numbers), 10**12)
                answer: Any = tuple(
                    Candidate(task, "llvm", "tc", f"{n}-{k}", "paper")
                    for n, k in zip(itertools.repeat(made.start), range(count), strict=False)
                )
                seconds = PROPOSE_S * count
            case Build(candidate):
                answer = BuildOutcome(Library(Path(candidate), ()), None, 0.1)
                seconds = BUILD_S * jitter
            case Screen():
                samples = tuple(1e-3 * self.rng.uniform(0.5, 2.0) for _ in range(20))
                answer = ScreenOutcome(Screening(samples, False), None), None
                seconds = MEASURE_S * jitter
                self.measuring += seconds
            case _:
                answer, seconds = {}, 0.0
        arrival = (self.now + seconds, next(self.numbers), Answered(assignment.lease, answer))
        heapq.heappush(self.on_the_way, arrival)
        self.took += time.perf_counter() - began

    def wait(self, limit_s: float) -> list[Heard]:
        """All that has arrived by now; where nothing has, the first that does."""
        began = time.perf_counter()
        if self.on_the_way:
            self.now = max(self.now, self.on_the_way[0][0])
        heard = []
        while self.on_the_way and self.on_the_way[0][0] <= self.now:
            heard.append(heapq.heappop(self.on_the_way)[2])
        self.took += time.perf_counter() - began
        return heard


def device() -> Device:
    target = make_target("llvm", {"mcpu": "cascadelake", "num-cores": 2})
    return Device("cpu-paper", "Paper", "paper", target, 2, 2**33, (1, 1, 1), (), ())


def paper_ledger(journal: Journal) -> Ledger:
    job = Job("paper-1", "paper", 0.0, "0", "m", {}, Protocol().to_dict())
    target = JobTarget("llvm", device().target, device(), "tc")
    journal.add_job(job, [target])
    journal.drive(job.id)
    return Ledger(journal, job, target)


def plain(instruction: Instruction, answer: Any) -> Fact:
    """The fact alone, taken down nowhere."""
    match instruction:
        case Propose(task, _, _):
            return Proposed(task, tuple(one.id for one in answer))
        case Build(candidate):
            return Built(candidate, True)
        case Screen(candidate, _, _):
            return Screened(candidate, answer[0].screening.samples[0])
    raise AssertionError(instruction)


def farm(units: int, candidates: int, journal: Journal | None) -> dict[str, Any]:
    """Tune on `units` devices, with builders enough for them."""
    crew = Paper(units)
    builders = int(units * BUILD_S / MEASURE_S) + 2
    limits = Limits(candidates, builders, shared_processor=False, patience=10**9)
    state = TargetState(limits)
    ledger = paper_ledger(journal) if journal is not None else None
    untuned = [baseline(f"t{n}", "llvm", "tc") for n in range(KERNELS)]
    state.restore(Imported(tuple(Task(one.task, 1, one.id) for one in untuned)))
    if ledger is not None:
        ledger.candidates.update({one.id: one for one in untuned})
    conductor = Conductor(
        state,
        crew,
        lambda instruction: instruction,
        ledger.take if ledger is not None else plain,
        lambda instruction, failure: None,
        lambda instruction, error: plain(instruction, error),
        **({"together": journal.together} if journal is not None else {}),
    )
    real = 0.0
    begun, measured_before = None, 0.0
    for unit in range(units):
        conductor.give(state.handle(Joined(f"unit{unit}")))
    while state.phase in (Phase.BASELINE, Phase.TUNE):
        if begun is None and state.phase is Phase.TUNE:
            begun, measured_before = crew.now, crew.measuring
        before, elsewhere = time.perf_counter(), crew.took
        conductor.turn(0.5)
        seconds = time.perf_counter() - before - (crew.took - elsewhere)
        real += seconds
        crew.now += seconds
    assert begun is not None
    ideal = (crew.measuring - measured_before) / units
    return {
        "devices": units,
        "candidates": state.measured,
        "journal": journal is not None,
        "scheduler_ms_per_candidate": 1e3 * real / state.measured,
        "of_ideal_throughput": ideal / (crew.now - begun),
        "candidates_per_s": state.measured / (crew.now - begun),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def look(journal: Journal) -> dict[str, Any]:
    """What a driver does first: look at every fact on record."""
    began = time.perf_counter()
    assert not journal.damage()
    seconds = time.perf_counter() - began
    return {"facts": sum(journal.fact_counts().values()), "look_s": seconds}


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--journal-url", help="PostgreSQL instead of SQLite, for the runs with a journal.")
@click.option("--most", type=int, default=1_000_000, help="Leave larger runs out.")
def main(output: Path, journal_url: str | None, most: int) -> None:
    """Run every size without a journal, the smaller ones with one; write OUTPUT."""
    rows = []
    for units, candidates in SIZES:
        for keep in (True, False):
            count = min(candidates, JOURNALED) if keep else candidates
            if count > most:
                continue
            with tempfile.TemporaryDirectory(dir=output.absolute().parent) as place:
                home = Home(Path(place)).prepare()
                journal = Journal(home, journal_url) if keep else None
                rows.append(farm(units, count, journal))
                if journal is not None:
                    rows[-1] |= look(journal)
                    journal.close()
            click.echo(json.dumps(rows[-1]))
    output.write_text(json.dumps({"runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
