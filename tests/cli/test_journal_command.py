"""tunefarm journal, as a user calls it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.command import tunefarm
from tests.results.test_salvage import write_journal
from tunefarm.devices.device import Device
from tunefarm.home import Home


@pytest.mark.slow
def test_a_damaged_journal_is_found_and_mended(home: Home, device: Device) -> None:
    write_journal(home, device)
    assert tunefarm("journal", "check").out.endswith("all sound\n")
    with sqlite3.connect(home.root / "journal.db") as raw:
        raw.execute("update measurements set samples = '[1e-9]' where seq = 7")
    raw.close()
    found = tunefarm("journal", "check", "--json")
    assert found.code == 5
    assert found.json["damage"] == {"measurements": 1}
    said = tunefarm("journal", "check")
    assert said.code == 5
    assert "--mend" in said.err
    mended = tunefarm("journal", "check", "--mend", "--json").json
    assert mended["mended"]
    assert Path(mended["aside"]).exists()
    assert tunefarm("journal", "check").code == 0


@pytest.mark.slow
def test_one_that_cannot_even_be_opened_is_not_mended_unasked(home: Home, device: Device) -> None:
    truth = write_journal(home, device)
    path = home.root / "journal.db"
    path.write_bytes(b"SQLite_format" + path.read_bytes()[13:])
    broken = path.read_bytes()
    for options in ((), ("--json",)):
        found = tunefarm("journal", "check", *options)
        assert found.code == 5
        assert "--mend" in found.err
    assert path.read_bytes() == broken
    mended = tunefarm("journal", "check", "--mend", "--json").json
    assert mended["mended"]
    assert Path(mended["aside"]).read_bytes() == broken
    assert mended["facts"] == {name: len(rows) for name, rows in truth.items()}
    path.write_bytes(b"SQLite_format" + path.read_bytes()[13:])
    listed = tunefarm("jobs", "--json")
    assert [job["job"] for job in listed.json["jobs"]] == ["net-1"]
    assert "the journal was damaged" in listed.err


@pytest.mark.slow
def test_facts_are_exported_and_withdrawn(home: Home, device: Device, tmp_path: Path) -> None:
    truth = write_journal(home, device)
    done = tunefarm("journal", "export", tmp_path / "facts", "--json").json
    assert done["facts"] == {name: len(rows) for name, rows in truth.items()}
    table = pq.read_table(tmp_path / "facts" / "measurements.parquet")
    assert table.num_rows == len(truth["measurements"])
    assert "samples" in table.column_names
    gone = tunefarm("journal", "withdraw", "unit0", "--reason", "it throttles", "--json").json
    assert gone["jobs"] == ["net-1"]
    refused = tunefarm("journal", "withdraw", "unit0")
    assert refused.code == 2
