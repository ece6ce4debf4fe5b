"""What the commands share: output, errors, and option types."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tunefarm.durations import seconds_of
from tunefarm.errors import TunefarmError

if TYPE_CHECKING:
    from tunefarm.home import Home
    from tunefarm.results.facts import Job
    from tunefarm.results.journal import Journal

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print exactly one JSON document on standard output."
)


def fail(error: TunefarmError, as_json: bool) -> NoReturn:
    """Say what went wrong on standard error, and leave with the error's exit code."""
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(error.message, err=True)
    if error.hint:
        click.echo(f"  {error.hint}", err=True)
    if as_json:
        show_json(error.document())
    sys.exit(error.exit_code)


def show_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2))


def open_job(wanted: str) -> tuple[Home, Journal, Job]:
    """The farm home, its journal, and the job (by id, name or beginning of an id).

    Raises:
        UnknownJob: there is none.
    """
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal

    home = Home.from_environment().prepare()
    journal = Journal(home)
    return home, journal, journal.job(wanted)


class Duration(click.ParamType[float]):
    """Seconds from ``90``, ``90s``, ``30m``, ``1h30m``."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            return seconds_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[float]):
    """Seconds since the epoch from ``2026-05-04T03:02:01Z``, as everything is printed here; another
    offset in its place, or none, which is UTC; the time of day may be missing."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time; write 2026-05-04T03:02:01Z", param, ctx)
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()


class Shape(click.ParamType[tuple[str, tuple[int, ...]]]):
    """``x=1,3,224,224``"""

    name = "name=d,d,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, tuple[int, ...]]:
        if isinstance(value, tuple):
            return value
        name, equals, dims = str(value).rpartition("=")
        if not equals or not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", dims):
            self.fail(f"{value!r} is no shape; write input=1,3,224,224", param, ctx)
        return name, tuple(int(d) for d in dims.split(","))


def format_seconds(seconds: float | None) -> str:
    """65 -> 1:05; None -> -"""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_ratio(ratio: float) -> str:
    """66.7, 1.04: near one the second decimal tells faster from slower."""
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def format_latency(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.4g} ms"
