"""Running a whole compiled model, with the TVM runtime alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.runtime.vm import VirtualMachine

from tunefarm.measure import weights
from tunefarm.measure.backend import backend
from tunefarm.measure.weights import Array

ONE_BY_ONE = "one_by_one"
"""What a library for a GPU has besides `main`: the same, whose kernels are begun one by one."""


class CompiledModel:
    """A model's library and weights, loaded; arrays in graph order in and out.

    Args:
        constants: its weights; by default those in the file beside the library.
        kind: of the device; by default that of the process (`measure.backend`). Copies of inputs
            to a GPU, and of outputs back, are a part of every call.
    """

    def __init__(
        self, library: Path, constants: Sequence[Array] | None = None, kind: str | None = None
    ) -> None:
        self._device = backend(kind).device
        self._host = tvm.cpu()
        self._machine = VirtualMachine(tvm.runtime.load_module(str(library)), self._device)
        self._main = self._machine["main"]
        self._one_by_one = self._function(ONE_BY_ONE) or self._main
        if constants is None:
            file = weights.beside(library)
            constants = weights.load(file) if file.exists() else []
        self._constants = constants  # the tensors are views of them
        tensors = [self._tensor(array) for array in constants]
        self._weights = [tvm_ffi.convert(tensors)] if tensors else []
        self._turn = threading.Lock()

    def _function(self, name: str) -> Any:
        """None where the library has none of that name."""
        try:
            return self._machine[name]
        except AttributeError:
            return None

    def _tensor(self, array: Array) -> Any:
        """A copy where it has to be: NumPy hands bfloat16 to nobody."""
        if self._on_gpu or array.dtype.name == "bfloat16":
            return tvm.runtime.tensor(array, self._device)
        return tvm.runtime.from_dlpack(array)

    def upload(self, inputs: Sequence[Array]) -> list[Any]:
        """Copies the runtime may read: aligned as kernels assume, which an array need not be."""
        return [tvm.runtime.tensor(array, self._host) for array in inputs]

    @property
    def _on_gpu(self) -> bool:
        return bool(self._device != self._host)

    def run(self, arguments: list[Any], one_by_one: bool = False) -> Any:
        """Its outputs, on the host; `one_by_one` without graphs, which on a processor there are
        none of."""
        main = self._one_by_one if one_by_one else self._main
        if not self._on_gpu:
            return main(*arguments, *self._weights)
        there = [argument.copyto(self._device) for argument in arguments]
        result = main(*there, *self._weights)
        if hasattr(result, "copyto"):
            return result.copyto(self._host)
        return [one.copyto(self._host) for one in result]

    def finish(self) -> None:
        """Returns when all that was begun is done."""
        if self._on_gpu:
            self._device.sync()

    def watch(self, watcher: Callable[..., int] | None) -> None:
        """Have `watcher` called before and after each function of the library, see
        `VirtualMachine.set_instrument`; in graphs nobody is called."""
        self._machine.set_instrument(watcher)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """One inference; of several threads' one at a time, for the virtual machine keeps where a
        call has got to, and a graph its storage, for all of them."""
        with self._turn:
            result = self.run(self.upload(inputs))
            outputs = [result] if hasattr(result, "numpy") else list(result)
            return [output.numpy() for output in outputs]
