"""Times as people write them."""

from __future__ import annotations

import re

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def seconds_of(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m``, ``1h30m``.

    Raises:
        ValueError: it is none, or not more than nothing.
    """
    said = text.strip().lower()
    seconds = 0.0
    if re.fullmatch(r"\d+(\.\d+)?", said):
        seconds = float(said)
    elif re.fullmatch(r"(\d+(\.\d+)?[hms])+", said):
        parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", said)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError(f"{text!r} is no duration; write 90s, 30m or 1h30m")
    return seconds
