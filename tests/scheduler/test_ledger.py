"""What jobs that run beside this one have measured counts once, and for both."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.results.test_journal import make_job
from tunefarm.devices.device import Device
from tunefarm.errors import Failure, FailureKind
from tunefarm.frontend.program import TuningTask
from tunefarm.home import Home
from tunefarm.measure.facts import Raced, Screening, ScreenOutcome
from tunefarm.results.driver_lock import DriverLock
from tunefarm.results.facts import JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.results.known import note_between
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import (
    Build,
    Builders,
    Imported,
    Joined,
    Phase,
    ProcessDone,
    Screened,
    Task,
)
from tunefarm.scheduler.plausible import Implausible
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate, baseline

BETWEEN = 1000


def test_results_of_a_job_that_runs_beside_are_taken_over(home: Home, device: Device) -> None:
    journal = Journal(home)
    target = JobTarget("llvm", device.target, device, "tc")
    older, younger = make_job(job="net-1"), make_job(job="net-2")
    for job in (older, younger):
        journal.add_job(job, [target])
        note_between(journal, job.id, "llvm", BETWEEN)
        journal.add_tasks(job.id, "llvm", [TuningTask("task", "matmul", ("f",), 1, 1.0, 1, ())])
    theirs = [
        Candidate("task", device.target.text, "tc", f"[[{n}],[]]", "random") for n in range(4)
    ]
    journal.add_candidates("net-1", "llvm", theirs)
    for number, one in enumerate(theirs[:3]):
        made = Measurement(one.id, "screen", 0, (1e-3 * (number + 1),))
        journal.add_measurements("net-1", "llvm", [made])

    ledger, state = Ledger(journal, younger, target), TargetState(Limits(trials=10))
    untuned = baseline("task", device.target.text, "tc")
    ledger.candidates[untuned.id] = untuned
    state.handle(Imported((Task("task", 1, untuned.id),)))
    state.handle(Joined("unit0"))
    state.handle(Builders(1))
    state.handle(Screened(untuned.id, 9e-3))
    assert state.phase is Phase.TUNE
    assert ledger.hear_of_others(BETWEEN, state.room()) == [], "that job is not running"

    lock = DriverLock(home, "net-1")
    assert lock.acquire()
    asked = dict(state.proposing)
    for event in ledger.hear_of_others(BETWEEN, 2):
        given = [one.instruction for one in state.handle(event)]
        assert not any(isinstance(one, Build) for one in given), "its result is known"
        state.validate()
    assert state.measured == 2
    assert state.proposing == asked, "what was asked for is still to come"
    assert state.room() + sum(asked.values()) == 8, "they are on its account"
    assert state.tasks["task"].latency_s == 1e-3
    for event in ledger.hear_of_others(BETWEEN, 10):
        state.handle(event)
    assert state.measured == 3, "each once, and none that has no result"
    assert ledger.hear_of_others(BETWEEN, 10) == []
    assert {one.id for one in journal.candidates("net-2", "llvm")} == {c.id for c in theirs[:3]}

    again = TargetState(Limits(trials=10))
    again.restore(Imported((Task("task", 1, untuned.id),)))
    resumed = Ledger(journal, younger, target, {untuned.id: untuned})
    assert len(resumed.take_known(BETWEEN)) == 3
    resumed.retell(again)
    assert again.measured == 3, "a job that is resumed knows them still"
    lock.release()
    journal.close()


def test_a_slower_unit_is_not_held_against_a_candidate(home: Home, device: Device) -> None:
    journal = Journal(home)
    target = JobTarget("llvm", device.target, device, "tc")
    job = make_job()
    journal.add_job(job, [target])
    ledger = Ledger(journal, job, target)
    told = []
    for unit, canary_s in (("unit0", 1.0), ("unit1", 1.1)):
        one = Candidate("task", device.target.text, "tc", f"[[{unit!r}],[]]", "random")
        ledger.candidates[one.id] = one
        outcome = ScreenOutcome(Screening((2e-3 * canary_s,), False), None)
        block = SimpleNamespace(canary_s=canary_s, conditions={})
        fact = ledger.screened(one.id, unit, outcome, block)
        told.append((fact.latency_s or 0.0) / canary_s)
    assert told[0] == 2e-3, "alone it is its own measure"
    assert told[1] < 2e-3, "and not by all of its tenth, of which one unit is half"
    latencies = [latency for _, latency, _ in journal.outcomes(job.id, "llvm")]
    assert latencies[0] == pytest.approx(latencies[1])
    journal.close()


def test_who_faults_in_a_race_is_on_record(home: Home, device: Device) -> None:
    journal = Journal(home)
    target, job = JobTarget("llvm", device.target, device, "tc"), make_job()
    journal.add_job(job, [target])
    ledger = Ledger(journal, job, target)
    both = [Candidate("task", device.target.text, "tc", f"[[{n}],[]]", "random") for n in "ab"]
    ledger.candidates.update({one.id: one for one in both})
    sound, faulty = (one.id for one in both)
    fault = Failure(FailureKind.CRASH, "SIGSEGV")
    answer = Raced({"task": {sound: (1e-3,)}}, {faulty: fault, "nobody's": fault})
    with pytest.raises(Implausible):
        ledger.raced(Phase.RACE, 0, "unit0", Raced({"task": {sound: (-1.0,)}}, answer.faults))
    assert journal.faults(job.id, "llvm") == []
    assert ledger.raced(Phase.RACE, 0, "unit0", answer) == ProcessDone(Phase.RACE, 0)
    (told,) = journal.faults(job.id, "llvm")
    assert told == {
        "target": "llvm",
        "phase": "race",
        "candidate": faulty,
        "kind": "crash",
        "message": "SIGSEGV",
        "unit": "unit0",
    }
    assert [m.candidate for m in journal.measurements(job.id, "llvm", ("race",))] == [sound]
    journal.close()
