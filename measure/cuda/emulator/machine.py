"""Running a kernel: many blocks at once, all threads of them in one NumPy array.

Threads that go different ways do so by turns: those that are furthest behind in the program go
first, so that they meet again where their ways join.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tunefarm.measure.cuda.emulator.barriers import Barriers
from tunefarm.measure.cuda.emulator.copies import Copies
from tunefarm.measure.cuda.emulator.engine import Engine
from tunefarm.measure.cuda.emulator.faults import (
    EmulatorError,
    GivenUp,
    IllegalAddress,
    NeverEnds,
    Unsupported,
)
from tunefarm.measure.cuda.emulator.groups import Groups
from tunefarm.measure.cuda.emulator.memory import (
    GLOBAL,
    LOCAL,
    PARAMETER_BITS,
    PARAMETERS,
    PIECE,
    RANK_BITS,
    SHARED,
    WARP,
    WARP_BITS,
    Blocks,
    Global,
    Threads,
)
from tunefarm.measure.cuda.emulator.ptx import SIZES, Kernel, Module, Register
from tunefarm.measure.cuda.emulator.translate import Code, translate
from tunefarm.measure.cuda.emulator.values import DTYPES, Array, spread

_LANES = 8192
"""Threads that run at once, more or less: enough to make NumPy's calls worth it."""
_REGISTER_BYTES = 512 << 20

Triple = tuple[int, int, int]


