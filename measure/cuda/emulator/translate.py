"""From instructions to what the machine does: each becomes a function of the run, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator import barriers, engine, groups, in_flight, warps
from tunefarm.measure.cuda.emulator.faults import Unsupported
from tunefarm.measure.cuda.emulator.memory import (
    LOCAL,
    PARAMETER_BITS,
    PARAMETERS,
    RANK_BITS,
    SHARED,
)
from tunefarm.measure.cuda.emulator.operations import COMBINED, operation
from tunefarm.measure.cuda.emulator.ptx import (
    SIZES,
    Address,
    Instruction,
    Kernel,
    Literal,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
    space_of,
)
from tunefarm.measure.cuda.emulator.values import DTYPES, UNSIGNED, Array, literal, resized, spread

SPECIAL = {
    *(f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"),
    *("%laneid", "%warpid", "WARP_SZ", "%cluster_ctarank"),
}
"""Registers that a `machine.Run` knows."""
Step = Callable[[Any], None]
"""Of a `machine.Run`."""
Value = Callable[[Any], Array]


@dataclass(frozen=True)
class Block:
    """Instructions that are done one after another.

    Attributes:
        steps: (number of the instruction, what it does).
        ends: ``falls`` into the next block, ``branch``, ``barrier`` (of a block), ``cluster`` (its
            barrier), ``wait`` or ``exit``.
        last: number of the instruction that ends it.
        after, target: numbers of the next block, and of the one that a branch leads to.
        passes: of a ``wait``, which is all that its block is: who goes on.
    """

    steps: tuple[tuple[int, Step], ...]
    ends: str
    last: int
    guard: Register | None
    after: int
    target: int = -1
    passes: Value | None = None


@dataclass(frozen=True)
class Code:
    """`grain`: bytes of the shortest access to shared memory; `shared_size`: that is declared."""

    kernel: Kernel
    blocks: tuple[Block, ...]
    shared_size: int
    local_size: int
    grain: int


def translate(kernel: Kernel, constants: dict[str, int]) -> Code:
    """
    Args:
        constants: addresses of the module's variables.

    Raises:
        Unsupported: an instruction that is not known.
        Race: registers are touched while tensor cores have them.
    """
    in_flight.check(kernel)
    shared, shared_size = _laid_out(kernel.shared, SHARED)
    local, local_size = _laid_out(kernel.local, LOCAL)
    make = _Translator(kernel, {**constants, **shared, **local})
    code = kernel.instructions
    starts = sorted({0, *kernel.labels.values(), *(n + 1 for n, i in enumerate(code) if _ends(i)),
                     *(n for n, i in enumerate(code) if _ends(i) == "wait")})  # fmt: skip
    starts = [one for one in starts if one < len(code)]
    number = {start: index for index, start in enumerate(starts)}
    blocks = []
    for index, (start, end) in enumerate(zip(starts, [*starts[1:], len(code)], strict=True)):
        how = _ends(code[end - 1])
        inner = range(start, end - 1 if how else end)
        steps = tuple((at, step) for at in inner for step in [_step(make, code[at])] if step)
        target = -1
        if how == "branch":
            label = code[end - 1].operands[-1]
            assert isinstance(label, Symbol)
            target = number.get(kernel.labels[label.name], len(starts))
        last = code[end - 1]
        passes = barriers.waiting(make, last) if how == "wait" else None
        blocks.append(Block(steps, how or "falls", end - 1, last.guard, index + 1, target, passes))
    blocks.append(Block((), "exit", max(len(code) - 1, 0), None, len(starts) + 1))
    return Code(kernel, tuple(blocks), shared_size, local_size, _grain(code))


def _step(make: _Translator, instruction: Instruction) -> Step | None:
    try:
        return make.step(instruction)
    except (KeyError, ValueError, IndexError, AssertionError) as error:
        raise Unsupported(instruction.text) from error


def _laid_out(variables: list[Any], window: int) -> tuple[dict[str, int], int]:
    places, at = {}, 0
    for one in sorted(variables, key=lambda one: one.size == 0):  # what the launch adds is last
        at = -(-at // one.align) * one.align
        places[one.name] = window + at
        at += one.size
    return places, at


def _ends(instruction: Instruction) -> str:
    name = instruction.parts[0]
    if name == "bra":
        return "branch"
    if name in ("ret", "exit"):
        return "exit"
    if barriers.waits(instruction):
        return "wait"
    if instruction.parts[:3] == ("barrier", "cluster", "wait"):
        if instruction.guard is not None:
            raise Unsupported(instruction.text)
        return "cluster"
    if instruction.parts[:3] == ("barrier", "cluster", "arrive"):
        return ""
    if name in ("bar", "barrier") and instruction.parts[1] != "warp":
        known = instruction.parts[1:2] in (("sync",), ("cta",)) and len(instruction.operands) == 1
        if not known or instruction.guard is not None:
            raise Unsupported(instruction.text)
        return "barrier"
    return ""


def _grain(code: list[Instruction]) -> int:
    """Bytes of the shortest thing that is read or written in shared memory, at most four."""
    found = [4]
    for one in code:
        if one.parts[0] in ("ld", "st") and not {"global", "param", "local", "const"} & {
            *one.parts
        }:
            found.append(SIZES.get(one.parts[-1], 4))
        if one.parts[0] in ("wmma", "ldmatrix", "wgmma"):
            found.append(min((SIZES[p] for p in one.parts if p in SIZES), default=2))
    return min(found)


_NOTHING = {
    *("membar", "fence", "prefetch", "prefetchu", "discard", "applypriority", "nanosleep"),
    *("pmevent", "griddepcontrol", "setmaxnreg"),
}
"""Instructions that change nothing that can be seen here: all is done in order."""


def _fence(run: Any) -> None:
    """For whoever comes to shared memory another way than threads."""
    run.groups.fence()
    run.barriers.fence()


class _Translator:
    def __init__(self, kernel: Kernel, symbols: dict[str, int]) -> None:
        self._kernel = kernel
        self._symbols = symbols

    def step(self, instruction: Instruction) -> Step | None:
        """None for what does nothing."""
        name = instruction.parts[0]
        if instruction.parts[:3] == ("fence", "proxy", "async"):
            return _fence
        if instruction.parts[:2] == ("fence", "mbarrier_init"):
            return lambda run: run.barriers.fence()
        if name in _NOTHING or instruction.parts[:3] == ("barrier", "cluster", "arrive"):
            return None
        special = getattr(self, "_" + name, None) or self._of_a_warp(instruction)
        made = special(instruction) if special else self._computing(instruction)
        return made if instruction.guard is None else self._guarded(made, instruction.guard)

    def _guarded(self, step: Step, guard: Register) -> Step:
        number, negated = guard.number, guard.negated

        def under(run: Any) -> None:
            said = spread(run.registers[number] ^ negated, run.shape)
            before = run.mask
            mask = said if before is None else said & before
            if mask.any():
                run.mask = None if mask.all() else mask
                step(run)
                run.mask = before

        return under

    # ------------------------------------------------------------------------------ operands

    def value(self, operand: Operand, kind: str) -> Value:
        """What an operand holds, as a `kind`."""
        dtype = DTYPES[kind]
        if isinstance(operand, Literal):
            constant = literal(operand.text, kind)
            return lambda run: constant
        if isinstance(operand, Register):
            number = operand.number
            if operand.negated:
                return lambda run: ~run.registers[number]
            held = DTYPES[self._kernel.registers[number]]
            if held == dtype:
                return lambda run: run.registers[number]
            return lambda run: resized(run.registers[number], dtype)
        if isinstance(operand, Symbol):
            return self._symbol(operand.name, dtype)
        raise Unsupported(str(operand))

    def _symbol(self, name: str, dtype: Any) -> Value:
        if name in self._symbols:
            place = self._symbols[name]
            if np.dtype(dtype).itemsize == 4:  # an address within its own window
                place -= SHARED if place < LOCAL else LOCAL
            constant = UNSIGNED[np.dtype(dtype).itemsize](place)
            return lambda run: constant
        if name.startswith("%") or name == "WARP_SZ":
            if name in ("%clock", "%clock64", "%globaltimer"):
                return lambda run: np.zeros(1, dtype)[0]
            if name not in SPECIAL:
                raise Unsupported(name)
            return lambda run: resized(run.special[name], dtype)
        parameters = [parameter for parameter, _ in self._kernel.parameters]
        if name in parameters:
            place = PARAMETERS + (parameters.index(name) << PARAMETER_BITS)
            constant = UNSIGNED[np.dtype(dtype).itemsize](place)
            return lambda run: constant
        raise Unsupported(f"the name {name}")

    def put(self, operand: Operand, kind: str) -> Callable[[Any, Array], None]:
        """Into a register, from a `kind`."""
        if isinstance(operand, Symbol) and operand.name == "_":
            return lambda run, value: None
        if not isinstance(operand, Register):
            raise Unsupported(str(operand))
        number = operand.number
        held = DTYPES[self._kernel.registers[number]]
        if held == DTYPES[kind]:
            return lambda run, value: run.put(number, value)
        return lambda run, value: run.put(number, resized(value, held))

    def address(self, operand: Operand) -> Value:
        if isinstance(operand, Register):
            operand = Address(operand, 0)
        assert isinstance(operand, Address), operand
        base, offset = operand.base, operand.offset
        if isinstance(base, Register):
            kind = "b64" if SIZES[self._kernel.registers[base.number]] == 8 else "b32"
        else:
            kind = "b64"
        of = self.value(base, kind)
        if not offset:
            return of
        size = SIZES[kind]
        constant = UNSIGNED[size](offset & ((1 << 8 * size) - 1))
        return lambda run: of(run) + constant

    # --------------------------------------------------------------------------- computing

    def _computing(self, instruction: Instruction) -> Step:
        what = operation(instruction.parts)
        target, *given = instruction.operands
        values = [self.value(o, kind) for o, kind in zip(given, what.takes, strict=True)]
        compute = what.compute
        if isinstance(target, Pair):  # a comparison, and its contrary
            if len(values) > 2:
                raise Unsupported(instruction.text)
            one, other = self.put(target.first, "pred"), self.put(target.second, "pred")

            def both(run: Any) -> None:
                made = compute(*(value(run) for value in values))
                one(run, made)
                other(run, ~made)

            return both
        put = self.put(target, what.gives)
        if len(values) == 2:
            first, second = values
            return lambda run: put(run, compute(first(run), second(run)))
        if len(values) == 3:
            first, second, third = values
            return lambda run: put(run, compute(first(run), second(run), third(run)))
        return lambda run: put(run, compute(*(value(run) for value in values)))

    def _mov(self, instruction: Instruction) -> Step:
        target, source = instruction.operands
        kind = instruction.parts[-1]
        if isinstance(target, Vector):
            return self._taken_apart(target, self.value(source, kind), SIZES[kind])
        put = self.put(target, kind)
        if isinstance(source, Vector):
            return self._put_together(put, source, SIZES[kind])
        value = self.value(source, kind)
        return lambda run: put(run, value(run))

    def _taken_apart(self, target: Vector, value: Value, size: int) -> Step:
        each = size // len(target.parts)
        puts = [self.put(one, f"b{8 * each}") for one in target.parts]
        whole = UNSIGNED[size]

        def apart(run: Any) -> None:
            bits = value(run)
            for number, put in enumerate(puts):
                put(run, (bits >> whole(8 * each * number)).astype(UNSIGNED[each]))

        return apart

    def _put_together(self, put: Callable[[Any, Array], None], source: Vector, size: int) -> Step:
        each = size // len(source.parts)
        values = [self.value(one, f"b{8 * each}") for one in source.parts]
        whole = UNSIGNED[size]

        def together(run: Any) -> None:
            made = whole(0)
            for number, value in enumerate(values):
                made = made | (value(run).astype(whole) << whole(8 * each * number))
            put(run, made)

        return together

    def _mapa(self, instruction: Instruction) -> Step:
        """An address in shared memory as that of another block of the cluster."""
        if instruction.parts[1:] != ("shared::cluster", "u32"):
            raise Unsupported(instruction.text)
        target, place, rank = instruction.operands
        put = self.put(target, "u32")
        of, which = (self.value(one, "u32") for one in (place, rank))
        return lambda run: put(run, of(run) | (which(run) + np.uint32(1)) << np.uint32(RANK_BITS))

    def _cvta(self, instruction: Instruction) -> Step:
        """Between an address in one kind of memory and one that tells which; of global memory they
        are the same."""
        target, source = instruction.operands
        put, value = self.put(target, "b64"), self.value(source, "b64")
        start = {"shared": SHARED, "local": LOCAL}.get(space_of(instruction.parts), 0)
        if not start:
            return lambda run: put(run, value(run))
        if "to" in instruction.parts:
            return lambda run: put(run, value(run) - np.uint64(start))
        return lambda run: put(run, value(run) | np.uint64(start))

    # ------------------------------------------------------------------------------ memory

    def _ld(self, instruction: Instruction) -> Step:
        target, source = instruction.operands
        kind, space = instruction.parts[-1], space_of(instruction.parts)
        targets = target.parts if isinstance(target, Vector) else (target,)
        puts = [self.put(one, kind) for one in targets]
        dtype, size = DTYPES[kind], SIZES[kind] * len(puts)
        if space == "param":
            return self._parameter(source, puts, kind)
        address = self.address(source)

        def load(run: Any) -> None:
            values = run.load(space, address(run), dtype, size)
            for put, value in zip(puts, values, strict=True):
                put(run, value)

        return load

    def _parameter(self, source: Operand, puts: list[Any], kind: str) -> Step:
        assert isinstance(source, Address)
        assert isinstance(source.base, Symbol)
        name, offset, dtype = source.base.name, source.offset, DTYPES[kind]

        def load(run: Any) -> None:
            held = run.parameters[name]
            for number, put in enumerate(puts):
                put(run, np.frombuffer(held, dtype, 1, offset + number * SIZES[kind])[0])

        return load

    def _st(self, instruction: Instruction) -> Step:
        target, source = instruction.operands
        kind, space = instruction.parts[-1], space_of(instruction.parts)
        sources = source.parts if isinstance(source, Vector) else (source,)
        values = [self.value(one, kind) for one in sources]
        address = self.address(target)
        return lambda run: run.store(space, address(run), [value(run) for value in values])

    def _atom(self, instruction: Instruction) -> Step:
        target, place, source = instruction.operands
        return self._combined(instruction, self.put(target, instruction.parts[-1]), place, source)

    def _red(self, instruction: Instruction) -> Step:
        place, source = instruction.operands
        return self._combined(instruction, lambda run, value: None, place, source)

    def _combined(
        self, instruction: Instruction, put: Any, place: Operand, source: Operand
    ) -> Step:
        kind, space = instruction.parts[-1], space_of(instruction.parts)
        how = next((COMBINED[p] for p in instruction.parts if p in COMBINED), None)
        if how is None or kind in ("f16", "bf16", "f16x2", "bf16x2"):
            raise Unsupported(instruction.text)
        address, value = self.address(place), self.value(source, kind)
        return lambda run: put(run, run.add_to(space, address(run), value(run), how))

    def _cp(self, instruction: Instruction) -> Step:
        """Copies that go on beside: ``cp.async`` in its three forms."""
        parts = instruction.parts
        if parts[:3] == ("cp", "async", "bulk"):
            return engine.make(self, instruction)
        if parts[1] != "async":
            raise Unsupported(instruction.text)
        if parts[2] == "commit_group":
            return lambda run: run.copies.close()
        if parts[2] == "wait_all":
            return lambda run: run.copies.wait_for_all()
        if parts[2] == "wait_group":
            (count,) = instruction.operands
            assert isinstance(count, Literal)
            but = int(count.text)
            return lambda run: run.copies.wait(but)
        place, source, size, *rest = instruction.operands
        assert isinstance(size, Literal)
        bytes_ = int(size.text)
        if rest and (len(rest) > 1 or not self._is_size(rest[0])):
            raise Unsupported(instruction.text)
        given = self.value(rest[0] if rest else size, "u32")
        target, of = self.address(place), self.address(source)
        return lambda run: run.copies.ask(target(run), of(run), bytes_, given(run))

    def _is_size(self, operand: Operand) -> bool:
        """And no policy of a cache, nor a predicate."""
        if isinstance(operand, Register):
            return SIZES[self._kernel.registers[operand.number]] == 4
        return isinstance(operand, Literal)

    # ------------------------------------------------------------------------------- warps

    def _of_a_warp(self, instruction: Instruction) -> Callable[[Instruction], Step] | None:
        others = {"wgmma": groups.make, "mbarrier": barriers.make}
        make = {**warps.KNOWN, **others}.get(instruction.parts[0])
        return None if make is None else lambda one: make(self, one)
