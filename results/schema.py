"""Tables of the journal. Rows are facts: they are added, and never changed.

Every fact carries a checksum of what it says, so that a record that was damaged where it lay is
noticed when it is read (`sound`), and a sound one is known in a damaged file (`salvage`). Columns
are added at the end, before the checksum alone: `salvage` goes by their order. `drivers` is no
fact: it says who may write a job's rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

SCHEMA_VERSION = 4

metadata = MetaData()


class Json(TypeDecorator[Any]):
    """A document as text. One that cannot be read is None: its row's checksum says the rest."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return json.dumps(value)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        try:
            return json.loads(value)
        except (TypeError, ValueError):
            return None


def crc() -> Column[str]:
    return Column("crc", String, nullable=False)


def checksum(table: Table, row: Mapping[str, Any]) -> str:
    """Of what `row` says: 8 hex digits."""
    return _checksum(table, row, told_columns(table))


def _checksum(table: Table, row: Mapping[str, Any], columns: Iterable[Column[Any]]) -> str:
    told = [table.name, *(_plain(column, row.get(column.name)) for column in columns)]
    return f"{zlib.crc32(json.dumps(told, sort_keys=True).encode()):08x}"


MEANS = {"means": True}
"""Of a number that the fact gets when it is stored, and that says something: others refer to it, or
its order counts."""


def told_columns(table: Table) -> list[Column[Any]]:
    """Those of a fact. Its checksum is given to it, and so is its number, which is no part of it
    where it means nothing."""
    return [
        c
        for c in table.columns
        if c.name != "crc" and (c.autoincrement is not True or c.info.get("means"))
    ]


def number_that_means(table: Table) -> str | None:
    """The column of such a number, where the table has one."""
    found = (c.name for c in table.columns if c.autoincrement is True and c.info.get("means"))
    return next(found, None)


def _plain(column: Column[Any], value: Any) -> Any:
    """As it comes back from a database: an integer in a column of floats does not stay one."""
    if value is None:
        return None
    if isinstance(column.type, Float):
        return float(value)
    if isinstance(column.type, Boolean):
        return bool(value)
    return value


def sound(table: Table, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that say what was written, without their checksums; the others are left out."""
    kept = []
    for row in rows:
        if is_sound(table, row):
            kept.append({name: value for name, value in row.items() if name != "crc"})
    return kept


def is_sound(table: Table, row: Mapping[str, Any]) -> bool:
    if "crc" not in table.c:
        return True
    try:
        if row["crc"] == checksum(table, row):
            return True
        # Up to schema 2 no number was a part of its fact.
        old = [c for c in told_columns(table) if c.autoincrement is not True]
        return number_that_means(table) is not None and row["crc"] == _checksum(table, row, old)
    except (TypeError, ValueError):  # of another type than its column
        return False


meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", String))

jobs = Table(
    "jobs",
    metadata,
    Column("job", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("created", Float, nullable=False),
    Column("model_digest", String, nullable=False),
    Column("model_source", Text, nullable=False),
    Column("options", Json, nullable=False),
    Column("protocol", Json, nullable=False),
    crc(),
)

job_events = Table(
    "job_events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True, info=MEANS),
    Column("job", String, nullable=False, index=True),
    Column("time", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("detail", Json, nullable=False),
    crc(),
)

job_targets = Table(
    "job_targets",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("resolved", String, nullable=False),
    Column("device", Json, nullable=False),
    Column("toolchain", String, nullable=False),
    crc(),
)

tasks = Table(
    "tasks",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("task", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("weight", Integer, nullable=False),
    Column("flops", Float, nullable=False),
    Column("bytes", Float, nullable=False),
    Column("args", Json, nullable=False),
    Column("position", Integer, nullable=False),
    crc(),
)

candidates = Table(
    "candidates",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False),
    Column("target", String, nullable=False),
    Column("candidate", String, nullable=False),
    Column("task", String, nullable=False),
    Column("trace", Text, nullable=False),
    Column("origin", String, nullable=False),
    crc(),
    UniqueConstraint("job", "target", "candidate"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False),
    Column("target", String, nullable=False),
    Column("candidate", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("process", Integer, nullable=False),
    Column("samples", Json, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("build_s", Float),
    Column("block", Integer),
    Column("time", Float, nullable=False),
    Column("unit", String),
    crc(),
    UniqueConstraint("job", "target", "candidate", "stage", "process"),
)

failures = Table(
    "failures",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False),
    Column("target", String, nullable=False),
    Column("candidate", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("time", Float, nullable=False),
    Column("unit", String),
    crc(),
    UniqueConstraint("job", "target", "candidate"),
)

resources = Table(
    "resources",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("candidate", String, primary_key=True),
    Column("kernel", String, primary_key=True),
    Column("registers", Integer, nullable=False),
    Column("shared_bytes", Integer, nullable=False),
    Column("spill_bytes", Integer, nullable=False),
    Column("stack_bytes", Integer, nullable=False),
    Column("code_bytes", Integer, nullable=False),
    Column("threads", Integer, nullable=False),
    crc(),
)

blocks = Table(
    "blocks",
    metadata,
    Column("block", Integer, primary_key=True, autoincrement=True, info=MEANS),
    Column("job", String, nullable=False, index=True),
    Column("target", String, nullable=False),
    Column("time", Float, nullable=False),
    Column("canary_s", Float, nullable=False),
    Column("conditions", Json, nullable=False),
    Column("unit", String),
    crc(),
)

processes = Table(
    "processes",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("phase", String, primary_key=True),
    Column("process", Integer, primary_key=True),
    Column("time", Float, nullable=False),
    crc(),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("winner", String),
    Column("base_s", Float),
    Column("tuned_s", Float),
    Column("speedup", Float),
    Column("low", Float),
    Column("high", Float),
    Column("verdict", String, nullable=False),
    crc(),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("path", Text, nullable=False),
    Column("summary", Json, nullable=False),
    Column("time", Float, nullable=False),
    crc(),
)

tracked = Table(
    "tracked",
    metadata,
    Column("job", String, primary_key=True),
    Column("uri", String, primary_key=True),
    Column("what", String, primary_key=True),
    Column("value", String, nullable=False),
    crc(),
)

withdrawals = Table(
    "withdrawals",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("unit", String, nullable=False),
    Column("since", Float, nullable=False),
    Column("until", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("time", Float, nullable=False),
    crc(),
)

drivers = Table(
    "drivers",
    metadata,
    Column("job", String, primary_key=True),
    Column("epoch", Integer, nullable=False),
)
