"""What a runtime is to the benchmark: an adapter, run in processes of its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from tunefarm.frontend.program import TensorSpec

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], list[Array]]
"""One inference: arrays by input name in, arrays in the order of the model's outputs out."""


@dataclass(frozen=True)
class Subject:
    """What every runtime is given.

    Attributes:
        model: the ONNX file; the shapes of its inputs are fixed, and what follows from them.
        inputs: of the model.
        outputs: names of its outputs, in order.
        threads: that an inference may use.
        directory: this runtime's and setting's own, kept from one process to the next.
        artifact: what tunefarm made of the model, None where there is none.
        rounds: what the artifact's job allowed factors of products to be rounded to, "" for
            nothing: runtimes that can may do the same, and all results are held to that.
    """

    model: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    threads: int
    directory: Path
    artifact: Path | None = None
    rounds: str = ""


class Runtime(ABC):
    """One adapter. It is made anew in each process, and nothing of its runtime is imported before
    `prepare` or `load`.

    Attributes:
        name: as `--runtimes` takes it.
        needs: distributions that must be installed, by the module that each brings.
        settings: ways to run it worth comparing; the best one counts.
    """

    name: ClassVar[str]
    needs: ClassVar[Mapping[str, str]]
    settings: ClassVar[tuple[str, ...]] = ("default",)

    def missing(self, subject: Subject) -> str:
        """Why it cannot run here; empty where it can."""
        lacking = [package for module, package in self.needs.items() if not _is_there(module)]
        return f"not installed: pip install {' '.join(lacking)}" if lacking else ""

    def versions(self) -> dict[str, str]:
        """Of what is installed, by distribution: a module may come from another than the usual."""
        owners = importlib.metadata.packages_distributions()
        found = {}
        for module, package in self.needs.items():
            for name in {package, *owners.get(module.partition(".")[0], [])}:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found[name] = importlib.metadata.version(name)
        return found

    def environment(self, threads: int) -> dict[str, str]:
        """Variables of the processes that load and run it."""
        return {}

    def prepared_s(self, subject: Subject) -> float | None:
        """Seconds of work ahead of time that was done before; None for none."""
        return None

    @property
    def prepares(self) -> bool:
        """Whether it has anything to prepare."""
        return type(self).prepare is not Runtime.prepare

    def prepare(self, subject: Subject, setting: str) -> None:  # noqa: B027 - most have nothing
        """Whatever is done once ahead of time, into `subject.directory`; in a process of its own.

        Raises:
            Exception: any; the message is shown.
        """

    @abstractmethod
    def load(self, subject: Subject, setting: str) -> Run:
        """Ready to run, in a fresh process.

        Raises:
            Exception: any; the message is shown.
        """


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False
