"""Builds of one model beside each other: timed in turns, checked, watched. Runs in a child."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefarm.devices import cpu
from tunefarm.measure.expected import expected_outputs, parity_inputs
from tunefarm.measure.facts import BUILT_IN, PREVIOUS, Checked, ColdStart, Compared, InPlace
from tunefarm.measure.gate import Array, Parity, make_input, parity
from tunefarm.measure.model import CompiledModel
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import CheckRequest, ModelRequest, PlaceRequest
from tunefarm.measure.steady import NETWORK_S, Steady


def interleave(request: ModelRequest, steady: Steady | None = None) -> Compared:
    """Rounds of all builds in random order, after one warm-up run of each, begun while the machine
    is `steady`; no more than half as long as they take is spent on waiting for it. Then the tuned
    one alone, for its tail.

    Returns:
        At least one sample of each build that is asked for. The job's own end when one of them has
        used up its time: alone, another would find its caches as it left them. For one that is far
        slower than the others see `Protocol.slow_calls`.
    """
    inputs = [
        make_input(spec, 1000 * request.process + index, positive=False)
        for index, spec in enumerate(request.inputs)
    ]
    models: dict[str, CompiledModel] = {}
    bound: dict[str, list[Any]] = {}
    first: dict[str, float] = {}
    starts: list[ColdStart] = []
    for name, library in request.builds().items():
        models[name], bound[name], start = _started(name, library, inputs)
        first[name] = start.first_s
        starts.append(start)
    protocol = request.protocol
    rng = random.Random(protocol.seed + request.process)
    fastest = min(seconds for name, seconds in first.items() if name != PREVIOUS)
    far = protocol.truncate_factor * fastest
    slow = {name for name, s in first.items() if s > max(far, protocol.long_model_s)}
    samples: dict[str, list[float]] = {name: [] for name in models}
    waited = steady.waited_s if steady is not None else 0.0

    def is_due(name: str, turn: int) -> bool:
        if name in slow:  # one call that takes longer than all samples may is told to be enough
            return first[name] <= protocol.model_s and turn < protocol.slow_calls - 1
        own = [one for one in models if one not in slow and one != PREVIOUS]
        used = [PREVIOUS] if name == PREVIOUS else own  # that is not to cut short the job's own
        return turn < 2 or max(sum(samples[one]) for one in used) < protocol.model_s / 2

    for turn in range(protocol.model_rounds):
        names = [name for name in models if is_due(name, turn)]
        rng.shuffle(names)
        for name in names:
            if steady is not None and steady.waited_s - waited < protocol.model_s / 2:
                steady.wait(NETWORK_S)
            samples[name].append(_seconds(models[name], bound[name]))
    told = {name: tuple(found) or (first[name],) for name, found in samples.items()}
    return Compared(told, starts[0], _tail(models["tuned"], bound["tuned"], protocol))


def _started(
    build: str, library: Path, inputs: Sequence[Array]
) -> tuple[CompiledModel, list[Any], ColdStart]:
    """The model, what it is called with, and how long it took; it has been called once."""
    began = time.perf_counter()
    model = CompiledModel(library)
    load_s = time.perf_counter() - began
    arguments = model.upload(inputs)
    first_s = _seconds(model, arguments)
    return model, arguments, ColdStart(build, load_s, first_s, cpu.peak_bytes())


def _tail(model: CompiledModel, arguments: list[Any], protocol: Protocol) -> tuple[float, ...]:
    """`Protocol.tail_calls` inferences, or as many as begin within `tail_s`; after one that finds
    its caches as others have left them."""
    if not protocol.tail_calls:
        return ()
    model.run(arguments)
    found: list[float] = []
    until = time.perf_counter() + protocol.tail_s
    while len(found) < protocol.tail_calls and time.perf_counter() < until:
        found.append(_seconds(model, arguments))
    return tuple(found)


def check(request: CheckRequest) -> Checked:
    """Each library in turn, until one is right; of none, the last one's parity."""
    refused: Parity | None = None
    for library in request.libraries:
        model = CompiledModel(library)
        found = Parity(0.0, 0.0, True)
        for seed in request.protocol.seeds:
            outputs = model(parity_inputs(request.inputs, seed))
            one = parity(outputs, *expected_outputs(request.expected, seed))
            found = max(found, one, key=lambda parity: (not parity.passed, parity.max_rel_err))
        if found.passed:
            watched = library in request.watched
            in_place = _in_place(model, request) if watched else None
            return Checked(library, found, in_place, refused)
        refused = refused or found
    return Checked(library, found, None, refused)


