"""The files that requests are about: what each reads, and what is there after it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunefarm.frontend.program import weights_of
from tunefarm.measure import weights
from tunefarm.measure.assemble import AssembleRequest
from tunefarm.measure.build import BuildOutcome, BuildRequest, Library
from tunefarm.measure.expected import ExpectedRequest
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)


@functools.singledispatch
def needs(request: Any) -> list[Path]:
    """The files that `request` reads."""
    raise TypeError(f"{type(request).__name__} is no request")


@functools.singledispatch
def makes(request: Any, answer: Any) -> list[Path]:
    """The files that are there after `request` has been answered with `answer`."""
    return []


def _of_library(library: Library) -> list[Path]:
    return [library.path] + ([library.prepack] if library.prepack else [])


def _of_models(libraries: Iterable[Path]) -> list[Path]:
    return [file for one in libraries for file in (one, weights.beside(one))]


@needs.register
def _(request: BuildRequest) -> list[Path]:
    return [request.workload]


@makes.register
def _(request: BuildRequest, answer: BuildOutcome) -> list[Path]:
    return _of_library(answer.library) if answer.library else []


@needs.register
def _(request: ScreenRequest) -> list[Path]:
    reference = [] if request.make_reference else [request.facts.reference]
    return [*_of_library(request.library), *reference]


@makes.register
def _(request: ScreenRequest, answer: Any) -> list[Path]:
    return [request.facts.reference] if request.make_reference else []


@needs.register
def _(request: RaceRequest) -> list[Path]:
    libraries = [library for _, entries in request.kernels for _, library in entries]
    references = [facts.reference for facts, _ in request.kernels]
    return [*(file for library in libraries for file in _of_library(library)), *references]


@needs.register
def _(request: AssembleRequest) -> list[Path]:
    workloads = [path for _, path in request.workloads]
    return [request.module, weights_of(request.module), *workloads]


@makes.register
def _(request: AssembleRequest, answer: Any) -> list[Path]:
    return _of_models([request.library])


@needs.register
def _(request: ExpectedRequest) -> list[Path]:
    return [request.model]


@makes.register
def _(request: ExpectedRequest, answer: Any) -> list[Path]:
    return [request.file]


@needs.register
def _(request: PlaceRequest) -> list[Path]:
    return _of_models(request.variants)


@needs.register
def _(request: ModelRequest) -> list[Path]:
    return _of_models(request.builds().values())


@needs.register
def _(request: CheckRequest) -> list[Path]:
    return [*_of_models(request.libraries), request.expected]


def relocated(value: Any, old: Path, new: Path) -> Any:
    """`value` with every path below `old` in it below `new`."""
    match value:
        case Path():
            return new / value.relative_to(old) if value.is_relative_to(old) else value
        case tuple():
            return tuple(relocated(one, old, new) for one in value)
        case list():
            return [relocated(one, old, new) for one in value]
        case dict():
            return {relocated(k, old, new): relocated(v, old, new) for k, v in value.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [one.name for one in dataclasses.fields(value) if one.init]
            parts = {name: relocated(getattr(value, name), old, new) for name in names}
            return dataclasses.replace(value, **parts)
    return value
