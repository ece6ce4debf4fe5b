"""What a schedule needs to know of a processor: vectors, registers, caches, cores."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from tunefarm.devices.neighbours import FOURS, NARROW, Groups, neighbours_of
from tunefarm.devices.target import Target
from tunefarm.search import replay

LAUNCH = 2000.0
"""Cycles until the threads have begun and ended a parallel loop."""


@dataclass(frozen=True)
class Hardware:
    """Sizes of a CPU target, for float32.

    Attributes:
        lanes: elements of the widest vector.
        registers: vector registers.
        broadcast_registers: that a broadcast factor takes; none where it is read from memory by
            the multiply-add itself.
        fma: multiply-adds of full vectors a cycle and core.
        loads: broadcasts a cycle and core that tiles may have to wait for; 0 where there are always
            enough for the multiply-adds.
        stream: bytes a cycle and core from its second-level cache: vectors of a packed operand are
            used once a tile, and come from there.
        latency: cycles of one multiply-add.
        l2: bytes of a core's second-level cache.
        bytes_per_cycle: that a core gets from beyond it.
        cores: that a kernel runs on.
    """

    lanes: int
    registers: int
    broadcast_registers: int
    fma: float
    loads: float
    stream: float
    latency: int
    l2: int
    bytes_per_cycle: float
    cores: int

    def registers_of(self, lanes: int) -> int:
        """That a vector of so many elements takes."""
        return ceil(lanes / self.lanes)

    def widths(self) -> tuple[int, ...]:
        """Vector lengths worth trying, widest first: no less than four elements."""
        return tuple(w for w in (self.lanes, self.lanes // 2, self.lanes // 4) if w >= 4)

    def figures(self) -> tuple[float, ...]:
        """For a cost model that has seen several kinds of processor."""
        sizes = (self.lanes, self.registers, self.l2, self.cores)
        return (*map(log2, sizes), self.fma, self.loads)


def multiplying(target: Target, groups: Groups, rounded: bool = False) -> Hardware:
    """The sizes of `target` where it multiplies such neighbours at once; `hardware` for floats,
    which are in no groups.

    The instruction for integers reads weights from memory, or a register, but a broadcast from a
    register alone. Of pairs another one adds the products: by a unit of its own in part, or, of 512
    bits, by those that multiply. (On a Zen 3 three are done in the time of four, and tiles with
    many broadcasts are slower than others by as much as if that held for those, too.) Pairs of
    bytes are multiplied by two, and ones are kept in a register for the second. Of pairs of
    bfloat16 (`rounded`) an Intel with AMX does one in two cycles, as a product took, which is taken
    for Intel's others as well; of AMD's, as many as multiply-adds are taken to be done.
    """
    machine, known = hardware(target), neighbours_of(target)
    if rounded:
        fma = machine.fma if str(target.get("mcpu")).startswith("znver") else 0.5
        return dataclasses.replace(
            machine, broadcast_registers=1, fma=fma, loads=machine.loads or 2.0
        )
    if not groups or known is None:
        return machine
    fma, loads = machine.fma, machine.loads or 2.0
    if groups != FOURS:
        fma, loads = fma * (0.75 if machine.lanes <= 8 else 0.5), 0.75 * loads
    if groups == NARROW:
        fma *= 0.67
    registers = 2 if groups == NARROW else 1
    lanes = min(machine.lanes, known.lanes)  # there is AVX-512 without integers of 16 bits
    return dataclasses.replace(
        machine, lanes=lanes, broadcast_registers=registers, fma=fma, loads=loads
    )


# Common parts of each family. The prior orders points by them, and what is measured decides; only
# lanes and registers bound the space.
_FAMILIES = (
    ("avx512f", Hardware(16, 32, 0, 1.0, 0.0, 32.0, 5, 1 << 20, 48.0, 1)),
    ("avx2", Hardware(8, 16, 1, 2.0, 2.0, 32.0, 5, 512 << 10, 32.0, 1)),
    ("neon", Hardware(4, 32, 1, 2.0, 2.0, 32.0, 5, 512 << 10, 32.0, 1)),
    ("", Hardware(4, 16, 1, 1.0, 1.0, 16.0, 5, 256 << 10, 16.0, 1)),
)
_TWICE = Hardware(16, 32, 0, 2.0, 2.0, 64.0, 4, 1 << 20, 48.0, 1)
"""As above, with two multiply-adds of full vectors a cycle."""
_TWICE_ON = (
    *("znver5", "skylake-avx512", "cascadelake", "cooperlake", "icelake-server"),
    *("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"),
)
"""By the compiler's name; from the makers' manuals for software optimisation."""


@lru_cache(maxsize=16)
def hardware(target: Target) -> Hardware:
    """The sizes of `target`, by its processor's name, else by the features that the compiler says
    it has."""
    from tvm.target.codegen import target_has_features

    compiled = replay.tvm_target(target)
    cores = int(compiled.attrs.get("num-cores", 1))
    if compiled.attrs.get("mcpu") in _TWICE_ON:
        return dataclasses.replace(_TWICE, cores=cores)
    for feature, family in _FAMILIES:
        if not feature or target_has_features(feature, compiled):
            return dataclasses.replace(family, cores=cores)
    raise AssertionError("the last family fits every target")