def _in_place(model: CompiledModel, request: CheckRequest) -> InPlace:
    """Medians over rounds of two inferences, one watched, which tells functions apart, and one not,
    neither by graphs: at most `Protocol.model_rounds` in a quarter of `model_s`, at least one."""
    protocol = request.protocol
    arguments = model.upload(
        [make_input(spec, index, positive=False) for index, spec in enumerate(request.inputs)]
    )
    first = [_seconds(model, arguments, one_by_one=True) for _ in range(2)][-1]
    rounds = max(1, min(protocol.model_rounds, int(protocol.model_s / 8 / first)))
    rows, plain = [], []
    for _ in range(rounds):
        rows.append(_watched(model, arguments))
        plain.append(_seconds(model, arguments, one_by_one=True))
    shares = [_in_kernels(row) / seconds for row, seconds in zip(rows, plain, strict=True)]
    return InPlace(
        statistics.median(plain),
        {name: statistics.median(row[name] for row in rows) for name in rows[0]},
        max(0.0, 1.0 - statistics.median(shares)),
    )


def _in_kernels(row: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in row.items() if not name.startswith(BUILT_IN))


def place(request: PlaceRequest, steady: Steady | None) -> list[dict[str, list[float]]]:
    """Rounds of all variants in random order: of each an inference that is not watched, which
    leaves the caches as it would find them, and one that is.

    Returns:
        By variant and function, seconds of each watched inference in it, all calls together;
        nothing of a model that is too slow for enough of them.
    """
    protocol = request.protocol
    inputs = [
        make_input(spec, 1000 * request.process + index, positive=False)
        for index, spec in enumerate(request.inputs)
    ]
    # Who is loaded first has other pages: by turns.
    order = range(len(request.variants))[:: -1 if request.process % 2 else 1]
    models = {number: CompiledModel(request.variants[number]) for number in order}
    bound = {number: model.upload(inputs) for number, model in models.items()}
    for number, model in models.items():
        model.run(bound[number])  # a first one is slower
    slowest = max(_seconds(m, bound[number], one_by_one=True) for number, m in models.items())
    rounds = min(protocol.model_rounds, int(protocol.place_s / slowest))
    if rounds < protocol.place_rounds:
        return []
    rng = random.Random(protocol.seed + request.process)
    found: list[dict[str, list[float]]] = [{} for _ in models]
    for _ in range(rounds):
        if steady is not None:
            steady.wait()
        for number in rng.sample(range(len(models)), len(models)):
            models[number].run(bound[number])
            for name, seconds in _watched(models[number], bound[number]).items():
                found[number].setdefault(name, []).append(seconds)
    return found


def _watched(model: CompiledModel, arguments: list[Any]) -> dict[str, float]:
    """Seconds of one inference in each function, all calls together."""
    clock = time.perf_counter
    begun: list[float] = []
    spent: dict[str, float] = {}

    def watcher(_function: Any, name: str, before: bool, _result: Any, *_: Any) -> int:
        model.finish()  # on a GPU a function returns before it is done
        if before:
            begun.append(clock())
        else:
            spent[name] = spent.get(name, 0.0) + clock() - begun.pop()
        return 0

    model.watch(watcher)
    try:
        model.run(arguments, one_by_one=True)
    finally:
        model.watch(None)
    return spent


def _seconds(model: CompiledModel, arguments: list[Any], one_by_one: bool = False) -> float:
    started = time.perf_counter()
    model.run(arguments, one_by_one)
    return time.perf_counter() - started