class Machine:
    """A GPU: its memory, and whatever is launched on it.

    Args:
        watches: whether races in shared memory are looked for; it takes some time.
        most_steps: instructions of one block until a kernel is given up.
        memory_bytes: that can be allocated.
    """

    def __init__(
        self, watches: bool = True, most_steps: int = 50_000_000, memory_bytes: int = 1 << 30
    ) -> None:
        self.memory = Global(memory_bytes)
        self.watches = watches
        self.most_steps = most_steps
        self._loaded: dict[int, _Loaded] = {}

    def launch(
        self,
        module: Module,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[bytes],
        shared_bytes: int = 0,
    ) -> None:
        """Run it to its end.

        Args:
            grid, block: sizes along x, y and z.
            arguments: each parameter's bytes.
            shared_bytes: that are asked for, besides what the kernel declares.

        Raises:
            EmulatorError: what it did that it may not.
        """
        kernel = module.kernels[name]
        code = self._code(module, kernel)
        values = {
            parameter: value.ljust(size, b"\0")
            for (parameter, size), value in zip(kernel.parameters, arguments, strict=True)
        }
        if kernel.threads and prod(block) > kernel.threads:
            raise EmulatorError(f"{name}: {prod(block)} threads of {kernel.threads} at the most")
        if _triple(grid)[0] % kernel.cluster:
            raise EmulatorError(f"{name}: {grid[0]} blocks along x in clusters of {kernel.cluster}")
        together = self._together(kernel, prod(block))
        total = prod(grid)
        for first in range(0, total, together):
            numbers = np.arange(first, min(first + together, total), dtype=np.uint32)
            run = Run(self, code, _triple(grid), _triple(block), numbers, values, shared_bytes)
            run.to_the_end()

    def _code(self, module: Module, kernel: Kernel) -> Code:
        if id(module) not in self._loaded:
            places = {name: self._placed(content) for name, content in module.constants.items()}
            self._loaded[id(module)] = _Loaded(module, places)
        loaded = self._loaded[id(module)]
        if kernel.name not in loaded.codes:
            loaded.codes[kernel.name] = translate(kernel, loaded.places)
        return loaded.codes[kernel.name]

    def _placed(self, content: bytes) -> int:
        place = self.memory.allocate(len(content))
        self.memory.span(place, len(content))[:] = np.frombuffer(content, np.uint8)
        return place

    def unload(self, module: Module) -> None:
        """Forget it, if it was launched, and give its variables' memory back."""
        loaded = self._loaded.pop(id(module), None)
        for place in loaded.places.values() if loaded else ():
            self.memory.free(place)

    def _together(self, kernel: Kernel, threads: int) -> int:
        held = sum(SIZES[kind] for kind in kernel.registers) + 1
        clusters = min(_LANES, _REGISTER_BYTES // held) // (threads * kernel.cluster)
        return max(1, clusters) * kernel.cluster


@dataclass
class _Loaded:
    """A module that was launched: addresses of its variables, and its kernels as they are run."""

    module: Module
    places: dict[str, int]
    codes: dict[str, Code] = field(default_factory=dict)


def _triple(sizes: Sequence[int]) -> Triple:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


class Run:
    """Some blocks of a launch, from their first instruction to the last one.

    Attributes:
        registers: by number, arrays that broadcast to (blocks, threads).
        mask: which threads do what is done right now; None for all of them.
        at: number of the instruction that is done.
    """

    def __init__(
        self,
        machine: Machine,
        code: Code,
        grid: Triple,
        block: Triple,
        numbers: Any,
        parameters: dict[str, bytes],
        shared_bytes: int,
    ) -> None:
        threads = prod(block)
        self.code = code
        self.parameters = parameters
        self.blocks = len(numbers)
        self.threads = -(-threads // WARP) * WARP
        self.shape = (self.blocks, self.threads)
        self.registers: list[Array] = [DTYPES[kind](0) for kind in code.kernel.registers]
        self.cluster = code.kernel.cluster
        """Of this many blocks one after another."""
        self.special = _special(grid, block, numbers[:, None], self.threads)
        self.special["%cluster_ctarank"] = numbers[:, None] % np.uint32(self.cluster)
        self.memory = machine.memory
        size = code.shared_size + shared_bytes
        self.shared = Blocks(self.blocks, size, code.grain)
        self.local = Threads(self.blocks, self.threads, code.local_size)
        self.watches = machine.watches
        self.thread = np.arange(self.threads, dtype=np.int32)[None, :]
        self.warp = self.thread >> 5
        self.moment = np.zeros((self.blocks, self.threads), np.int64)
        self.copies = Copies(self)
        self.groups = Groups(self)
        self.engine = Engine(self)
        self.barriers = Barriers(self)
        self.at = 0
        self.mask: Array | None = None
        self.alive = np.broadcast_to(self.thread < threads, self.shape).copy()
        self.left = machine.most_steps

    def to_the_end(self) -> None:
        """
        Raises:
            EmulatorError: see `Machine.launch`.
        """
        try:
            with np.errstate(all="ignore"):
                self._run()
        except EmulatorError as error:
            text = self.code.kernel.instructions[self.at].text
            raise type(error)(f"{self.code.kernel.name}: {text}: {error}") from error

    def _run(self) -> None:
        where = np.zeros(self.shape, np.int32)
        ready = self.alive
        waiting, staying, gathering = (np.zeros(self.shape, bool) for _ in range(3))
        while True:
            if not ready.any():
                if staying.any():
                    if not self.barriers.turned():
                        raise NeverEnds("threads wait for a barrier's phase that nobody ends")
                    ready, staying = staying, np.zeros(self.shape, bool)
                    continue
                if waiting.any():  # those who gather wait for them
                    self._met()
                    ready, waiting = waiting & self.alive, np.zeros(self.shape, bool)
                    continue
                if gathering.any():
                    self._met()
                    self.barriers.clusters_met()
                    ready, gathering = gathering & self.alive, np.zeros(self.shape, bool)
                    continue
                self.engine.ends()
                self.barriers.ends()
                return
            number = int(where[ready].min())
            now = ready & (where == number)
            whole = bool((now == ready).all())
            while True:
                self.mask = None if now.all() else now
                block = self.code.blocks[number]
                self.left -= len(block.steps) + 1
                if self.left < 0:
                    raise GivenUp("more instructions than it was given")
                for self.at, step in block.steps:
                    step(self)
                self.at = block.last
                if block.ends == "barrier":
                    if whole and not (waiting.any() or staying.any() or gathering.any()):
                        self._met()
                        number = block.after
                        continue
                    where[now] = block.after
                    waiting |= now
                    ready = ready & ~now
                    break
                if block.ends == "cluster":
                    where[now] = block.after
                    gathering |= now
                    ready = ready & ~now
                    break
                if block.ends == "wait":
                    assert block.passes is not None
                    passing = block.passes(self)
                    if not passing[now].all():
                        stay = now & ~passing
                        where[stay], where[now & passing] = number, block.after
                        staying, ready = staying | stay, ready & ~stay
                        break
                if block.ends == "exit":
                    leaving = now & self._said(block.guard)
                    self.alive = self.alive & ~leaving
                    ready = ready & ~leaving
                    where[now] = block.after
                    break
                taken = self._goes(block.guard, now) if block.ends == "branch" else False
                if taken is None:
                    there = now & self._said(block.guard)
                    where[now] = block.after
                    where[there] = block.target
                    break
                number = block.target if taken else block.after
                if not whole:
                    where[now] = number
                    break

    def _said(self, guard: Register | None) -> Array:
        if guard is None:
            return np.bool_(True)
        return self.registers[guard.number] ^ guard.negated

    def _goes(self, guard: Register | None, now: Array) -> bool | None:
        """Whether all of them take a branch; None where some do."""
        said = self._said(guard)
        if said.ndim == 0:
            return bool(said)
        there = said if self.mask is None else (said & now)[now]
        if there.all():
            return True
        return None if there.any() else False

    def _met(self) -> None:
        """All threads of each block, at a barrier."""
        self.moment = ((self.moment >> WARP_BITS) + 1) << WARP_BITS
        self.barriers.all_met()

    def warps_met(self) -> None:
        self.moment = self.moment + (1 if self.mask is None else self.mask.astype(np.int64))

    def put(self, number: int, value: Array) -> None:
        """Into a register, of the threads that are at it."""
        if self.mask is None:
            self.registers[number] = value
        else:
            self.registers[number] = np.where(self.mask, value, self.registers[number])

    def active(self) -> Array:
        return self.alive if self.mask is None else self.mask

    # ------------------------------------------------------------------------------- memory

    def load(self, space: str, address: Array, dtype: Any, size: int) -> list[Array]:
        """`size` bytes at each address, as values of `dtype`."""
        memory, offsets = self.window(space, address, self.mask)
        places = memory.checked(offsets, size, self.mask)
        if memory is self.shared and self.watches:
            self.watched(self.shared.watch.reads, places, size)
            self._touched(places, writes=False)
        each = np.dtype(dtype).itemsize
        return [memory.read(places + n, dtype) for n in range(0, size, each)]

    def store(self, space: str, address: Array, values: list[Array]) -> None:
        each = values[0].dtype.itemsize
        size = each * len(values)
        memory, offsets = self.window(space, address, self.mask)
        offsets = spread(offsets, self.shape)
        places = memory.checked(offsets, size, self.mask)
        if memory is self.shared and self.watches:
            self.watched(self.shared.watch.writes, places, size)
            self.groups.writes(places if self.mask is None else places[self.mask])
            self.groups.wrote(self.active())
            self._touched(places, writes=True)
        active = self.mask
        for number, value in enumerate(values):
            full = spread(value, self.shape)
            if active is None:
                memory.write(places + number * each, full)
            else:
                memory.write(places[active] + number * each, full[active])

    def _touched(self, places: Array, writes: bool) -> None:
        if self.barriers.used:
            active = self.active()
            block, thread = np.nonzero(spread(active, self.shape))
            at = spread(places, self.shape)[block, thread]
            self.engine.touches(block, thread // WARP, at // PIECE, writes)

    def parameter(self, address: int) -> bytes:
        """What a kernel's parameter holds.

        Raises:
            IllegalAddress: there is none.
        """
        number, within = divmod(address - PARAMETERS, 1 << PARAMETER_BITS)
        if not 0 <= number < len(self.parameters) or within:
            raise IllegalAddress(f"{address:#x} is no parameter")
        return [*self.parameters.values()][number]

    def add_to(self, space: str, address: Array, value: Array, combine: Any) -> Array:
        """What each thread found, having combined it with `value`, one after another."""
        memory, offsets = self.window(space, address, self.mask)
        if memory is self.shared and self.watches:
            raise Unsupported("combining in shared memory, which is watched")
        offsets = spread(offsets, self.shape)
        active = self.active()
        places = memory.checked(offsets, value.dtype.itemsize, active)
        found = np.zeros(self.shape, value.dtype)
        given = np.broadcast_to(value, self.shape)[active]
        found[active] = memory.combine(places[active], given, combine)
        return found

    def window(self, space: str, address: Array, mask: Array | None) -> tuple[Any, Array]:
        """The memory that addresses lead to, and how far into it; `mask`: which of them count."""
        if address.dtype.itemsize == 8:
            address = address.view(np.int64)
        else:
            address = address.view(np.uint32).astype(np.int64)
        if address.ndim < 2:
            address = address.reshape(1, 1)
        if space == "generic":
            seen = address if mask is None else np.broadcast_to(address, mask.shape)[mask]
            low, high = int(seen.min()), int(seen.max())
            space = next((s for s, start in _WINDOWS if low >= start), "global")
            if any(low < start <= high for _, start in _WINDOWS):
                raise Unsupported("threads of which some mean one kind of memory, some another")
            return self.window(space, address, mask)
        if space == "shared":
            return self.shared, np.where(address >= SHARED, address - SHARED, address)
        if space == "local":
            return self.local, np.where(address >= LOCAL, address - LOCAL, address)
        return self.memory, address - GLOBAL

    def of_cluster(self, address: Array) -> tuple[Array, Array]:
        """Addresses in shared memory as those of each thread's own block, and which of its
        cluster's blocks they lead to, by their numbers in this run."""
        full = np.broadcast_to(address, self.shape)
        own = np.broadcast_to(np.arange(self.blocks)[:, None], self.shape)
        if full.dtype.itemsize == 8:
            return full, own
        rank = (full >> RANK_BITS).astype(np.int64)
        other = own // self.cluster * self.cluster + rank - 1
        mine = np.uint32((1 << RANK_BITS) - 1)
        return full.view(np.uint32) & mine, np.where(rank > 0, other, own)

    def watched(self, note: Callable[..., None], places: Array, size: int) -> None:
        places = spread(places, self.shape)
        thread, warp = (spread(one, self.shape) for one in (self.thread, self.warp))
        active = self.active()
        note(places[active], size, thread[active], warp[active], self.moment[active])


_WINDOWS = (("local", LOCAL), ("shared", SHARED))


def _special(grid: Triple, block: Triple, number: Array, threads: int) -> dict[str, Array]:
    thread = np.arange(threads, dtype=np.uint32)[None, :]
    found: dict[str, Array] = {}
    for name, sizes, which in (("tid", block, thread), ("ctaid", grid, number)):
        x, y, _ = (np.uint32(one) for one in sizes)
        found[f"%{name}.x"], found[f"%{name}.y"] = which % x, which // x % y
        found[f"%{name}.z"] = which // (x * y)
    for name, sizes in (("ntid", block), ("nctaid", grid)):
        for axis, size in zip("xyz", sizes, strict=True):
            found[f"%{name}.{axis}"] = np.uint32(size)
    found["%laneid"], found["%warpid"] = thread % np.uint32(WARP), thread // np.uint32(WARP)
    found["WARP_SZ"] = np.uint32(WARP)
    return found
