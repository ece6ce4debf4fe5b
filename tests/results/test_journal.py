"""The journal's promises: stored once, read back, derived status, clear refusals."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tunefarm.devices.device import Device
from tunefarm.errors import Failure, FailureKind, Fenced, StoreError, UnknownJob
from tunefarm.frontend.program import TuningTask
from tunefarm.home import Home
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results.driver_lock import DriverLock
from tunefarm.results.facts import Job, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.results.known import in_models, known, known_before, note_between, twin
from tunefarm.results.record import BEGINS_WITHIN_S
from tunefarm.search.candidate import Candidate


def make_job(name: str = "net", job: str = "net-1") -> Job:
    options = {"skipped": {}, "tracking_uri": "sqlite://", "strategy": "random", "seed": 0}
    return Job(job, name, time.time(), "0" * 64, "net.onnx", options, Protocol().to_dict())


@pytest.fixture
def journal(home: Home, device: Device):
    with_target = Journal(home)
    with_target.add_job(make_job(), [JobTarget("llvm", device.target, device, "tc")])
    yield with_target
    with_target.close()


def test_facts_are_stored_once_and_read_back(journal: Journal, device: Device) -> None:
    candidate = Candidate("task", device.target.text, "tc", "[[],[]]", "random")
    measurement = Measurement(candidate.id, "screen", 0, (1e-3, 2e-3), False, 0.5, None)
    for _ in range(2):
        journal.add_candidates("net-1", "llvm", [candidate])
        journal.add_measurements("net-1", "llvm", [measurement])
        journal.add_failure("net-1", "llvm", "other", Failure(FailureKind.CRASH, "SIGSEGV"))
    assert journal.candidates("net-1", "llvm") == [candidate]
    assert journal.measurements("net-1", "llvm") == [measurement]
    assert [f["kind"] for f in journal.failures("net-1", "llvm")] == ["crash"]
    assert journal.counts("net-1") == {"measured": 1, "failed": 1, "proposed": 1}


def test_a_second_delivery_does_not_change_the_first(journal: Journal) -> None:
    for samples in ((1.0,), (9.0,)):
        journal.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, samples)])
    assert journal.measurements("net-1", "llvm")[0].samples == (1.0,)


def test_verdicts(journal: Journal) -> None:
    result = Comparison(2.0, 1.0, 2.0, 1.9, 2.1, Verdict.FASTER)
    journal.add_verdict("net-1", "llvm", "model", None, result)
    journal.add_verdict("net-1", "llvm", "task", None, None)
    rows = journal.verdicts("net-1", "llvm")
    assert rows["model"]["verdict"] == "FASTER"
    assert rows["task"]["verdict"] == "UNMEASURED"


@pytest.mark.slow
def test_status_follows_events_and_the_drivers_life(home: Home, journal: Journal) -> None:
    assert journal.status("net-1") == "queued"
    lock = DriverLock(home, "net-1")
    assert lock.acquire()
    journal.add_event("net-1", "running")
    assert _status_elsewhere(home) == "running"
    lock.release()
    assert journal.status("net-1") == "interrupted"
    journal.add_event("net-1", "succeeded")
    assert journal.status("net-1") == "succeeded"


@pytest.mark.slow
def test_a_job_that_nobody_ever_drove_is_not_queued_for_good(home: Home, journal: Journal) -> None:
    """Whoever submitted it fell before it was driven."""
    timed = Journal(home, clock=lambda: time.time() - BEGINS_WITHIN_S - 1)
    timed.add_job(make_job(job="late-1"), [])
    assert timed.status("late-1") == "interrupted"
    lock = DriverLock(home, "late-1")
    assert lock.acquire()
    assert _status_elsewhere(home, "late-1") == "queued"
    lock.release()
    timed.close()


def test_a_job_without_a_name_is_no_job(journal: Journal) -> None:
    assert journal.job("net").id == "net-1"
    with pytest.raises(UnknownJob, match="no job is named"):
        journal.job("")


def _status_elsewhere(home: Home, job: str = "net-1") -> str:
    code = (
        "from tunefarm.home import Home; from tunefarm.results.journal import Journal;"
        f"print(Journal(Home.from_environment()).status('{job}'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_time_spent_adds_up_over_lives(home: Home, journal: Journal) -> None:
    moments: list[float] = []
    timed = Journal(home, clock=lambda: moments[-1])

    def at(moment: float, kind: str) -> None:
        moments.append(moment)
        timed.add_event("net-1", kind)

    now = time.time()
    at(now + 100, "running")
    at(now + 150, "interrupted")
    assert journal.spent_s("net-1") == pytest.approx(50)
    at(now + 500, "running")
    moments.append(now + 530)
    timed.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (1.0,))])
    assert journal.spent_s("net-1") == pytest.approx(80), "killed, last seen at its last fact"
    at(now + 600, "queued")
    assert journal.spent_s("net-1") == pytest.approx(80), "what it was dead is nobody's time"
    at(now + 600, "running")
    at(now + 610, "waits")
    at(now + 650, "goes_on")
    at(now + 655, "waits")
    at(now + 700, "interrupted")
    assert journal.spent_s("net-1") == pytest.approx(95), "waiting for a turn is not driving"
    at(now + 800, "running")
    at(now + 810, "succeeded")
    timed.close()


def test_outcomes_come_in_the_order_in_which_they_happened(journal: Journal) -> None:
    journal.add_measurements("net-1", "llvm", [Measurement("a", "baseline", 0, (3.0, 1.0, 2.0))])
    journal.add_failure("net-1", "llvm", "b", Failure(FailureKind.CRASH, ""))
    journal.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (4.0,), True)])
    journal.add_measurements("net-1", "llvm", [Measurement("a", "race", 0, (9.0,))])
    found = journal.outcomes("net-1", "llvm")
    assert found == [("a", 2.0, False), ("b", None, False), ("c", 4.0, True)]


def test_outcomes_of_several_units_can_be_compared(journal: Journal) -> None:
    """The second unit is a tenth slower, as its canary says."""
    for unit, canary_s in (("unit0", 1.0), ("unit1", 1.1)):
        journal.add_block("net-1", "llvm", canary_s, {}, unit)
        made = Measurement(f"on {unit}", "screen", 0, (2e-3 * canary_s,), unit=unit)
        journal.add_measurements("net-1", "llvm", [made])
    (_, first, _), (_, second, _) = journal.outcomes("net-1", "llvm")
    assert first == pytest.approx(second)
    assert [m.samples for m in journal.measurements("net-1", "llvm")] == [(2e-3,), (2.2e-3,)]


def test_the_same_is_not_begun_twice(home: Home, journal: Journal, device: Device) -> None:
    targets = [JobTarget("llvm", device.target, device, "tc")]
    again = make_job(job="net-2")
    lock = DriverLock(home, "net-1")
    assert lock.acquire()
    found = twin(journal, again, targets)
    assert found is not None
    assert found.id == "net-1"
    otherwise = dataclasses.replace(again, options={**again.options, "seed": 1})
    assert twin(journal, otherwise, targets) is None
    assert twin(journal, dataclasses.replace(again, model_digest="1" * 64), targets) is None
    assert twin(journal, again, [dataclasses.replace(targets[0], name="host")]) is None
    journal.add_event("net-1", "succeeded")
    assert twin(journal, again, targets) is None, "that is what is known, not what is being done"
    lock.release()


def test_results_of_earlier_jobs_are_known(journal: Journal, device: Device) -> None:
    task = TuningTask("task", "matmul", ("f",), 1, 1.0, 1, ())
    earlier = [
        Candidate("task", device.target.text, "tc", f"[[{i}],[]]", "random") for i in range(4)
    ]
    elsewhere = Candidate("other", device.target.text, "tc", "[[],[]]", "random")
    journal.add_candidates("net-1", "llvm", [*earlier, elsewhere])
    medians = (3e-3, 1e-3, 2e-3)
    journal.add_measurements(
        "net-1",
        "llvm",
        [
            *(Measurement(c.id, "screen", 0, (s,)) for c, s in zip(earlier, medians, strict=False)),
            Measurement(elsewhere.id, "screen", 0, (1e-3,)),
        ],
    )
    journal.add_failure("net-1", "llvm", earlier[3].id, Failure(FailureKind.CRASH, "SIGSEGV"))
    first = journal.job("net-1")
    for _ in range(2):
        note_between(journal, first.id, "llvm", 1000)
    assert [event["kind"] for event in journal.events(first.id)].count("between") == 1
    assert known(journal, first, journal.targets("net-1")[0], 1000) == [], "no job knows its own"
    other_device = dataclasses.replace(device, sku="another processor")
    for number, (toolchain, where) in enumerate(
        [("tc", device), ("newer", device), ("tc", other_device)]
    ):
        later = make_job(job=f"net-{number + 2}")
        target = JobTarget("llvm", where.target, where, toolchain)
        journal.add_job(later, [target])
        journal.add_tasks(later.id, "llvm", [task])
        note_between(journal, later.id, "llvm", 1500)
        found = known(journal, later, target, 1500)
        if number:
            assert found == [], "another toolchain, another kind of device"
            continue
        assert [k.candidate for k in found] == [earlier[1], earlier[2], earlier[0]]
        assert [k.latency_s for k in found] == [1e-3, 2e-3, 3e-3]
        assert known(journal, later, target, 1500, top=1) == found[:1]
        assert known(journal, later, target, 3000) == [], "of a model in which kernels are colder"
        hot = known(journal, later, target, 1500, again={"task": 100})
        assert hot == [], "of one in which its weights are read again and again"
        assert known_before(journal, later.id, "llvm") == {"task": 1e-3}
        for message in ("SIGSEGV", "SIGBUS"):
            fault = Failure(FailureKind.CRASH, message)
            journal.add_fault(first.id, "llvm", "final", earlier[1].id, fault, "unit0")
        (told,) = journal.faults(first.id, "llvm")
        assert (told["candidate"], told["message"]) == (earlier[1].id, "SIGSEGV")
        assert journal.faults(first.id, "cuda") == []
        assert known(journal, later, target, 1500) == found[1:], "it has faulted in a race since"
        counted = known(journal, later, target, 1500, besides=[earlier[1].id])
        assert counted == found, "a job goes on knowing what it has counted"


def test_what_calls_take_inside_models_is_known_of_earlier_jobs(
    journal: Journal, device: Device
) -> None:
    """Of the kernel that ships: the tuned one where it was faster, else the untuned one."""
    tasks = [TuningTask(name, "matmul", ("f",), 2, 1.0, 1, ()) for name in ("won", "lost", "new")]
    journal.add_tasks("net-1", "llvm", tasks)
    faster = Comparison(4e-3, 1e-3, 4.0, 3.9, 4.1, Verdict.FASTER)
    slower = Comparison(1e-3, 4e-3, 0.25, 0.2, 0.3, Verdict.SLOWER)
    journal.add_verdict("net-1", "llvm", "won", "c", faster)
    journal.add_verdict("net-1", "llvm", "lost", "c", slower)
    placed = {"won": 3e-3, "lost": 1e-3, "new": 1.0}
    journal.add_event("net-1", "in_place", target="llvm", model_s=4e-3, kernels=placed)
    later = make_job(job="net-2")
    for where, ratios in (
        (device, {"won": 1.5, "lost": 0.5}),
        (dataclasses.replace(device, sku="another"), {}),
    ):
        target = JobTarget("llvm", where.target, where, "tc")
        journal.add_job(later, [target])
        journal.add_tasks(later.id, "llvm", tasks)
        assert in_models(journal, later, target) == pytest.approx(ratios)
        later = make_job(job="net-3")
    first = journal.job("net-1")
    assert in_models(journal, first, journal.targets(first.id)[0]) == {}, "no job knows its own"
    newer = make_job(job="net-4")
    target = JobTarget("llvm", device.target, device, "tc")
    journal.add_job(newer, [target])
    journal.add_tasks(newer.id, "llvm", tasks)
    journal.add_verdict(newer.id, "llvm", "won", "c", faster)
    journal.add_event(newer.id, "in_place", target="llvm", model_s=1.0, kernels={"won": 4e-3})
    newest = make_job(job="net-5")
    journal.add_job(newest, [target])
    journal.add_tasks(newest.id, "llvm", tasks)
    assert in_models(journal, newest, target) == pytest.approx({"won": 2.0, "lost": 0.5})
    measured = Measurement("c", "screen", 0, (1.0,), unit="bad")
    journal.add_measurements(newer.id, "llvm", [measured])
    journal.withdraw("bad", 0.0, None, "throttled")
    assert in_models(journal, newest, target) == pytest.approx({"won": 1.5, "lost": 0.5})


def test_jobs_are_found_by_id_name_and_beginning(journal: Journal, device: Device) -> None:
    target = JobTarget("llvm", device.target, device, "tc")
    journal.add_job(make_job("net", "net-2"), [target])
    journal.add_job(make_job("network", "network-3"), [target])
    assert journal.job("net-1").id == "net-1"
    assert journal.job("net").id == "net-2", "the newest of that name, not a beginning"
    assert journal.job("netw").id == "network-3"
    with pytest.raises(UnknownJob, match="beginning of 2 jobs"):
        journal.job("net-")
    with pytest.raises(UnknownJob, match="no job 'x'"):
        journal.job("x")


def test_a_file_that_is_no_journal_is_refused(home: Home) -> None:
    (home.root / "journal.db").write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(StoreError, match="cannot be used"):
        Journal(home)


def test_a_home_that_cannot_be_made_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        Home(tmp_path / "file" / "home").prepare()


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_kill_nine(home: Home, journal: Journal) -> None:
    """A writer is killed in the middle; every row it reported is there, and the journal opens."""
    code = textwrap.dedent(
        """
        from tunefarm.home import Home
        from tunefarm.results.facts import Measurement
        from tunefarm.results.journal import Journal
        journal = Journal(Home.from_environment())
        for index in range(100000):
            row = Measurement(f"c{index}", "screen", 0, (1.0,))
            journal.add_measurements("net-1", "llvm", [row])
            print(index, flush=True)
        """
    )
    for round_ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(20 * (round_ + 1)):
            last = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        writer.stdout.close()
        last = int(rest[-1]) if rest and rest[-1].isdigit() else last
        stored = {m.candidate for m in journal.measurements("net-1", "llvm")}
        assert {f"c{index}" for index in range(last + 1)} <= stored


def test_what_was_withdrawn_counts_for_nothing_and_stays_on_record(journal: Journal) -> None:
    made = [Measurement(f"c{unit}", "screen", 0, (1.0,), unit=f"unit{unit}") for unit in range(2)]
    journal.add_measurements("net-1", "llvm", made)
    journal.add_failure("net-1", "llvm", "c2", Failure(FailureKind.CRASH, ""), "unit1")
    assert not journal.has_withdrawn("net-1")
    assert journal.withdraw("unit1", 0.0, None, "it throttles") == ["net-1"]
    assert [outcome[0] for outcome in journal.outcomes("net-1", "llvm")] == ["c0"]
    assert journal.measurements("net-1", "llvm") == made
    assert journal.has_withdrawn("net-1")
    journal.add_measurements(
        "net-1", "llvm", [Measurement("c3", "screen", 0, (1.0,), unit="unit1")]
    )
    assert [outcome[0] for outcome in journal.outcomes("net-1", "llvm")] == ["c0", "c3"]


def test_a_driver_that_was_taken_over_writes_nothing(home: Home, journal: Journal) -> None:
    first = journal.drive("net-1")
    journal.add_event("net-1", "running")
    second = Journal(home)
    assert second.drive("net-1") > first
    with pytest.raises(Fenced, match="another driver"):
        journal.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (1.0,))])
    assert second.measurements("net-1", "llvm") == []
    second.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (1.0,))])
    second.close()


def test_what_is_written_together_is_there_whole_or_not_at_all(journal: Journal) -> None:
    def half() -> None:
        with journal.together():
            journal.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (1.0,))])
            assert journal.measurements("net-1", "llvm"), "who writes it sees it"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert journal.measurements("net-1", "llvm") == []
    with journal.together():
        journal.add_measurements("net-1", "llvm", [Measurement("c", "screen", 0, (1.0,))])
    assert len(journal.measurements("net-1", "llvm")) == 1


def test_what_a_gpus_kernels_take_is_kept(home: Home) -> None:
    from tunefarm.measure.cuda.compiler import Resources

    of = (Resources("first", 72, 6912, 0, 0, 6144, 128), Resources("second", 255, 0, 64, 16, 512))
    journal = Journal(home)
    journal.add_resources("job", "cuda", "c", of)
    journal.add_resources("job", "cuda", "c", of)
    journal.add_resources("job", "cuda", "nothing", ())
    assert journal.resources("job", "cuda") == {"c": of}
    assert journal.resources("job", "llvm") == {}
    journal.close()
