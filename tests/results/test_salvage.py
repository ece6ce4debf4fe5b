"""A damaged journal: what is sound goes on, what is not is never taken for true."""

from __future__ import annotations

import json
import logging
import random
import shutil
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest

from tunefarm.devices.device import Device
from tunefarm.errors import Failure, FailureKind, StoreError
from tunefarm.frontend.program import TuningTask
from tunefarm.home import Home
from tunefarm.measure.cuda.compiler import Resources
from tunefarm.measure.protocol import Protocol
from tunefarm.measure.stats import Comparison, Verdict
from tunefarm.results import schema
from tunefarm.results.facts import Job, JobTarget, Measurement
from tunefarm.results.journal import Journal
from tunefarm.results.salvage import facts_in, mend
from tunefarm.results.store import DamagedStore, Store
from tunefarm.scheduler.ledger import Ledger
from tunefarm.scheduler.messages import Imported, Task
from tunefarm.scheduler.state import Limits, TargetState
from tunefarm.search.candidate import Candidate

Facts = dict[str, list[dict[str, Any]]]


SUMMARY = {
    "verdict": "FASTER",
    "speedup": 2.0,
    "speedup_ci95": [1.9, 2.1],
    "candidates": 2,
    "tuned_ms": 1.0,
    "baseline_ms": 2.0,
    "wall_s": 60.0,
    "parity": {"max_rel_err": 1e-6, "passed": True},
}


def write_journal(home: Home, device: Device, rows: int = 40) -> Facts:
    """A journal with something in every table, long documents among it; what it says."""
    journal = Journal(home, clock=lambda: 1.7e9)
    job = Job("net-1", "net", 1.7e9, "0" * 64, "net.onnx", {"seed": 0}, Protocol().to_dict())
    journal.add_job(job, [JobTarget("llvm", device.target, device, "tc")])
    task = TuningTask("t0", "matmul", ("f",), 1, 1.0, 1, ())
    journal.add_tasks(job.id, "llvm", [task])
    for n in range(rows):
        one = Candidate(f"t{n % 3}", device.target.text, "tc", f"[[{n}],[{'1,' * 50 * n}1]]", "tpe")
        journal.add_candidates(job.id, "llvm", [one])
        block = journal.add_block(job.id, "llvm", 1e-3, {"load": [0.1, 0.2]}, "unit0")
        samples = tuple(1e-3 + 1e-9 * k * n for k in range(20))
        made = Measurement(one.id, "screen", 0, samples, n % 2 == 0, 0.25, block, "unit0")
        journal.add_measurements(job.id, "llvm", [made])
    journal.add_failure(job.id, "llvm", "bad", Failure(FailureKind.CRASH, "SIGSEGV"), "unit0")
    taken = Resources("kernel", 72, 6912, 0, 0, 6144, 128)
    journal.add_resources(job.id, "llvm", "bad", [taken])
    journal.add_process(job.id, "llvm", "race", 0, [])
    journal.add_verdict(
        job.id, "llvm", "model", None, Comparison(2.0, 1.0, 2.0, 1.9, 2.1, Verdict.FASTER)
    )
    journal.add_artifact(job.id, "llvm", "net", "d", Path("net.tfa"), SUMMARY)
    journal.add_tracked(job.id, "sqlite://", "run", "1")
    found = dict(journal.all_facts())
    journal.close()
    return found


def facts(journal: Journal) -> Facts:
    return dict(journal.all_facts())


def assert_true(found: Facts, truth: Facts) -> int:
    """Everything found is true; how much is not there."""
    for name, rows in found.items():
        told = [column.name for column in schema.told_columns(schema.metadata.tables[name])]
        written = [[row[column] for column in told] for row in truth[name]]
        for row in rows:
            said = [row[column] for column in told]
            assert said in written, f"{name} says what was never written: {row}"
            written.remove(said)  # and says it once
    return sum(len(truth[name]) - len(found.get(name, [])) for name in truth)


@pytest.fixture
def truth(home: Home, device: Device) -> Facts:
    return write_journal(home, device)


