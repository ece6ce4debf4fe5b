"""How a command finds the farm that it is about: its home here, or its door elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tunefarm.scheduler.desk import Desk
    from tunefarm.scheduler.door.client import RemoteDesk

Command = TypeVar("Command", bound=Callable[..., Any])


def farm_options(command: Command) -> Command:
    """``--farm`` and ``--token``, for commands that ask a farm's door."""
    token = click.option(
        "--token",
        envvar="TUNEFARM_FARM_TOKEN",
        metavar="FILE",
        help="The door's token.  [default: $TUNEFARM_FARM_TOKEN, or door.token in this home]",
    )
    farm = click.option(
        "--farm",
        envvar="TUNEFARM_FARM",
        metavar="URL",
        help="The farm whose door is there (http://HOST:PORT).  [default: $TUNEFARM_FARM, or this "
        "machine's own]",
    )
    return farm(token(command))


def is_door(address: str | None) -> bool:
    return address is not None and address.startswith(("http://", "https://"))


def door_at(farm: str | None) -> str | None:
    """The door's address; None where this machine's home is meant.

    Raises:
        UsageError: it is no door's.
    """
    from tunefarm.errors import UsageError

    if farm is None or is_door(farm):
        return farm
    if farm == os.environ.get("TUNEFARM_FARM"):
        return None  # HOST:PORT, at the head: it is there for `submit`
    raise UsageError(
        f"--farm {farm}: this command asks a farm's door, http://HOST:PORT",
        hint="tunefarm up says where it is.",
    )


def open_desk(farm: str | None, token: str | None) -> Desk:
    """At the farm's door, or at the home of this machine."""
    from tunefarm.home import Home
    from tunefarm.scheduler.desk import HomeDesk

    url = door_at(farm)
    return open_door(url, token) if url else HomeDesk(Home.from_environment().prepare())


def open_door(url: str, token: str | None) -> RemoteDesk:
    """
    Raises:
        UsageError: there is no such token.
    """
    from tunefarm.errors import UsageError
    from tunefarm.home import Home
    from tunefarm.scheduler.door.client import RemoteDesk
    from tunefarm.scheduler.token import door_token_path

    path = Path(token) if token else door_token_path(Home.from_environment())
    try:
        return RemoteDesk(url, path.read_text().strip())
    except OSError as error:
        raise UsageError(
            f"the door's token {path} cannot be read: {error.strerror}",
            hint="Copy door.token of the head's home, and name it: --token FILE",
        ) from None
