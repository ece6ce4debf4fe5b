"""Who does what: the units of one target's device, and the leases under which work is given out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tunefarm.scheduler.messages import Assignment, Instruction, Lease, RunProcess, Screen

Queue = OrderedDict[str, None]
"""Names in order, any of which may be taken out."""


@dataclass
class Leases:
    """Of one driver, whose `epoch` it is: leases of another one are not held."""

    epoch: int = 0
    units: dict[str, Instruction | None] = field(default_factory=dict)
    """What each does now."""
    idle: Queue = field(default_factory=OrderedDict)
    """Of the units those that do nothing, longest first."""
    held: dict[int, Instruction] = field(default_factory=dict)
    given: int = 0

    def holds(self, lease: Lease) -> bool:
        """Whether an answer under `lease` counts."""
        return lease.epoch == self.epoch and lease.number in self.held

    def of(self, lease: Lease) -> Instruction:
        """What was given out under a lease that is held."""
        return self.held[lease.number]

    def on(self, unit: str) -> Lease | None:
        """Of what a unit does now."""
        doing = self.units.get(unit)
        numbers = (n for n, held in self.held.items() if doing is not None and held is doing)
        number = next(numbers, None)
        return Lease(self.epoch, number) if number is not None else None

    def give(self, instruction: Instruction) -> Assignment:
        """Under a new lease; its unit, if it has one, does this from now on."""
        self.given += 1
        self.held[self.given] = instruction
        if isinstance(instruction, Screen | RunProcess):
            self.units[instruction.unit] = instruction
            del self.idle[instruction.unit]
        return Assignment(Lease(self.epoch, self.given), instruction)

    def release(self, lease: Lease) -> Instruction:
        """Whoever held it is free again."""
        instruction = self.held.pop(lease.number)
        if isinstance(instruction, Screen | RunProcess) and instruction.unit in self.units:
            self._free(instruction.unit)
        return instruction

    def join(self, unit: str) -> None:
        if unit not in self.units:
            self._free(unit)

    def leave(self, unit: str) -> Instruction | None:
        """What it had in hand, if it did anything."""
        lease = self.on(unit)
        self.units.pop(unit, None)
        self.idle.pop(unit, None)
        return self.release(lease) if lease is not None else None

    def _free(self, unit: str) -> None:
        self.units[unit] = None
        self.idle[unit] = None

    def validate(self) -> None:
        """No unit does two things, and what one does is held.

        Raises:
            AssertionError: with what is wrong.
        """
        on_units = [i for i in self.held.values() if isinstance(i, Screen | RunProcess)]
        assert {i.unit: i for i in on_units} == {u: i for u, i in self.units.items() if i}
        assert len({i.unit for i in on_units}) == len(on_units), "a unit does two things"
        assert set(self.idle) == {u for u, doing in self.units.items() if doing is None}
