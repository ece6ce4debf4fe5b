"""Registers that tensor cores still read or write, while the threads go on.

Here products are made at once, so that what is read too early would be right. So a kernel is looked
through before it runs: from a group's product to where it is waited for, on every way, nothing else
may touch its sums, nor change the rows that it reads from registers (NVIDIA, Parallel Thread
Execution ISA, "Asynchronous Warpgroup Level Matrix Instructions", on accessing registers). What is
but moved to another register is as much in flight there, for a move is the compiler's way to join
two names of one register.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefarm.measure.cuda.emulator.faults import Race
from tunefarm.measure.cuda.emulator.ptx import (
    Address,
    Instruction,
    Kernel,
    Literal,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)


@dataclass(frozen=True)
class _Touched:
    """Registers of some products: of their sums, and of rows that they read."""

    sums: frozenset[int] = frozenset()
    rows: frozenset[int] = frozenset()

    def __or__(self, other: _Touched) -> _Touched:
        return _Touched(self.sums | other.sums, self.rows | other.rows)


_State = tuple[_Touched, ...]
"""What is in flight: products that no group of instructions has been closed over, then groups, the
latest first."""


_MOST = 9
"""Groups that are told apart; older ones count as the last of these."""


def check(kernel: Kernel) -> None:
    """
    Raises:
        Race: an instruction touches what is in flight.
    """
    code = kernel.instructions
    if not any(one.parts[:2] == ("wgmma", "mma_async") for one in code):
        return
    states: dict[int, _State] = {0: (_Touched(),)}
    due = [0]
    while due:
        at = due.pop()
        if at >= len(code):
            continue
        after = _after(kernel, code[at], states[at])
        for following in _following(kernel, at):
            known = states.get(following)
            joined = after if known is None else _joined(known, after)
            if joined != known:
                states[following] = joined
                due.append(following)


def _following(kernel: Kernel, at: int) -> Iterator[int]:
    one = kernel.instructions[at]
    leaves = one.parts[0] in ("ret", "exit")
    if one.parts[0] == "bra":
        label = one.operands[-1]
        assert isinstance(label, Symbol)
        yield kernel.labels[label.name]
    if one.guard is not None or not (leaves or one.parts[0] == "bra"):
        yield at + 1


def _joined(one: _State, other: _State) -> _State:
    longest = max(len(one), len(other))
    return tuple(
        (one[n] if n < len(one) else _Touched()) | (other[n] if n < len(other) else _Touched())
        for n in range(longest)
    )


def _after(kernel: Kernel, one: Instruction, state: _State) -> _State:
    sums = frozenset[int]().union(*(some.sums for some in state))
    rows = frozenset[int]().union(*(some.rows for some in state))
    if one.parts[0] == "wgmma":
        # Sums alone may be added to before they are there.
        if one.parts[1] == "mma_async":
            target, left = one.operands[:2]
            read = {*_registers(left)} if isinstance(left, Vector) else set()
            if read & sums or {*_registers(target)} & rows:
                raise Race(f"{kernel.name}: {one.text}: registers that tensor cores still have")
        return _of_group(one, state)
    reads, writes = _touched(one)
    if one.parts[0] == "mov" and len(reads) == len(writes) == 1 and reads <= sums | rows:
        return tuple(
            _Touched(_also(some.sums, reads, writes), _also(some.rows, reads, writes))
            for some in state
        )
    if reads & sums or writes & (sums | rows):
        what = "sums" if (reads | writes) & sums else "rows"
        raise Race(f"{kernel.name}: {one.text}: {what} that tensor cores still have")
    return state


def _also(known: frozenset[int], reads: set[int], writes: set[int]) -> frozenset[int]:
    return known | writes if reads & known else known


def _of_group(one: Instruction, state: _State) -> _State:
    what = one.parts[1]
    if what == "mma_async":
        target, left = one.operands[:2]
        rows = frozenset(_registers(left)) if isinstance(left, Vector) else frozenset[int]()
        return (state[0] | _Touched(frozenset(_registers(target)), rows), *state[1:])
    if what == "commit_group":
        *recent, last = (_Touched(), *_without_last_empty(state))
        if len(recent) == _MOST:  # a loop that never waits
            recent[-1] |= last
            return tuple(recent)
        return (*recent, last)
    if what == "wait_group":
        (number,) = one.operands
        assert isinstance(number, Literal)
        return _without_last_empty(state[: 1 + int(number.text)])
    return state


def _without_last_empty(state: _State) -> _State:
    """States of the same meaning are the same: there is an end to their joining."""
    while len(state) > 1 and state[-1] == _Touched():
        state = state[:-1]
    return state


_STORES = ("st", "red", "cp", "bar", "barrier", "bra", "mbarrier", "prefetch", "setmaxnreg")
"""Instructions without a result."""


def _touched(one: Instruction) -> tuple[set[int], set[int]]:
    """Registers that an instruction reads, and writes."""
    operands: Sequence[Operand] = one.operands
    writes: set[int] = set()
    if operands and one.parts[0] not in _STORES:
        first, *operands = operands
        writes = set(_registers(first))
    reads = {register for operand in operands for register in _registers(operand)}
    return reads, writes


def _registers(operand: Operand) -> Iterator[int]:
    if isinstance(operand, Register):
        yield operand.number
    elif isinstance(operand, Address):
        yield from _registers(operand.base)
    elif isinstance(operand, Vector):
        for part in operand.parts:
            yield from _registers(part)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)
