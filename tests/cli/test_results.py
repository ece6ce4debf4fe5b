"""How a job's outcome is shown to people."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.cli.results import show


def row(verdict: str, **times: Any) -> dict[str, Any]:
    unknown = {"baseline_ms": None, "tuned_ms": None, "speedup": None, "speedup_ci95": None}
    parity = {"max_abs_err": 1e-7, "max_rel_err": 1e-6, "passed": True, "ran_on": "here"}
    of_all = {"tasks": 3, "candidates": 40, "failures": {}, "artifact": "a.tfa", "wall_s": 61.0}
    return {"verdict": verdict, "parity": parity, **of_all, **unknown, **times}


MEASURED = row("FASTER", baseline_ms=4.0, tuned_ms=2.0, speedup=2.0, speedup_ci95=[1.9, 2.1])


@pytest.mark.parametrize(
    ("targets", "heads"),
    [
        ({"llvm": MEASURED}, ["target", "verdict", "untuned", "tuned", "faster", "95", "time"]),
        ({"cuda:arch=sm_90": row("UNMEASURED")}, ["target", "verdict", "time"]),
        ({"llvm": MEASURED, "cuda": {"skipped": "no device"}}, ["target", "untuned", "time"]),
        ({"cuda": {"skipped": "no device"}}, ["target", "verdict"]),
    ],
)
def test_columns_are_of_what_is_known(capsys, targets: dict[str, Any], heads: list[str]) -> None:
    show({"name": "net", "job": "net-1", "targets": targets, "report": "/h/jobs/net-1/report.html"})
    said = capsys.readouterr().out
    head = next(line for line in said.splitlines() if "target" in line)
    assert [one for one in heads if one not in head] == []
    assert ("untuned" in head) == any(
        "speedup" in one and one["speedup"] for one in targets.values()
    )
    for target in targets:
        assert target in said, "whole, however long"
