"""A candidate: one schedule of one kernel, and where it came from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

UNTUNED = ""
"""The trace of the baseline: the kernel as the compiler lowers it, with no schedule at all."""

IN_MATRICES = "tunefarm.matrices"
"""What is in the trace of a kernel that needs the processor's matrix registers."""
MATRIX_ATTENTION = "matrix-attention"
"""The family of attentions that do; its name is in their traces."""


@dataclass(frozen=True)
class Candidate:
    """A trace of schedule primitives to apply to a workload.

    Attributes:
        task: the workload's id.
        target: the target's text.
        toolchain: what compiles it; another compiler makes another candidate of the same trace.
        trace: canonical JSON of the applied primitives and decisions, or `UNTUNED`.
        origin: the strategy that proposed it, and how.
    """

    task: str
    target: str
    toolchain: str
    trace: str
    origin: str

    @property
    def id(self) -> str:
        """Its identity: measured once, it is known wherever it turns up again; 16 hex digits."""
        return candidate_id(self.task, self.target, self.toolchain, self.trace)

    @property
    def untuned(self) -> bool:
        return self.trace == UNTUNED


def candidate_id(task: str, target: str, toolchain: str, trace: str) -> str:
    identity = json.dumps([task, target, toolchain, trace])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def baseline(task: str, target: str, toolchain: str) -> Candidate:
    return Candidate(task, target, toolchain, UNTUNED, "untuned")
