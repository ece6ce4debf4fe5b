"""The farm's token, which lets in. Nothing here imports Ray: that reads its settings when it is."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path

from tunefarm.home import Home


def token_path(home: Home) -> Path:
    return home.root / "farm.token"


def make_token(home: Home) -> Path:
    """The token of the farm whose head has this home, made if there is none: for its owner's eyes
    alone."""
    path = token_path(home)
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
    path.chmod(0o600)
    return path


def authentication(token: Path) -> dict[str, str]:
    """The environment in which Ray lets nobody in without the token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def authenticate(token: Path) -> None:
    """Let this process use the farm; before anything imports Ray."""
    assert "ray" not in sys.modules or os.environ.get("RAY_AUTH_MODE") == "token", "too late"
    os.environ.update(authentication(token))
