"""Tables of what a job has measured, of a record with gaps."""

from __future__ import annotations

import sqlite3

from tests.results.test_salvage import write_journal
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.results import evidence
from tunefarm.results.journal import Journal


def test_what_is_lost_is_missing_and_the_rest_is_shown(home: Home, device: Device) -> None:
    write_journal(home, device)
    journal = Journal(home)
    (job,) = journal.jobs()
    whole = evidence.candidate_table(journal, job.id, "llvm")
    points = len(evidence.best_so_far(journal, job.id, "llvm"))
    assert points > 1
    timed = next(m.candidate for m in journal.measurements(job.id, "llvm", ("screen",)))
    journal.close()
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update candidates set trace = '[]' where candidate = ?", (timed,))
    raw.close()
    journal = Journal(home)
    assert len(evidence.candidate_table(journal, job.id, "llvm")) == len(whole) - 1
    assert len(evidence.best_so_far(journal, job.id, "llvm")) == points - 1
    assert not evidence.kernel_table(journal, job.id, "llvm").empty
    journal.close()
