"""What `make torture` found is put down in torture.json, beside what it ran on."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Report = Callable[..., None]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Call it with the counts of a test that has gone well."""
    path = Path(request.config.rootpath) / "torture.json"
    began = time.monotonic()

    def put_down(**counts: object) -> None:
        found = json.loads(path.read_text()) if path.exists() else {}
        found[request.node.name] = {
            **counts,
            "seconds": round(time.monotonic() - began, 1),
            "python": platform.python_version(),
            "when": time.strftime("%Y-%m-%d"),
        }
        path.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")

    return put_down
