"""Requests and answers as JSON, for where no Ray is between who asks and who measures.

Only the types listed here are read, so a file from elsewhere is data and nothing else. Paths are
below the job's directory on either side.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tunefarm.errors import Failure, FailureKind
from tunefarm.frontend.program import TensorSpec
from tunefarm.measure.build import Library
from tunefarm.measure.cuda.compiler import Resources
from tunefarm.measure.facts import (
    Block,
    Checked,
    ColdStart,
    Compared,
    InPlace,
    KernelFacts,
    Raced,
    Screening,
    ScreenOutcome,
)
from tunefarm.measure.gate import Parity
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.requests import (
    CheckRequest,
    ModelRequest,
    PlaceRequest,
    RaceRequest,
    ScreenRequest,
)

_TYPES: tuple[type, ...] = (
    *(ScreenRequest, RaceRequest, PlaceRequest, ModelRequest, CheckRequest),
    *(ScreenOutcome, Screening, Raced, Compared, ColdStart, Checked, Parity, InPlace),
    *(Failure, Block),
    *(Library, Resources, KernelFacts, TensorSpec, Protocol),
)
_BY_NAME = {one.__name__: one for one in _TYPES}


class WireError(ValueError):
    """It is no such document."""


def to_wire(value: Any, root: Path) -> Any:
    """`value` as JSON's own types.

    Raises:
        WireError: it holds something that is not listed, or a path that is not below `root`.
    """
    match value:
        case None | bool() | FailureKind() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case Path():
            try:
                return {"path": value.relative_to(root).as_posix()}
            except ValueError:
                raise WireError(f"{value} is not below {root}") from None
        case tuple() | list():
            return [to_wire(one, root) for one in value]
        case Mapping():
            return {"of": {str(key): to_wire(one, root) for key, one in value.items()}}
    if type(value).__name__ not in _BY_NAME:
        raise WireError(f"{type(value).__name__} does not travel")
    fields = {f.name: to_wire(getattr(value, f.name), root) for f in dataclasses.fields(value)}
    return {"is": type(value).__name__, **fields}


def from_wire(data: Any, root: Path) -> Any:
    """What `to_wire` was given, with its paths below `root`; sequences are tuples.

    Raises:
        WireError: it is no such document, a path leaves `root`, or a part is not of its type.
    """
    if isinstance(data, list):
        return tuple(from_wire(one, root) for one in data)
    if not isinstance(data, dict):
        return data
    if set(data) == {"path"}:
        path = PurePosixPath(data["path"])
        if path.is_absolute() or ".." in path.parts:
            raise WireError(f"{data['path']!r} is not below its job")
        return root / path
    try:
        if set(data) == {"of"}:
            return {key: from_wire(one, root) for key, one in data["of"].items()}
        if set(data) == {"float"}:
            return float(data["float"])
        of = _BY_NAME[data["is"]]
        fields = {key: from_wire(one, root) for key, one in data.items() if key != "is"}
        if of is Failure:
            fields["kind"] = FailureKind(fields["kind"])
        made = of(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"not understood: {error}") from error
    for name, hint in typing.get_type_hints(of).items():
        if not fits(getattr(made, name), hint):
            raise WireError(f"{of.__name__}.{name} is no {hint}")
    return made


def fits(value: Any, hint: Any) -> bool:
    """Whether `value`, as it comes off the wire, is what a type says: of those that travel."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, one) for one in inside)
    if origin is tuple and inside and inside[-1] is Ellipsis:
        return isinstance(value, tuple) and all(fits(one, inside[0]) for one in value)
    if origin is tuple:
        return (
            isinstance(value, tuple) and len(value) == len(inside) and all(map(fits, value, inside))
        )
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, inside[1]) for one in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if hint in (None, type(None)) else isinstance(value, hint)


def canonical(value: Any, root: Path) -> str:
    """Equal requests, equal text."""
    return json.dumps(to_wire(value, root), sort_keys=True)
