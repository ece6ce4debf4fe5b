"""The farm's tokens, which let in: its machines' (who has it may run anything on them), and its
door's (who has it may submit jobs and fetch results). Nothing here imports Ray: that reads its
settings when it is."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from pathlib import Path

from tunefarm.errors import UsageError
from tunefarm.home import Home


def token_path(home: Home) -> Path:
    return home.root / "farm.token"


def door_token_path(home: Home) -> Path:
    return home.root / "door.token"


def make_token(path: Path) -> Path:
    """A token of the farm whose head this is, made if there is none: for its owner's eyes alone."""
    handle, whole = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(whole, path)
    Path(whole).unlink()
    path.chmod(0o600)
    return path


def existing_token(home: Home, named: str | None) -> Path:
    """The machines' token of a farm: the file that was named, or the one in this home.

    Raises:
        UsageError: there is none.
    """
    path = Path(named) if named else token_path(home)
    if not path.is_file():
        raise UsageError(f"there is no {path}", hint="Copy the head's, and name it: --token FILE")
    return path.absolute()


def authentication(token: Path) -> dict[str, str]:
    """The environment in which Ray lets nobody in without the token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def authenticate(token: Path) -> None:
    """Let this process use the farm; before anything imports Ray."""
    assert "ray" not in sys.modules or os.environ.get("RAY_AUTH_MODE") == "token", "too late"
    os.environ.update(authentication(token))
