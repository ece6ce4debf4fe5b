"""The correctness gate: what a kernel's result may differ by, and whether it does. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.devices.neighbours import NARROW
from tunefarm.frontend.dtypes import (
    BYTES_KEPT,
    HALF,
    INT8,
    ROUGH,
    TF32,
    is_float,
    numpy_dtype,
    rounding,
)
from tunefarm.frontend.program import TensorSpec

Array = NDArray[Any]
POISON = {"i": -(2**7) + 1, "u": 2**7 + 1, "b": 1}
"""Fills an output before a run, by dtype kind, so that what a kernel leaves unwritten is seen.
Floating-point numbers are none."""


@dataclass(frozen=True)
class Tolerance:
    """What a result may differ by: floating-point numbers relative to themselves and to the
    result's scale, whole numbers of 8 bits by one in a share of the elements, or in one of them;
    floating-point numbers that were made of such ones by one of their steps, in as many. Where the
    steps are not to be seen in the result, by as much as each other, and no more than `step` of the
    result's scale."""

    relative: float
    absolute: float
    share: float = 0.0
    step: float = 0.0


ROUNDED = Tolerance(0.0, 0.0, 0.01)
"""Of whole numbers that were rounded from floating-point ones: where a sum in another order comes
to lie on the other side of a half, they differ by one."""
RARELY = 1 / 256
"""How often a kernel's argument of 8 bits is a large one: sums of such numbers, scaled and rounded
to 8 bits again, are seldom at an end of those, where a wrong sum would not be seen."""


def tolerance(dtype: str, reduction: int) -> Tolerance:
    """Allowed error of one output element, relative to the output's scale.

    Reordering a sum of n terms moves it by about sqrt(n) roundings; 32 of those are allowed. What
    is rounded to half precision was summed in single precision: 4 roundings. Factors that are
    rounded to tf32 move a sum by less than one of them: 2. Integers must be exact.

    Args:
        dtype: the narrowest type of floating-point numbers that the kernel reads, multiplies or
            writes; that of its result where it has none.
        reduction: terms summed into one element, at least 1.
    """
    if dtype not in ROUGH and not is_float(numpy_dtype(dtype)):
        return Tolerance(0.0, 0.0)
    error = (2 if dtype == TF32 else 4) * rounding(dtype)
    if dtype not in ROUGH:
        error *= 8 * math.sqrt(max(1, reduction))
    return Tolerance(error, error)


def disagreement(result: Array, reference: Array, allowed: Tolerance) -> str:
    """Empty when `result` is right, else one sentence that says how wrong it is."""
    if result.shape != reference.shape:
        return f"shape {result.shape} instead of {reference.shape}"
    if not is_float(result.dtype):
        wrong = int(np.count_nonzero(result != reference))
        if allowed.share and wrong <= max(1, allowed.share * result.size):
            apart = np.abs(result.astype(np.int64) - reference.astype(np.int64))
            wrong = int(np.count_nonzero(apart > 1))
        return f"{wrong} of {result.size} elements differ" if wrong else ""
    if result.dtype.name in HALF:  # whose largest number is soon reached, or whose steps are wide
        result, reference = result.astype(np.float32), reference.astype(np.float32)
    # Most results are right by far, and this is on every candidate's path: the whole allowance is
    # never less than its absolute part. What is not a number fails the comparison.
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.max(np.abs(result - reference), initial=0.0))
    top = float(np.max(np.abs(reference), initial=0.0))
    if math.isfinite(top) and largest <= 0.5 * allowed.absolute * top:
        return ""
    got, want = result.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(want)
    if not finite.any():  # what writes nothing would look alike
        return "the untuned kernel has no finite result to compare with"
    if not np.array_equal(np.isfinite(got), finite):
        return f"{int(np.count_nonzero(np.isfinite(got) != finite))} elements are not finite"
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return "elements that are infinite, or no number, are others of that kind"
    scale = float(np.max(np.abs(want[finite]), initial=0.0))
    limit = allowed.relative * np.abs(np.where(finite, want, 0.0)) + allowed.absolute * scale
    error = np.abs(np.subtract(got, want, out=np.zeros_like(want), where=finite))
    off = error > limit
    wrong = int(np.count_nonzero(off))
    few = wrong <= max(1, allowed.share * got.size) if allowed.share else wrong == 0
    if few and (not wrong or _a_step_apart(error[off], want, allowed.step * scale)):
        return ""
    worst = float(error.max() / scale) if scale else math.inf
    return f"{wrong} of {got.size} elements differ, by {worst:.2e} of the result's scale"


