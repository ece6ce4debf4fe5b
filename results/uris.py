"""Addresses as they may be shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def without_password(uri: str) -> str:
    """The address, with ``***`` in the place of a password, as SQLAlchemy shows its own."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if not (at and colon):
        return uri
    return urlunsplit(parts._replace(netloc=f"{name}:***@{host}"))
