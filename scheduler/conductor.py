"""The loop of a job: what a crew says is written down, then the state machine hears of it, then
what it wants done is given out.

In that order: whatever counted in a decision is on record, and nothing is on record that came from
a worker which had been given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tunefarm.errors import Failure, FailureKind, JobFailed
from tunefarm.scheduler.crew import Answered, Crew, Died, Heard, Raised
from tunefarm.scheduler.losses import LOST_LIMIT, Losses
from tunefarm.scheduler.messages import (
    Assignment,
    Builders,
    Done,
    Event,
    Fact,
    Instruction,
    Joined,
    Lease,
    Left,
    Lost,
    Phase,
    RunProcess,
    Screen,
)
from tunefarm.scheduler.plausible import Implausible
from tunefarm.scheduler.state import TargetState

FLAGS = 3
"""Reports that cannot be true until a unit is not asked any more."""


@dataclass
class Conductor:
    """Runs one state machine with one crew.

    Args:
        work: what an instruction comes to, for a worker.
        record: takes an answer to an instruction down, and says which fact it is.
        gave_up: the same, of work that was lost too often; None where the job cannot go on.
        raised: the same, of an exception in a worker; raises to end the job.
        stale: hears of what came too late.
        flag: hears which unit reported what cannot be true, and why.
        say: tells people.
        together: all that is written inside is one transaction.
        entered: called when the phase has changed.
    """

    state: TargetState
    crew: Crew
    work: Callable[[Instruction], Any]
    record: Callable[[Instruction, Any], Fact]
    gave_up: Callable[[Instruction, Failure], Fact | None]
    raised: Callable[[Instruction, Exception], Fact]
    stale: Callable[[Heard], None] = lambda heard: None
    flag: Callable[[str, str], None] = lambda unit, reason: None
    say: Callable[[str], None] = lambda text: None
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    entered: Callable[[Phase], None] = lambda phase: None
    losses: Losses = field(default_factory=Losses)
    flags: Counter[str] = field(default_factory=Counter)

    def give(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            self.crew.give(assignment, self.work(assignment.instruction))

    def turn(self, limit_s: float, events: Sequence[Event] = ()) -> None:
        """Hear the crew, and let what follows be done.

        Args:
            limit_s: seconds to wait for it at most.
            events: what has happened besides.
        """
        follows: list[Phase | Assignment] = []
        heard = self.crew.wait(limit_s)
        with self.together():
            for event in events:
                follows += self._handle(event)
            for one in heard:
                for event in self._events(one):
                    follows += self._handle(event)
        # All of it is durable now; only what has died with this process is not.
        for what in follows:
            if isinstance(what, Phase):
                self.entered(what)
            else:
                self.give([what])

    def _handle(self, event: Event) -> list[Phase | Assignment]:
        before = self.state.phase
        assignments = self.state.handle(event)
        entered = [self.state.phase] if self.state.phase is not before else []
        return [*entered, *assignments]

    def _events(self, heard: Heard) -> list[Event]:
        match heard:
            case Joined(unit) if self.flags[unit] >= FLAGS:
                return []  # what it says was not true too often
            case Joined() | Builders():
                return [heard]
            case Left(unit, gives_way):
                held = self.state.leases.on(unit)
                lost = self._lost(held, innocent=gives_way) if held is not None else []
                return [*lost, heard]
            case _ if not self.state.leases.holds(heard.lease):
                self.stale(heard)
                return []
        instruction = self.state.leases.of(heard.lease)
        match heard:
            case Answered(lease, answer):
                try:
                    return [Done(lease, self.record(instruction, answer))]
                except Implausible as error:
                    return self._flagged(lease, instruction, str(error))
            case Raised(lease, error):
                return [Done(lease, self.raised(instruction, error))]
            case Died(lease, reason, innocent):
                self.say(f"a worker died ({reason}); giving its work again")
                return self._lost(lease, innocent)

    def _flagged(self, lease: Lease, instruction: Instruction, reason: str) -> list[Event]:
        """The work again, elsewhere where there is another unit; whoever says such things often is
        not asked any more.

        Raises:
            JobFailed: it was the last unit.
        """
        assert isinstance(instruction, Screen | RunProcess), "of nothing else is this asked"
        unit = instruction.unit
        self.flag(unit, reason)
        self.flags[unit] += 1
        if self.flags[unit] < FLAGS:
            return self._lost(lease, innocent=False)
        if set(self.state.leases.units) == {unit}:
            raise JobFailed(
                f"{unit} reports what cannot be true: {reason}",
                hint="Probe it again (tunefarm devices probe); its roof may have been measured "
                "while the machine was busy.",
            )
        return [Left(unit)]

    def _lost(self, lease: Lease, innocent: bool) -> list[Event]:
        """Its work again with another worker, a few times."""
        instruction = self.state.leases.of(lease)
        if innocent or self.losses.again(instruction):
            return [Lost(lease)]
        failure = Failure(FailureKind.INFRASTRUCTURE, f"its worker died {LOST_LIMIT} times")
        fact = self.gave_up(instruction, failure)
        if fact is None:
            raise JobFailed(f"{instruction}: {failure.message}", hint="See the job's log.")
        return [Done(lease, fact)]