def test_the_file_is_read_as_sqlite_reads_it(home: Home, truth: Facts) -> None:
    """Page by page, overflowing records among them, without its tables of contents."""
    assert truth["candidates"][-1]["trace"].count("1,") > 1500
    found: Facts = {}
    for table, row in facts_in(home.root / "journal.db"):
        found.setdefault(table.name, []).append(row)
    for name, rows in truth.items():
        assert [r for r in rows if r not in found.get(name, [])] == []


def test_what_is_in_the_log_alone_is_found(home: Home, truth: Facts, tmp_path: Path) -> None:
    journal = Journal(home)
    journal.add_measurements("net-1", "llvm", [Measurement("late", "screen", 0, (1.0,))])
    copy = tmp_path / "journal.db"
    for suffix in ("", "-wal"):
        shutil.copy(home.root / f"journal.db{suffix}", f"{copy}{suffix}")
    journal.close()
    assert any(row.get("candidate") == "late" for _, row in facts_in(copy))


def flip(path: Path, rng: random.Random, bits: int) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(bits):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def tear(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def damaged_once(home: Home, pristine: Path, truth: Facts, rng: random.Random) -> tuple[int, bool]:
    """Damage the journal, then let a job's driver look at it: facts lost, and whether it saw."""
    path = home.root / "journal.db"
    for old in home.root.glob("journal*"):
        old.unlink()
    shutil.copy(pristine, path)
    if rng.random() < 0.2:
        tear(path, rng)
    else:
        flip(path, rng, rng.choice((1, 1, 2, 8, 64)))
    try:
        journal = Journal(home)
    except StoreError:
        assert not list(facts_in(path)), "refused, though there are facts in it"
        return sum(map(len, truth.values())), True
    opened = journal.mended is not None
    assert opened == bool(list(home.root.glob("journal.damaged*")))
    seen = journal.mend() is not None or opened
    lost = assert_true(facts(journal), truth)
    assert seen or not lost, "facts are lost, and nobody is told"
    journal.add_event("net-1", "running")
    assert journal.damage() == {}
    journal.close()
    return lost, seen


@pytest.mark.slow
def test_damage_is_seen_and_set_aside_and_never_fatal(
    home: Home, truth: Facts, tmp_path: Path
) -> None:
    pristine = tmp_path / "pristine.db"
    shutil.copy(home.root / "journal.db", pristine)
    rng = random.Random(0)
    outcomes = [damaged_once(home, pristine, truth, rng) for _ in range(100)]
    assert sum(seen for _, seen in outcomes) > 30
    kept = 1 - sum(lost for lost, _ in outcomes) / len(outcomes) / sum(map(len, truth.values()))
    assert kept > 0.7, "most of a damaged journal is saved"


def test_damage_that_cannot_be_spelt_is_damage(home: Home, truth: Facts) -> None:
    """SQLite names what is broken, in bytes that are no text any more."""
    path = home.root / "journal.db"
    data = path.read_bytes()
    whole = b"tablemeasurementsmeasurements"
    broken = {
        whole: b"tablem\xe5asurementsmeasurements",
        b"CREATE TABLE measu": b"CREATE FABLE measu",
    }
    for name, wrong in broken.items():
        assert data.count(name) == 1
        data = data.replace(name, wrong)
    path.write_bytes(data)
    journal = Journal(home)
    assert facts(journal) == truth, "its facts are whole"
    assert list(home.root.glob("journal.damaged*"))
    journal.close()


def test_a_fact_that_was_changed_is_not_told(home: Home, truth: Facts) -> None:
    """By hand, so that the file itself is whole."""
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update measurements set samples = '[1e-9]' where seq = 7")
    raw.close()
    journal = Journal(home)
    assert len(journal.measurements("net-1", "llvm")) == len(truth["measurements"]) - 1
    assert journal.damage() == {"measurements": 1}
    mended = journal.mend()
    assert mended is not None
    assert mended.aside.exists()
    assert journal.damage() == {}
    assert len(facts(journal)["measurements"]) == len(truth["measurements"]) - 1
    assert journal.mend() is None
    journal.close()


def test_a_mending_that_was_cut_short_is_finished(
    home: Home, truth: Facts, caplog: pytest.LogCaptureFixture
) -> None:
    path = home.root / "journal.db"
    pristine = path.read_bytes()
    mend(path)
    mended = path.read_bytes()
    path.write_bytes(pristine[:5000])
    (home.root / "journal.db.mended").write_bytes(mended)
    with pytest.raises(DamagedStore, match="cut short"):
        Journal(home, mends=False)
    with caplog.at_level(logging.WARNING):
        journal = Journal(home)
    assert "the journal was damaged" in caplog.text
    assert journal.mended is not None
    assert journal.mended.kept == {name: len(rows) for name, rows in truth.items()}
    assert facts(journal) == truth
    journal.close()


def test_an_old_journal_is_brought_up_to_date(home: Home, truth: Facts) -> None:
    """A journal of version 1: no checksums, no units."""
    with sqlite3.connect(home.root / "journal.db") as raw:
        for name, rows in truth.items():
            columns = [c for c in (rows[0] if rows else {}) if c not in ("unit", "crc")]
            if not columns:
                continue
            raw.execute(f"create table old as select {', '.join(columns)} from {name}")
            raw.execute(f"drop table {name}")
            raw.execute(f"alter table old rename to {name}")
        raw.execute("drop table withdrawals")
        raw.execute("drop table drivers")
        raw.execute("update meta set value = '1' where key = 'schema'")
    raw.close()
    journal = Journal(home)
    found = facts(journal)
    for name in ("measurements", "failures", "blocks"):
        assert all(row.pop("unit") is None for row in found[name])
        assert all(row.pop("unit") == "unit0" for row in truth[name])
    assert found == truth
    assert journal.damage() == {}
    journal.close()
    store = Store(home.journal_url)
    assert store.rows(schema.meta.select())[0]["value"] == str(schema.SCHEMA_VERSION)
    store.close()


def test_a_result_whose_candidate_is_lost_is_no_result(home: Home, truth: Facts) -> None:
    """A resumed job does not know it, and proposes it again as it may."""
    lost = truth["candidates"][3]["candidate"]
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update candidates set trace = '[]' where candidate = ?", (lost,))
    raw.close()
    journal = Journal(home)
    assert journal.mend() is not None
    (target,) = journal.targets("net-1")
    ledger = Ledger(journal, journal.job("net-1"), target)
    state = TargetState(Limits(trials=100))
    tasks = [Task(f"t{n}", 1, f"base{n}") for n in range(3)]
    state.restore(Imported(tuple(tasks)))
    ledger.retell(state)
    state.validate()
    assert lost not in state.done
    assert len(state.done) == len(truth["measurements"]) - 1
    journal.close()


def test_a_number_that_means_something_is_a_part_of_its_fact(home: Home, truth: Facts) -> None:
    """An event that comes before another one, a block that measurements name."""
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update job_events set seq = seq + 100")
        raw.execute("update blocks set block = block + 100 where block = 3")
        raw.execute("update candidates set seq = seq + 100 where seq = 3")
    raw.close()
    journal = Journal(home)
    assert journal.damage() == {"job_events": len(truth["job_events"]), "blocks": 1}
    journal.close()


def test_events_of_older_journals_are_known_as_they_are(home: Home, truth: Facts) -> None:
    """Their checksums did not cover their numbers."""
    (event,) = truth["job_events"]
    unnumbered = {"job": event["job"], "time": event["time"], "kind": event["kind"]}
    told = json.dumps(["job_events", *unnumbered.values(), event["detail"]], sort_keys=True)
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update job_events set crc = ?", (f"{zlib.crc32(told.encode()):08x}",))
        raw.execute("update meta set value = '2'")
    raw.close()
    journal = Journal(home)
    assert journal.damage() == {}
    assert len(journal.events("net-1")) == 1
    journal.close()
