"""Running built kernels: loading, gating and timing. Needs the TVM runtime alone."""

from __future__ import annotations

import math
import random
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from tunefarm.frontend.dtypes import for_npz, is_float, narrowest, numpy_dtype
from tunefarm.home import write_atomically
from tunefarm.measure.backend import backend
from tunefarm.measure.build import Library
from tunefarm.measure.facts import KernelFacts, Screening
from tunefarm.measure.gate import (
    ROUNDED,
    STEP,
    Array,
    disagreement,
    holds_bytes,
    is_byte,
    make_argument,
    poisoned,
    reduction_length,
    tolerance,
)
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import KernelRace
from tunefarm.measure.rotation import copies
from tunefarm.measure.steady import Steady

_CACHE_BYTES = 2**29


class WrongResult(Exception):
    """The kernel ran and its result is wrong."""


class Kernel:
    """A loaded kernel."""

    def __init__(self, library: Library, facts: KernelFacts) -> None:
        self._module = tvm.runtime.load_module(str(library.path))
        self._packed = library.packed
        self._prepack = tvm.runtime.load_module(str(library.prepack)) if library.prepack else None
        self._facts = facts
        self._output = facts.args[-1]
        self._turn = 0

    def bind(self, inputs: list[Any]) -> list[Any]:
        """The kernel's arguments: inputs (packed where it wants that) and a poisoned output."""
        arguments = list(inputs)
        if self._prepack is not None:
            device = backend().device
            made = [tvm.runtime.empty(spec.shape, spec.dtype, device) for _, spec in self._packed]
            self._prepack["prepack"](*(inputs[i] for i, _ in self._packed), *made)
            for (position, _), tensor in zip(self._packed, made, strict=True):
                arguments[position] = tensor
        return [*arguments, tvm.runtime.tensor(poisoned(self._output), backend().device)]

    def run(self, arguments: list[Any]) -> None:
        self._module["kernel"](*arguments)
        backend().after_kernel()

    def in_turns(self, arguments: list[Any], protocol: Protocol) -> list[list[Any]]:
        """`arguments`, and copies of them that make them as cold as in the kernel's model."""
        constants = self._facts.constants
        sizes = [0, 0]
        for position, tensor in enumerate(arguments):
            sizes[position in constants] += _bytes(tensor)
        near, far = backend().caches()
        needed = copies(sizes[1], sizes[0], self._facts.between, near, far, protocol)
        columns = [
            [tensor, *(_copy(tensor) for _ in range(count - 1))]
            for position, tensor in enumerate(arguments)
            for count in [needed.constants if position in constants else needed.others]
        ]
        return [[column[turn % len(column)] for column in columns] for turn in range(needed.turns)]

    def sample(self, turns: list[list[Any]], number: int, repeat: int) -> list[float]:
        """Seconds per call: `repeat` samples of `number` calls each.

        A kernel that is timed for itself is called in the runtime's own loop, where calls are over
        when they return. Others, and all on a GPU, are called in ours, by the device's clock: on a
        processor that adds about a microsecond to each call.
        """
        here = backend()
        if not self._facts.between and not here.has_clock:
            timer = self._module.time_evaluator("kernel", here.device, number=number, repeat=repeat)
            return [float(r) for r in timer(*turns[0]).results]
        kernel, samples = self._module["kernel"], []
        # Where each sample begins with the arguments that the one before it began with, they are
        # one after another the same calls.
        together = repeat if number % len(turns) == 0 else 1
        for _ in range(repeat // together):
            due = [turns[(self._turn + call) % len(turns)] for call in range(number)]
            self._turn = (self._turn + number) % len(turns)

            def call(due: list[list[Any]] = due) -> None:
                for arguments in due:
                    kernel(*arguments)

            samples += [s / number for s in here.repeated(call, number, together)]
        return samples


def _bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape)) * numpy_dtype(str(tensor.dtype)).itemsize


def _copy(tensor: Any) -> Any:
    made = tvm.runtime.empty(tensor.shape, str(tensor.dtype), backend().device)
    tensor.copyto(made)
    return made


