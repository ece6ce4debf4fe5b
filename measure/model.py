"""Running whole compiled models, with the TVM runtime alone."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm.runtime.vm import VirtualMachine

from tunefarm.measure.gate import Array, make_input

if TYPE_CHECKING:
    from tunefarm.measure.runner import ModelRequest


class CompiledModel:
    """A model's library, loaded; arrays in graph order in and out."""

    def __init__(self, library: Path) -> None:
        self._device = tvm.cpu()
        self._machine = VirtualMachine(tvm.runtime.load_module(str(library)), self._device)
        self._main = self._machine["main"]

    def upload(self, inputs: Sequence[Array]) -> list[Any]:
        """Copies the runtime may read: aligned as kernels assume, which an array need not be."""
        return [tvm.runtime.tensor(array, self._device) for array in inputs]

    def run(self, arguments: list[Any]) -> Any:
        return self._main(*arguments)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        result = self.run(self.upload(inputs))
        outputs = [result] if hasattr(result, "numpy") else list(result)
        return [output.numpy() for output in outputs]


def interleave(request: ModelRequest) -> dict[str, list[float]]:
    """Rounds of both builds in random order, after one warm-up run of each.

    Returns:
        Seconds per inference of ``base`` and ``tuned``, at least two each. Once one of them has
        used up its time, the other goes on alone.
    """
    models = {"base": CompiledModel(request.base), "tuned": CompiledModel(request.tuned)}
    inputs = [
        make_input(spec, 1000 * request.process + index, positive=False)
        for index, spec in enumerate(request.inputs)
    ]
    bound = {name: model.upload(inputs) for name, model in models.items()}
    for name, model in models.items():
        model.run(bound[name])
    samples: dict[str, list[float]] = {name: [] for name in models}
    spent = dict.fromkeys(models, 0.0)
    rng = random.Random(request.protocol.seed + request.process)
    for turn in range(request.protocol.model_rounds):
        names = [n for n in models if turn < 2 or spent[n] < request.protocol.model_s / 2]
        rng.shuffle(names)
        for name in names:
            started = time.perf_counter()
            models[name].run(bound[name])
            elapsed = time.perf_counter() - started
            samples[name].append(elapsed)
            spent[name] += elapsed
    return samples
