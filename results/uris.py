"""Addresses as they may be shown."""

from __future__ import annotations

import re

_USER = re.compile(r"://([^:/@?#]*):(?!\d+(?:[/?#]|$))(.*?)@(?=[^@/]*(?:[/?#]|$))")
"""A name and a password before a host. Of a password everything is taken but what ends it: whoever
writes addresses by hand leaves out what should be escaped."""
_QUERY = re.compile(r"([?&][^=&#]*(?:pass|pwd|token|secret)[^=&#]*=)[^&#]*", re.IGNORECASE)


def without_password(uri: str) -> str:
    """The address, with ``***`` in the place of a password, as SQLAlchemy shows its own."""
    return _QUERY.sub(r"\1***", _USER.sub(r"://\1:***@", uri))
