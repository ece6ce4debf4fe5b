"""The journal's promises, kept by PostgreSQL as by SQLite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests import postgres
from tests.results import test_journal as suite
from tests.results.test_salvage import write_journal
from tests.simulation import Faults, jobs
from tunefarm.devices.device import Device
from tunefarm.home import Home
from tunefarm.results.facts import JobTarget
from tunefarm.results.journal import Journal


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def url(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database, which a farm's commands use too."""
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS farm WITH (FORCE)")
        connection.exec_driver_sql("CREATE DATABASE farm")
    engine.dispose()
    found = server.replace("/postgres?", "/farm?")
    monkeypatch.setenv("TUNEFARM_JOURNAL", found)
    return found


@pytest.fixture
def journal(url: str, home: Home, device: Device) -> Iterator[Journal]:
    found = Journal(home)
    found.add_job(suite.make_job(), [JobTarget("llvm", device.target, device, "tc")])
    yield found
    found.close()


test_facts = suite.test_facts_are_stored_once_and_read_back
test_second_delivery = suite.test_a_second_delivery_does_not_change_the_first
test_verdicts = suite.test_verdicts
test_status = suite.test_status_follows_events_and_the_drivers_life
test_time_spent = suite.test_time_spent_adds_up_over_lives
test_outcomes = suite.test_outcomes_come_in_the_order_in_which_they_happened
test_known = suite.test_results_of_earlier_jobs_are_known
test_found = suite.test_jobs_are_found_by_id_name_and_beginning
test_kill_nine = suite.test_nothing_acknowledged_is_lost_by_kill_nine
test_withdrawn = suite.test_what_was_withdrawn_counts_for_nothing_and_stays_on_record
test_taken_over = suite.test_a_driver_that_was_taken_over_writes_nothing
test_together = suite.test_what_is_written_together_is_there_whole_or_not_at_all


@pytest.mark.slow
def test_every_table_keeps_what_it_is_given(url: str, home: Home, device: Device) -> None:
    truth = write_journal(home, device)
    assert [name for name, rows in truth.items() if not rows] == ["withdrawals"]
    journal = Journal(home)
    assert journal.damage() == {}
    assert journal.mend() is None
    journal.close()


@pytest.mark.long
def test_simulated_farms(url: str, home: Home, device: Device) -> None:
    fenced = sum(job.fenced for job in jobs(home, device, iter(range(20)), Faults()))
    assert fenced > 0
