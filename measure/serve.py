"""What the runner's child answers with. Importing this module is the child's warm-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.measure import builds, kernel
from tunefarm.measure.backend import backend
from tunefarm.measure.facts import Compared, Screening
from tunefarm.measure.requests import (
    CheckRequest,
    KernelRace,
    ModelRequest,
    PlaceRequest,
    Prepare,
    ScreenRequest,
)
from tunefarm.measure.steady import steady_from_environment

backend()  # a device that is not there is found out before anything is asked of it
_ARGUMENTS = kernel.Arguments()
_STEADY = steady_from_environment()


def serve(request: Any) -> Any:
    return _HANDLERS[type(request)](request)


def _prepare(request: Prepare) -> None:
    for seed in request.seeds:
        _ARGUMENTS.get(request.facts, seed)
    if _STEADY is not None:
        _STEADY.wait(request.wait_s)


def _screen(request: ScreenRequest) -> Screening:
    if request.make_reference:
        return kernel.screen_untuned(
            request.library, request.facts, request.protocol, _ARGUMENTS, _STEADY
        )
    return kernel.screen(
        request.library, request.facts, request.protocol, request.incumbent_s, _ARGUMENTS, _STEADY
    )


def _race(request: KernelRace) -> dict[str, list[float]]:
    return kernel.race(request, _ARGUMENTS, _STEADY)


def _model(request: ModelRequest) -> Compared:
    return builds.interleave(request, _STEADY)


def _place(request: PlaceRequest) -> list[dict[str, list[float]]]:
    return builds.place(request, _STEADY)


def _named(request: str) -> Any:
    if request == "conditions":
        return backend().conditions()
    if request == "canary":
        return backend().canary()
    return _STEADY is None or _STEADY.there()


_HANDLERS: dict[type, Callable[[Any], Any]] = {
    Prepare: _prepare,
    ScreenRequest: _screen,
    KernelRace: _race,
    ModelRequest: _model,
    CheckRequest: builds.check,
    PlaceRequest: _place,
    str: _named,
}
