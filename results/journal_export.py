"""The journal's facts as Parquet, for whoever wants to look at them with other tools."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tunefarm.home import atomically
from tunefarm.results.journal import Journal


def export_facts(journal: Journal, directory: Path) -> dict[str, int]:
    """One file a table in `directory`; facts in each. Documents are text in JSON.

    Raises:
        OSError: it cannot be written.
    """
    counts = {}
    for name, rows in journal.all_facts():
        columns = {
            column: [_plain(row[column]) for row in rows] for column in (rows[0] if rows else ())
        }
        with atomically(directory / f"{name}.parquet") as file:
            pq.write_table(pa.table(columns), file, compression="zstd")
        counts[name] = len(rows)
    return counts


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