STEP = 1 / 32
"""How much of a result's scale a step of the numbers of 8 bits is that a kernel rounds inside, at
most: with something added, as a residue is, there are no steps in the result to compare with."""
LEVELS, EACH = (8, 257), 8
"""How many values a result has that is of whole numbers of 8 bits, an end among them, and of each
so many elements on average: of fewer, any numbers would be multiples of something."""


def _a_step_apart(errors: Array, reference: Array, most: float) -> bool:
    """Whether no error is more than a step: of results that are whole numbers of 8 bits times a
    scale one of theirs, of others what half of the errors are, and at most `most`. At either end
    there may be less than a step: zeros are drawn as scales are, so that where numbers end is none
    of the others."""
    values, most = np.unique(reference), min(most, 1.01 * float(np.median(errors)))
    if LEVELS[0] <= len(values) <= min(LEVELS[1], reference.size // EACH):
        inner = np.diff(values)[1:-1]
        steps = inner / inner.min()
        if np.abs(steps - np.round(steps)).max() < 0.01:
            most = 1.01 * inner.min()
    return bool(errors.max() <= most)


def make_input(spec: TensorSpec, seed: int, positive: bool) -> Array:
    """A random argument: uniform in (-1, 1), or (0.1, 1) for kernels that take roots or logs; whole
    numbers of 8 bits are any of them, others 0 and 1, for they may be places or conditions."""
    generator = np.random.default_rng(seed)
    dtype = numpy_dtype(spec.dtype)
    if is_float(dtype):
        low = 0.1 if positive else -1.0
        return generator.uniform(low, 1.0, spec.shape).astype(dtype)
    if is_byte(dtype):
        return _bytes(generator, spec)
    return generator.integers(0, 2, spec.shape).astype(dtype)


def make_argument(spec: TensorSpec, seed: int, positive: bool) -> Array:
    """The same for a kernel alone: of 8 bits, wherever they are kept, most are small (`RARELY`)."""
    dtype = numpy_dtype(spec.dtype)
    if not holds_bytes(dtype):
        return make_input(spec, seed, positive)
    generator = np.random.default_rng(seed)
    small = generator.integers(0 if dtype.kind == "u" else -2, 3, spec.shape).astype(dtype)
    large = _bytes(generator, spec)
    return np.where(generator.random(spec.shape) < RARELY, large, small)


def is_byte(dtype: np.dtype[Any]) -> bool:
    """Whether it is of whole numbers of 8 bits."""
    return dtype.kind in "iu" and dtype.itemsize == 1


def holds_bytes(dtype: np.dtype[Any]) -> bool:
    """Whether a kernel's numbers of that type are of 8 bits, be they kept in 16."""
    return is_byte(dtype) or dtype.name == BYTES_KEPT


def _bytes(generator: np.random.Generator, spec: TensorSpec) -> Array:
    dtype = numpy_dtype(spec.dtype)
    ends = np.iinfo(dtype)
    least, most = (ends.min, ends.max) if is_byte(dtype) else (-128, 255)
    if dtype.name == "int8" and spec.shape[-2:] == NARROW:  # weights of which no two are too large
        least, most = -64, 64
    return generator.integers(least, most, spec.shape, dtype=dtype, endpoint=True)


def poisoned(spec: TensorSpec) -> Array:
    dtype = numpy_dtype(spec.dtype)
    return np.full(spec.shape, np.nan if is_float(dtype) else POISON[dtype.kind], dtype=dtype)


def reduction_length(flops: float, output: TensorSpec) -> int:
    """Terms per output element, from the kernel's operation count."""
    return max(1, round(flops / 2 / max(1, math.prod(output.shape))))


LEAST, MOST = 1 / 32, 1 / 4
"""What a quantised model may always be off by, and what it may never."""
NUDGE, NUDGES = 1e-3, 3
"""How far a model's inputs are moved to see how far its outputs are, and how often."""


def nudged(inputs: Sequence[Array], seed: int) -> list[Array]:
    """Inputs with each of their floating-point numbers moved by up to a thousandth of itself."""
    generator = np.random.default_rng(seed)

    def one(array: Array) -> Array:
        if not is_float(array.dtype):
            return array
        by = generator.uniform(1.0 - NUDGE, 1.0 + NUDGE, array.shape)
        return (array * by).astype(array.dtype)

    return [one(array) for array in inputs]


def distance(results: Sequence[Array], references: Sequence[Array]) -> float:
    """The root mean square of what outputs differ by, over that of the references: of the output
    of which it is most; infinite where what is not finite is not the same."""
    worst = 0.0
    for result, reference in zip(results, references, strict=True):
        got, want = result.astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(want)
        if got.shape != want.shape or not (
            np.isfinite(got[finite]).all()
            and np.array_equal(got[~finite], want[~finite], equal_nan=True)
        ):
            return math.inf
        error = np.subtract(got, want, out=np.zeros_like(want), where=finite)
        if error.any():
            scale = math.sqrt(np.mean(np.where(finite, want, 0.0) ** 2))
            worst = max(worst, math.sqrt(np.mean(error**2)) / max(scale, 1e-30))
    return worst


@dataclass(frozen=True)
class Parity:
    """A model's outputs against an independent runtime's.

    `max_rel_err` is per element, over the larger of the reference's magnitude and 1 % of its
    root mean square (an element that cancels to almost nothing has no relative error to speak of);
    of a model in half precision or in tf32, all of the root mean square. Of a quantised model it is
    the `distance` of all of an output.
    """

    max_abs_err: float
    max_rel_err: float
    passed: bool
    against: str = "onnxruntime"


def parity(
    results: list[Array], references: list[Array], precision: str = "float32", moved: float = 0.0
) -> Parity:
    """Worst error over all outputs: at most 1e-3, or 16 roundings of half precision or tf32; and a
    rounding more of an output that is in half precision itself.

    Of a quantised model an element's own size says nothing: where a sum comes to lie on the other
    side of a half, a number is moved by a whole step, and so are others after it, until outputs are
    off by what quantising makes of them anyway. How much that is, the model itself says, when its
    inputs are moved a little: twice that is allowed, between `LEAST` and `MOST`.

    Args:
        precision: the narrowest type of the numbers that kernels hand on, or that they may
            multiply.
        moved: of a quantised model, the `distance` between the outputs of `nudged` inputs and
            `references`.
    """
    if precision == INT8:
        off = distance(results, references)
        if math.isinf(off):
            return Parity(math.inf, math.inf, False)
        pairs = [(r.astype(np.float64), w) for r, w in zip(results, references, strict=True)]
        apart = (np.abs(r[np.isfinite(w)] - w[np.isfinite(w)]) for r, w in pairs)
        largest = max((float(one.max(initial=0.0)) for one in apart), default=0.0)
        return Parity(largest, off, off <= min(MOST, max(LEAST, 2 * moved)))
    half = precision in ROUGH
    limit, least = (16 * rounding(precision), 1.0) if half else (1e-3, 0.01)
    passed, worst_abs, worst_rel = True, 0.0, 0.0
    for result, reference in zip(results, references, strict=True):
        allowed = limit
        if result.dtype.name in HALF:
            allowed += rounding(result.dtype.name)
            with np.errstate(over="ignore"):
                reference = reference.astype(result.dtype)
        got, want = result.astype(np.float64), reference.astype(np.float64)
        finite = np.isfinite(want)
        if (
            got.shape != want.shape
            or not np.isfinite(got[finite]).all()
            or not np.array_equal(got[~finite], want[~finite], equal_nan=True)
        ):
            return Parity(math.inf, math.inf, False)
        got, want = got[finite], want[finite]
        error = np.abs(got - want)
        floor = least * math.sqrt(np.mean(want**2)) if want.size else 0.0
        relative = float((error / np.maximum(np.abs(want), max(floor, 1e-30))).max(initial=0.0))
        worst_abs = max(worst_abs, float(error.max(initial=0.0)))
        worst_rel = max(worst_rel, relative)
        passed = passed and relative <= allowed
    return Parity(worst_abs, worst_rel, passed)
