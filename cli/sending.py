"""`tunefarm submit` to a farm's door: the model is sent where the farm has not seen it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import show_json

if TYPE_CHECKING:
    from tunefarm.scheduler.door.client import RemoteDesk


def send(
    url: str,
    token: str | None,
    model: Path,
    digest: str,
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Submit, and follow the job until it ends; it does not end with whoever follows it.

    Args:
        digest: SHA-256 of the model's file.
        options: of `wire.Submission`.
    """
    from tunefarm.cli import results, watch
    from tunefarm.cli.desk import open_door
    from tunefarm.errors import FarmUnreachable, Interrupted
    from tunefarm.results.documents import outcome
    from tunefarm.scheduler.desk import follow
    from tunefarm.scheduler.door.wire import Submission, file_name

    desk = open_door(url, token)
    wanted = Submission(model=digest, file=file_name(model.name), **options)
    _send_model(desk, model, wanted.model, wanted.file)
    queued = desk.submit(wanted)
    if detach:
        say_queued(queued, url, as_json)
        return
    click.echo(f"job {queued['job']}", err=True)
    try:
        found = follow(desk, queued["job"], 2.0, watch.say)
    except (KeyboardInterrupt, FarmUnreachable) as error:
        lost = error if isinstance(error, FarmUnreachable) else Interrupted("not followed any more")
        lost.hint = f"The job goes on: tunefarm watch {queued['job']} --farm {url}, or cancel it"
        lost.job = queued["job"]
        raise lost from None
    if as_json:
        show_json(outcome(found))
    else:
        if found["error"]:
            click.echo(f"error: {found['error']}", err=True)
        results.show(found, url)
    sys.exit(found["exit_code"])


def say_queued(queued: dict[str, Any], url: str | None, as_json: bool) -> None:
    """Of a job that runs in the background, here or at a farm."""
    if as_json:
        show_json(queued)
        return
    where = f" --farm {url}" if url else ""
    click.echo(f"job {queued['job']} runs in the background; tunefarm watch {queued['job']}{where}")


def _send_model(desk: RemoteDesk, model: Path, digest: str, file: str) -> None:
    from rich.console import Console
    from rich.progress import wrap_file

    console = Console(stderr=True)
    size = model.stat().st_size
    with (
        open(model, "rb") as plain,
        wrap_file(
            plain, size, description=f"sending {file}", console=console, transient=True
        ) as shown,
    ):
        desk.send(shown if console.is_terminal else plain, digest, file)
