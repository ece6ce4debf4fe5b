"""A child that cannot begin the first time: what it needs is not free yet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_been = Path(os.environ["TUNEFARM_TEST_LATE"])
if not _been.exists():
    _been.touch()
    sys.exit("it is not free yet")


def serve(request: str) -> str:
    if request == "fault":
        raise ValueError("a fault")
    if request == "fault, and take it along":
        _been.unlink()
        os._exit(3)
    return request
