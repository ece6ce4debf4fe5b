"""A GPU of paper: runs the PTX of NVIDIA's compiler with NumPy, and says what a GPU would not.

It computes what a GPU computes, up to the rounding of approximate functions, and stops at what a
GPU may pass over in silence: addresses that nobody allocated, threads that read what others write
without a barrier between them, copies that are read before they were waited for. It has no clock:
nothing here says how fast anything is.
"""

from tunefarm.measure.emulator.faults import (
    EmulatorError,
    IllegalAddress,
    NeverEnds,
    Race,
    Unsupported,
)
from tunefarm.measure.emulator.machine import Machine
from tunefarm.measure.emulator.ptx import Kernel, Module, parse

__all__ = [
    "EmulatorError",
    "IllegalAddress",
    "Kernel",
    "Machine",
    "Module",
    "NeverEnds",
    "Race",
    "Unsupported",
    "parse",
]
