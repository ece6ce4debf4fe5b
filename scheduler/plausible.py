"""What a worker reports is data: it has a form and bounds, and is refused outside of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tunefarm.measure.facts import PREVIOUS, Block, Checked, Compared, ScreenOutcome

MOST_SAMPLES = 100_000
FASTEST, SLOWEST = 1e-9, 3600.0
"""Seconds of a call that anything could take."""
MOST_BYTES = 1 << 50
BUILDS = {"base", "tuned", PREVIOUS}
BEYOND = 0.25
"""Of the least time that the hardware allows: caches beat a roof too, but by less."""


class Implausible(Exception):
    """A report that cannot be true, and why."""


def check_screening(outcome: ScreenOutcome, floor_s: float) -> None:
    """Whether `outcome` can be what a device measured whose roof for this kernel is `floor_s`
    (seconds; 0 where it is not known).

    Raises:
        Implausible: it cannot.
    """
    if (outcome.screening is None) == (outcome.failure is None):
        raise Implausible("neither a result nor a failure")
    if outcome.screening is None:
        return
    check_samples(outcome.screening.samples, floor_s)


def check_compared(compared: Compared) -> None:
    """The same of a process of the whole model; its samples of each build aside.

    Raises:
        Implausible: it cannot be true.
    """
    cold = compared.cold
    if not {cold.build} <= set(compared.samples) <= BUILDS:
        raise Implausible(f"builds {', '.join(sorted(compared.samples))}, {cold.build} the first")
    if not 0 <= cold.peak_bytes <= MOST_BYTES:
        raise Implausible("a process of more memory than there is, or less than none")
    check_samples((cold.load_s, cold.first_s), 0.0)
    if compared.tail:
        check_samples(compared.tail, 0.0)


def check_checked(checked: Checked) -> None:
    """The same of what the compiled model computes, and where its time goes.

    Raises:
        Implausible: it cannot be true.
    """
    errors = (checked.parity.max_abs_err, checked.parity.max_rel_err)
    if checked.parity.passed and not all(0 <= error < math.inf for error in errors):
        raise Implausible(f"outputs that are right, off by {errors[1]!r}")
    if (found := checked.in_place) is None:
        return
    check_samples((found.model_s,), 0.0)
    if not all(0 <= seconds <= SLOWEST for seconds in found.functions.values()):
        raise Implausible("a function that takes less than no time, or more than there is")
    if not 0 <= found.outside <= 1:
        raise Implausible(f"{found.outside!r} of an inference outside of its kernels")


def check_placed(found: Sequence[Mapping[str, Sequence[float]]]) -> None:
    """The same of two variants' functions, in each of which every inference has been.

    Raises:
        Implausible: it cannot be true.
    """
    counts = {len(seconds) for functions in found for seconds in functions.values()}
    if len(found) != 2 or len(counts) > 1:
        raise Implausible(f"{len(found)} variants with inferences {sorted(counts)}")


def check_block(block: Block) -> None:
    """The same of a block's canary.

    Raises:
        Implausible: it cannot be true.
    """
    check_samples((block.canary_s,), 0.0)


def check_samples(samples: Sequence[float], floor_s: float) -> None:
    """The same of samples alone.

    Raises:
        Implausible: they cannot be true.
    """
    if not 1 <= len(samples) <= MOST_SAMPLES:
        raise Implausible(f"{len(samples)} samples")
    for sample in samples:
        if not isinstance(sample, float) or not math.isfinite(sample):
            raise Implausible(f"a sample of {sample!r}")
        if not FASTEST <= sample <= SLOWEST:
            raise Implausible(f"a call of {sample:g} s")
    if min(samples) < BEYOND * floor_s:
        raise Implausible(f"{min(samples):.3g} s, of a kernel whose roof is {floor_s:.3g} s")
