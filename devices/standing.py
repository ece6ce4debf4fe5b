"""Whether a registered device may be used: what people (and jobs) have said of it.

Kept beside its registration in a file of its own, so that probing it again does not forget.
"""

from __future__ import annotations

import enum
import json
import time
from dataclasses import asdict, dataclass

from tunefarm.errors import NoDevice
from tunefarm.home import Home, write_atomically


class Use(enum.StrEnum):
    FREE = "free"
    DRAINING = "draining"
    """The job that is on it goes on to its end; no other begins."""
    QUARANTINED = "quarantined"
    """Nobody measures on it; the job that did is interrupted."""


@dataclass(frozen=True)
class Standing:
    """`since` is seconds since the epoch, `reason` for people."""

    use: Use = Use.FREE
    reason: str = ""
    since: float = 0.0

    def words(self) -> str:
        return f"{self.use.value}: {self.reason}" if self.reason else self.use.value

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def standing(home: Home, device: str) -> Standing:
    """Of the device with this id. A file that cannot be read quarantines: what it said may have
    been a reason to."""
    path = home.devices / f"{device}.standing"
    try:
        data = json.loads(path.read_text())
        return Standing(Use(data["use"]), str(data["reason"]), float(data["since"]))
    except FileNotFoundError:
        return Standing()
    except (OSError, ValueError, KeyError, TypeError):
        return Standing(Use.QUARANTINED, f"{path} cannot be read")


def set_standing(home: Home, device: str, use: Use, reason: str) -> None:
    """From now on."""
    path = home.devices / f"{device}.standing"
    if use is Use.FREE:
        path.unlink(missing_ok=True)
        return
    text = json.dumps(Standing(use, reason, time.time()).to_dict(), indent=2) + "\n"
    write_atomically(path, text.encode())


def check_free(home: Home, device: str) -> None:
    """Before a job takes the device.

    Raises:
        NoDevice: it is not to be used.
    """
    found = standing(home, device)
    if found.use is not Use.FREE:
        raise NoDevice(
            f"device {device} is {found.words()}",
            hint=f"Let it be used again: tunefarm devices release {device}",
        )
