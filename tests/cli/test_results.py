"""How a job's outcome is shown to people."""

from __future__ import annotations

from typing import Any

import pytest

from tunefarm.cli.results import service, show


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


SERVED = {"p90_ms": 2.2, "p99_ms": None, "load_ms": 12.0, "first_ms": 4.5, "peak_mb": 160.2}


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        ({}, []),  # an older tunefarm's
        (
            {"service": SERVED, "previous": None},
            [
                "library and weights load in 12 ms, first answer after 4.5 ms, "
                "90th percentile 2.2 ms, peak memory 160 MB"
            ],
        ),
        (
            {"previous": {"speedup": 1.1, "speedup_ci95": [1.05, 1.15], "verdict": "FASTER"}},
            ["FASTER, 1.10x (1.05 to 1.15) as fast as what shipped before (0123456789ab, net-0)"],
        ),
        (
            {"previous": {"speedup": None, "speedup_ci95": None, "verdict": "SAME"}},
            ["the same bytes as what shipped before (0123456789ab, net-0)"],
        ),
        (
            {"previous": {"speedup": None, "speedup_ci95": None, "verdict": "UNMEASURED"}},
            [
                "not compared with what shipped before (0123456789ab, net-0): that did not run "
                "in every process"
            ],
        ),
    ],
)
def test_what_a_service_will_have(told: dict[str, Any], lines: list[str]) -> None:
    if told.get("previous"):
        told = {"previous": {"digest": "0123456789abcdef", "job": "net-0", **told["previous"]}}
    assert service(row("FASTER", **told)) == lines
