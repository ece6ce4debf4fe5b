"""What a kernel may do that ends it.

EmulatorError
├── Unsupported        an instruction, or a form of one, that is not known here
├── IllegalAddress     outside of what was allocated, or not aligned
├── Race               two threads, one place, no barrier
└── NeverEnds          threads wait for what nobody will do
    └── GivenUp        more instructions than it was given, which may be too few
"""

from __future__ import annotations


class EmulatorError(Exception):
    """Says what, and in which instruction of which kernel."""


class Unsupported(EmulatorError):
    """Not known here; it says nothing about the kernel."""


class IllegalAddress(EmulatorError):
    """A GPU ends the process's context for that, or reads what lies there."""


class Race(EmulatorError):
    """What comes of it depends on which thread is sooner."""


class NeverEnds(EmulatorError):
    """Threads wait for what nobody will do."""


class GivenUp(NeverEnds):
    """It may have ended later."""
