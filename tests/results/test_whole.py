"""The whole model's figures, from the journal's facts."""

from __future__ import annotations

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.results.facts import COLD, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.results.whole import SERVICE, builds, document, service


@pytest.fixture
def journal(home: Home, device: Device):
    made = Journal(home)
    made.add_job(make_job(), [JobTarget("llvm", device.target, device, "tc")])
    yield made
    made.close()


def measured(journal: Journal, process: int, first: str, first_s: float, tail: int) -> None:
    rows = [
        Measurement("base", "model", process, (4e-3, 4.2e-3, 9e-3)),
        Measurement("tuned", "model", process, (2e-3, 2e-3 + 1e-5 * process)),
        Measurement("tuned", "tail", process, tuple(1e-3 * (1 + n / 100) for n in range(tail))),
    ]
    said = {"build": first, "load_s": 0.02, "first_s": first_s, "peak_bytes": 150_000_000}
    journal.add_event("net-1", COLD, target="llvm", process=process, unit="u", **said)
    journal.add_process("net-1", "llvm", "compare", process, rows)


def test_of_nothing_nothing_is_known(journal: Journal) -> None:
    assert builds(journal, "net-1", "llvm").empty
    assert document(journal, "net-1", "llvm") == []
    assert service(journal, "net-1", "llvm", "tuned") is None


def test_builds_are_told_apart_and_who_was_not_there_has_no_row(journal: Journal) -> None:
    for process in range(6):
        first = ("base", "tuned")[process % 2]
        measured(journal, process, first, {"base": 0.05, "tuned": 0.004}[first], tail=20)
    base, tuned = document(journal, "net-1", "llvm")
    assert (base["build"], tuned["build"]) == ("base", "tuned")
    assert base["median_ms"] == pytest.approx(4.2)
    assert (base["load_ms"], base["first_ms"]) == pytest.approx((20.0, 50.0))
    assert tuned["first_ms"] == pytest.approx(4.0)
    assert tuned["peak_mb"] == pytest.approx(150.0)
    assert base["p90_ms"] is None, "it was not alone"
    assert tuned["p90_ms"] == pytest.approx(1.17, abs=0.01), "120 inferences have 12 beyond it"
    assert tuned["p99_ms"] is None, "and one beyond that"
    assert service(journal, "net-1", "llvm", "tuned") == {
        key: pytest.approx(tuned[key], abs=1e-4) if tuned[key] is not None else None
        for key in SERVICE
    }


def test_a_thousand_inferences_have_a_99th_percentile(journal: Journal) -> None:
    for process in range(6):
        measured(journal, process, "tuned", 0.004, tail=170)
    tuned = document(journal, "net-1", "llvm")[1]
    assert tuned["p99_ms"] == pytest.approx(2.68, abs=0.02)


def test_a_process_that_is_run_again_counts_once(journal: Journal) -> None:
    for first_s in (0.004, 0.009):
        measured(journal, 0, "tuned", first_s, tail=1)
    assert document(journal, "net-1", "llvm")[1]["first_ms"] == pytest.approx(4.0)


def test_a_process_in_a_slow_phase_counts_like_the_others_and_none_alone(journal: Journal) -> None:
    """It has fewer samples in its time; a quantile that only one has gone beyond is none."""
    for process in range(6):
        slow = process == 0
        tail = tuple((5e-3 if slow else 1e-3) + n * 1e-6 for n in range(40 if slow else 170))
        rows = [Measurement("tuned", "model", process, (1e-3,))]
        rows.append(Measurement("tuned", "tail", process, tail))
        journal.add_process("net-1", "llvm", "compare", process, rows)
    (tuned,) = document(journal, "net-1", "llvm")
    assert tuned["p90_ms"] is None, "of 240 samples, 40 are of the slow one"


def test_memory_that_is_not_known_is_not_none_at_all(journal: Journal) -> None:
    said = {"build": "tuned", "load_s": 0.02, "first_s": 0.1, "peak_bytes": 0}
    journal.add_event("net-1", COLD, target="llvm", process=0, unit="u", **said)
    journal.add_measurements("net-1", "llvm", [Measurement("tuned", "model", 0, (1e-3,))])
    assert document(journal, "net-1", "llvm")[0]["peak_mb"] is None
