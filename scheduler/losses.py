"""Work whose worker died: it is given out again, a few times."""

from __future__ import annotations

from collections import Counter

from tunefarm.scheduler.messages import (
    Build,
    Instruction,
    Propose,
    RunProcess,
    Screen,
    Step,
)

LOST_LIMIT = 3


class Losses:
    """Counts how often each piece of work was lost."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def again(self, instruction: Instruction) -> bool:
        """After one more loss: is it to be tried again?"""
        what = _subject(instruction)
        self._counts[what] += 1
        return self._counts[what] < LOST_LIMIT


def _subject(instruction: Instruction) -> tuple[str, str]:
    """What an instruction is about, whatever else it says: the same work has the same subject."""
    match instruction:
        case Propose(task, _, _):
            about = task
        case Build(candidate) | Screen(candidate, _, _):
            about = candidate
        case RunProcess(phase, process, _):
            about = f"{phase} {process}"
        case Step(phase):
            about = phase
    return type(instruction).__name__, about
