"""Running a whole model where there is no device for it: on a GPU of paper (`emulator`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tunefarm.devices.device import EMULATED
from tunefarm.devices.gpu_driver import KIND
from tunefarm.devices.here import RUNTIME_ONLY
from tunefarm.errors import last_line
from tunefarm.measure.gate import Parity
from tunefarm.measure.requests import CheckRequest
from tunefarm.process import Child, ChildDied, ChildError, ChildTimeout

FAULTS = ("IllegalAddress", "Race", "NeverEnds")
"""What a kernel may do there that a GPU would not survive, or whose result nobody can tell; by the
names of `emulator.faults`. Everything else that stops it says nothing about the kernel."""


@dataclass(frozen=True)
class PaperRequest:
    """`check`, which has one library, on a GPU of `arch`, for `limit_s` at most.

    Attributes:
        directory: for what stands in for NVIDIA's libraries, see `emulator.stand_in`; `ptx_in` it
            lies the PTX of what was compiled.
    """

    check: CheckRequest
    arch: str
    directory: Path
    limit_s: float


@dataclass(frozen=True)
class OnPaper:
    """What came of it: one of the three.

    Attributes:
        parity: with what the model is to compute.
        fault: that ended it.
        untold: why nothing is known.
    """

    parity: Parity | None = None
    fault: str = ""
    untold: str = ""

    @property
    def is_wrong(self) -> bool:
        return bool(self.fault) or (self.parity is not None and not self.parity.passed)


def check_on_paper(request: PaperRequest) -> OnPaper:
    """In a fresh process."""
    from tunefarm.measure.cuda.emulator.stand_in import environment  # no bundle has it

    try:
        variables = environment(request.directory, request.arch)
    except OSError as error:
        return OnPaper(untold=f"it cannot be made here: {error}")
    child = Child("tunefarm.measure.serve:serve", {**RUNTIME_ONLY, KIND: "cuda", **variables})
    with child:
        try:
            child.warm()
        except (ChildTimeout, ChildDied, ChildError) as error:
            return OnPaper(untold=f"{EMULATED} does not start: {error}"[:300])
        try:
            return OnPaper(child.call(request.check, request.limit_s).parity)
        except ChildTimeout:
            return OnPaper(untold=f"it takes longer than the {request.limit_s:.0f} s that are left")
        except ChildDied as error:
            return OnPaper(untold=f"{EMULATED}: {error}"[:300])
        except ChildError as error:
            said = next((s for line in str(error).splitlines() if (s := _fault(line))), "")
            return OnPaper(fault=said) if said else OnPaper(untold=last_line(error)[:300])


def _fault(line: str) -> str:
    """The part of a line that says which fault it was; empty where there is none."""
    places = [at for name in FAULTS if (at := line.find(f"{name}: ")) >= 0]
    return line[min(places) :].strip()[:300] if places else ""
