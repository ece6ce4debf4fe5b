"""One round of a benchmark: every runtime loaded in a process of its own, and timed by turns.

What a shared host takes away it takes for tenths of seconds, or for minutes: whoever is timed then
looks slow. In turns of a twentieth of a second, in no order, most of it is taken from all alike, so
that ratios keep what times lose. Whoever's turn it is not stands still, with all its threads.

Source of taking turns: Bulej et al., Duet Benchmarking, ICPE 2020, who run two programs at once;
here one at a time has all cores.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefarm.errors import TunefarmError, last_line
from tunefarm.measure.runner import MODEL_WAIT_S
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout, describe_exit
from tunefarm.results.runtimes.serve import Load, Loaded, TakeTurn, Turn

HANDLER = "tunefarm.results.runtimes.serve:serve"
SHORT_WAIT_S = 0.2
"""For the machine to be all there, before a turn, where a whole network's wait was in vain."""
MOST_TURNS = 500
"""Of a process: where more would fit they are longer, for each is drawn again and again."""
PATIENCE = 5.0
"""Times the seconds of samples that are spent on getting the least number of them."""


@dataclass(frozen=True)
class Report:
    """One process of one runtime in one of its settings.

    Attributes:
        load_s, first_s, calls, max_rel_err, right: see `serve.Loaded`.
        turns: seconds of an inference, by turn; the same place is the same turn of all.
        peak_bytes: see `serve.Turn`.
        disturbed: turns in which the machine was not all there, the second time neither.
    """

    load_s: float
    first_s: float
    turns: tuple[tuple[float, ...], ...]
    calls: int
    peak_bytes: int
    max_rel_err: float
    right: bool
    disturbed: int = 0


def call(request: Any, environment: dict[str, str], limit_s: float) -> Any:
    """The answer of a fresh process, or in one line why there is none."""
    with Child(HANDLER, env=environment, torch=True) as child:
        return _answer(child, request, limit_s)


def _answer(child: Child, request: Any, limit_s: float) -> Any:
    try:
        return child.call(request, limit_s)
    except ChildTimeout:
        return f"no answer within {limit_s:g} s"
    except TunefarmError as error:
        return error.message
    except (ChildDied, ChildError) as error:
        return last_line(error, 200)


@dataclass(frozen=True)
class Pace:
    """How long each is timed in a round.

    Attributes:
        seconds: of samples; `least` samples at least.
        turn_s: of samples in a row.
    """

    seconds: float
    least: int
    turn_s: float

    @property
    def of_a_turn(self) -> float:
        return min(self.seconds, max(self.turn_s, self.seconds / MOST_TURNS))


@dataclass
class Contestant:
    """A runtime's process in a round, which stands still unless it is asked something.

    Args:
        name: for who waits.
        load: how it is loaded.
        environment: of its process.
        limit_s: the most that one answer may take.

    Attributes:
        out: why it takes part no more, empty where it does.
    """

    name: str
    load: Load
    environment: dict[str, str]
    limit_s: float
    out: str = ""
    _child: Child = field(init=False)
    _loaded: Loaded | None = None
    _turns: list[Turn] = field(default_factory=list)
    _disturbed: int = 0

    def __post_init__(self) -> None:
        self._child = Child(HANDLER, env=self.environment, torch=True)

    def begin(self) -> None:
        self._loaded = self._ask(self.load)

    def is_due(self, pace: Pace) -> bool:
        """Whether it has not been timed for its seconds; with too few samples, for `PATIENCE` times
        as many."""
        enough = sum(len(turn.samples) for turn in self._turns) >= pace.least
        return self._is_within((1.0 if enough else PATIENCE) * pace.seconds)

    def goes_on(self, pace: Pace) -> bool:
        """Whether it takes turns as long as others are due, so that all have the same ones; who is
        far slower need not."""
        return self._is_within(PATIENCE * pace.seconds)

    def _is_within(self, seconds: float) -> bool:
        if self.out or self._loaded is None:
            return False
        return self._loaded.calls * sum(sum(turn.samples) for turn in self._turns) < seconds

    def take_turn(self, seconds: float) -> Turn | None:
        """Its samples, not counted yet (`count`); None where it is `out`."""
        code = self._child.ended
        if code is not None and not self.out:  # nothing is loaded in a new process
            self.out = f"failed: {describe_exit(code)}, while others had their turn"
        turn: Turn | None = None if self.out else self._ask(TakeTurn(seconds))
        return turn

    def count(self, turn: Turn, steady: bool) -> None:
        self._turns.append(turn)
        self._disturbed += not (steady and turn.near)

    def report(self) -> Report | None:
        """None where it is `out`."""
        loaded = self._loaded
        if self.out or loaded is None:
            return None
        turns, peak = tuple(turn.samples for turn in self._turns), self._turns[-1].peak_bytes
        return Report(
            loaded.load_s,
            loaded.first_s,
            turns,
            loaded.calls,
            peak,
            loaded.max_rel_err,
            loaded.right,
            self._disturbed,
        )

    def end(self) -> None:
        self._child.kill()

    def _ask(self, request: Any) -> Any:
        answer = _answer(self._child, request, self.limit_s)
        self._child.freeze()
        if isinstance(answer, str):
            self.out = f"failed: {answer}"
            self._child.kill()  # its memory is others'
            return None
        return answer


def play(
    contestants: Sequence[Contestant],
    pace: Pace,
    rng: random.Random,
    steady: Callable[[float], bool],
    say: Callable[[str], None],
) -> list[Report | None]:
    """Load all, have them take turns until none is due any more, and end them; the reports, in
    their order.

    Args:
        steady: waits so many seconds, at most, for the machine to be all there; whether it is. A
            turn of all in which it was not any more is taken again, once.
        say: takes a line about what happens now.
    """
    limit_s = MODEL_WAIT_S
    try:
        for one in rng.sample(contestants, len(contestants)):
            say(one.name)
            steady(limit_s)
            one.begin()
        while any(one.is_due(pace) for one in contestants):
            for _ in range(2):
                before = steady(limit_s)
                limit_s = MODEL_WAIT_S if before else SHORT_WAIT_S
                turns = _turn_of_all(contestants, pace, rng)
                there = before and steady(0.0)
                if there or not before:  # where it is slow for good, again is no better
                    break
            for one, turn in turns:
                if turn is not None:
                    one.count(turn, there)
        return [one.report() for one in contestants]
    finally:
        for one in contestants:
            one.end()


def _turn_of_all(
    contestants: Sequence[Contestant], pace: Pace, rng: random.Random
) -> list[tuple[Contestant, Turn | None]]:
    active = [one for one in contestants if one.goes_on(pace)]
    order = rng.sample(active, len(active))
    return [(one, one.take_turn(pace.of_a_turn)) for one in order]