class Arguments:
    """Random inputs and reference results of the kernels that were run last."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[str, int], tuple[list[Any], Array]] = OrderedDict()

    def get(self, facts: KernelFacts, seed: int) -> tuple[list[Any], Array]:
        """Inputs on the device and the reference result for them."""
        key = (facts.task, seed)
        if key not in self._cache:
            with np.load(facts.reference) as stored:
                reference = stored[f"out{seed}"]
                inputs = make_inputs(facts, seed, bool(stored["positive"]))
            self._cache[key] = (inputs, reference)
            while len(self._cache) > 2 and self._bytes() > _CACHE_BYTES:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _bytes(self) -> int:
        return sum(
            reference.nbytes + sum(math.prod(t.shape) * 8 for t in inputs)
            for inputs, reference in self._cache.values()
        )


def make_inputs(facts: KernelFacts, seed: int, positive: bool) -> list[Any]:
    return [
        tvm.runtime.tensor(make_argument(spec, seed * 1000 + index, positive), backend().device)
        for index, spec in enumerate(facts.args[:-1])
    ]


def make_reference(library: Library, facts: KernelFacts, protocol: Protocol) -> list[float]:
    """Run the untuned kernel and keep its results: what every candidate must compute.

    Where inputs around zero give results that are not finite (a root, a logarithm), all inputs
    become positive, so that there is a number to compare.

    Returns:
        Seconds of each of these runs.
    """
    kernel = Kernel(library, facts)
    seconds = []
    for positive in (False, True):
        outputs: dict[str, Any] = {}
        for seed in protocol.seeds:
            arguments = kernel.bind(make_inputs(facts, seed, positive))
            seconds.append(_seconds(kernel, arguments))
            outputs[f"out{seed}"] = for_npz(arguments[-1].numpy())
        if all(np.isfinite(o).all() for o in outputs.values() if is_float(o.dtype)):
            break
    temporary = facts.reference.with_suffix(".tmp.npz")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    np.savez(temporary, positive=positive, **outputs)
    write_atomically(facts.reference, temporary.read_bytes())
    temporary.unlink()
    return seconds


def screen_untuned(
    library: Library,
    facts: KernelFacts,
    protocol: Protocol,
    arguments: Arguments,
    steady: Steady | None = None,
) -> Screening:
    """Make the reference, and time the kernel that made it.

    A kernel that alone takes longer than all of a screening is timed by the runs that the
    reference takes: the untuned schedule of a large convolution is two hundred times slower than
    what is looked for, and what it takes exactly is for the finals.
    """
    seconds = make_reference(library, facts, protocol)
    if min(seconds) < protocol.screen_s:
        return screen(library, facts, protocol, None, arguments, steady)
    return Screening(tuple(seconds), False)


def screen(
    library: Library,
    facts: KernelFacts,
    protocol: Protocol,
    incumbent_s: float | None,
    arguments: Arguments,
    steady: Steady | None = None,
) -> Screening:
    """Gate, then time, while the machine is `steady`.

    Raises:
        WrongResult: for either seed; nothing is timed then.
    """
    kernel = Kernel(library, facts)
    elapsed = math.inf
    bound: list[Any] = []
    for seed in protocol.seeds:
        inputs, reference = arguments.get(facts, seed)
        bound = kernel.bind(inputs)
        elapsed = _seconds(kernel, bound)
        _check(bound[-1].numpy(), reference, facts, seed, library.multiplies)
    if steady is not None:
        steady.wait()
    number = calls_per_sample(elapsed, protocol)
    turns = kernel.in_turns(bound, protocol)
    first = kernel.sample(turns, number, 1)
    if incumbent_s is not None and first[0] > protocol.truncate_factor * incumbent_s:
        return Screening(tuple(first), True)
    number = calls_per_sample(first[0], protocol)
    repeat = max(
        protocol.screen_samples,
        round(protocol.screening_s(first[0], incumbent_s) / (number * first[0])),
    )

    def measure() -> list[float]:
        return kernel.sample(turns, number, min(repeat, 20))

    return Screening(tuple(steady.undisturbed(measure) if steady else measure()), False)


def calls_per_sample(elapsed_s: float, protocol: Protocol) -> int:
    return max(1, math.ceil(protocol.sample_s / max(elapsed_s, 1e-7)))


def _check(result: Array, reference: Array, facts: KernelFacts, seed: int, multiplies: str) -> None:
    output = facts.args[-1]
    kind = numpy_dtype(output.dtype)
    if (is_byte(kind) or (holds_bytes(kind) and facts.rounds)) and any(
        is_float(numpy_dtype(a.dtype)) for a in facts.args
    ):
        allowed = ROUNDED
    else:
        precision = _precision(facts, multiplies)
        allowed = tolerance(precision, reduction_length(facts.flops, output))
        if facts.rounds:
            holding = any(holds_bytes(numpy_dtype(arg.dtype)) for arg in facts.args)
            allowed = replace(allowed, share=ROUNDED.share, step=STEP if holding else 0.0)
    wrong = disagreement(result, reference, allowed)
    if wrong:
        raise WrongResult(f"inputs of seed {seed}: {wrong}")


def _precision(facts: KernelFacts, multiplies: str) -> str:
    """The narrowest type of floating-point numbers among a kernel's arguments: what it computes may
    be rounded to that inside, or to what it multiplies. That of its result, where this is none of
    them."""
    dtypes = [spec.dtype for spec in facts.args if is_float(numpy_dtype(spec.dtype))]
    if facts.args[-1].dtype not in dtypes:
        return facts.args[-1].dtype
    return narrowest([*dtypes, *([multiplies] if multiplies else [])])


def race(
    request: KernelRace, arguments: Arguments, steady: Steady | None = None
) -> dict[str, list[float]]:
    """Interleaved rounds of several candidates of one kernel, in random order in each round.

    An entry more than `truncate_factor` times slower than the fastest is sampled in every fourth
    round only, and if it is slower than a whole screening, it is called `slow_calls` times in all:
    its verdict is clear, and its time is everybody's.

    Returns:
        Samples in seconds per call, by candidate; at least one each. A candidate whose result is
        wrong now, having been right before, is left out.
    """
    facts, protocol = request.facts, request.protocol
    inputs, reference = arguments.get(facts, protocol.seeds[0])
    kernels: dict[str, tuple[Kernel, list[list[Any]]]] = {}
    estimates: dict[str, float] = {}
    for name, library in request.entries:
        kernel = Kernel(library, facts)
        bound = kernel.bind(inputs)
        estimates[name] = _seconds(kernel, bound)
        try:
            _check(bound[-1].numpy(), reference, facts, protocol.seeds[0], library.multiplies)
            kernels[name] = (kernel, kernel.in_turns(bound, protocol))
        except WrongResult:
            del estimates[name]
    slow = protocol.truncate_factor * min(estimates.values(), default=0.0)
    crawling = {n for n, s in estimates.items() if s > max(slow, protocol.screen_s)}
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    for name, (kernel, (bound, *_)) in kernels.items():
        if name in crawling:
            again = [_seconds(kernel, bound) for _ in range(protocol.slow_calls - 1)]
            samples[name] = again or [estimates[name]]
        else:
            estimates[name] = _seconds(kernel, bound)
    slow = protocol.truncate_factor * min(estimates.values(), default=0.0)
    rng = random.Random(protocol.seed + request.order_seed)
    deadline = time.perf_counter() + request.seconds
    waited_before = steady.waited_s if steady is not None else 0.0
    for turn in range(request.rounds):
        waited = steady.waited_s - waited_before if steady is not None else 0.0
        if turn >= 2 and time.perf_counter() > deadline + waited:
            break
        often = turn < 2 or turn % 4 == 0
        names = [n for n in kernels if n not in crawling and (often or estimates[n] <= slow)]
        rng.shuffle(names)
        if steady is not None:
            steady.wait()
        for name in names:
            kernel, turns = kernels[name]
            samples[name] += kernel.sample(turns, calls_per_sample(estimates[name], protocol), 1)
    return samples


def _seconds(kernel: Kernel, arguments: list[Any]) -> float:
    started = time.perf_counter()
    kernel.run(arguments)
    return time.perf_counter() - started
