"""Tables of the journal. Rows are facts: they are added, and never changed."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 1

metadata = MetaData()

meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", String))

jobs = Table(
    "jobs",
    metadata,
    Column("job", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("created", Float, nullable=False),
    Column("model_digest", String, nullable=False),
    Column("model_source", Text, nullable=False),
    Column("options", JSON, nullable=False),
    Column("protocol", JSON, nullable=False),
)

job_events = Table(
    "job_events",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False, index=True),
    Column("time", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("detail", JSON, nullable=False),
)

job_targets = Table(
    "job_targets",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("resolved", String, nullable=False),
    Column("device", JSON, nullable=False),
    Column("toolchain", String, nullable=False),
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
    Column("args", JSON, nullable=False),
    Column("position", Integer, nullable=False),
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
    Column("samples", JSON, nullable=False),
    Column("truncated", Boolean, nullable=False),
    Column("build_s", Float),
    Column("block", Integer),
    Column("time", Float, nullable=False),
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
    UniqueConstraint("job", "target", "candidate"),
)

blocks = Table(
    "blocks",
    metadata,
    Column("block", Integer, primary_key=True, autoincrement=True),
    Column("job", String, nullable=False, index=True),
    Column("target", String, nullable=False),
    Column("time", Float, nullable=False),
    Column("canary_s", Float, nullable=False),
    Column("conditions", JSON, nullable=False),
)

processes = Table(
    "processes",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("phase", String, primary_key=True),
    Column("process", Integer, primary_key=True),
    Column("time", Float, nullable=False),
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
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job", String, primary_key=True),
    Column("target", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("path", Text, nullable=False),
    Column("summary", JSON, nullable=False),
    Column("time", Float, nullable=False),
)

tracked = Table(
    "tracked",
    metadata,
    Column("job", String, primary_key=True),
    Column("uri", String, primary_key=True),
    Column("what", String, primary_key=True),
    Column("value", String, nullable=False),
)
