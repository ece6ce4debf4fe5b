"""The command line where processes find a GPU of paper."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

RUN = [sys.executable, "-m", "tunefarm.measure.cuda.emulator"]


def on_paper(*command: object, arch: str = "sm_80") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, "--arch", arch, sys.executable, "-m", "tunefarm", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def submitted(*arguments: object) -> dict[str, Any]:
    """The row of the one target."""
    (row,) = all_submitted(*arguments).values()
    return row


def all_submitted(*arguments: object) -> dict[str, dict[str, Any]]:
    done = on_paper("submit", *arguments, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    rows: dict[str, dict[str, Any]] = json.loads(done.stdout)["targets"]
    for row in rows.values():
        assert row["verdict"] == "UNMEASURED"
        assert row["speedup"] is None
    return rows
