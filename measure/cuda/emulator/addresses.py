"""What C hands over by its address: read and written where it lies."""

from __future__ import annotations

import ctypes
from typing import Any


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        *((f"{what}{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def put(place: int, kind: Any, value: Any) -> None:
    kind.from_address(place).value = value


def image_at(place: int) -> bytes:
    """Machine code, whose own header says how long it is, or text."""
    head = ctypes.string_at(place, 64)
    if head[:4] != b"\x7fELF":
        return ctypes.string_at(place)
    end = 0
    for table, each, count in ((32, 54, 56), (40, 58, 60)):
        start = int.from_bytes(head[table : table + 8], "little")
        size = int.from_bytes(head[each : each + 2], "little")
        number = int.from_bytes(head[count : count + 2], "little")
        end = max(end, start + size * number)
    return ctypes.string_at(place, end)
