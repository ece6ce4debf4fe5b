"""The Parquet files that a cost model is trained on: one for each target of each finished job."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tunefarm.costmodel.lessons import VERSION, Lesson
from tunefarm.errors import StoreError
from tunefarm.home import Home, write_atomically
from tunefarm.results.facts import Job, JobTarget
from tunefarm.results.journal import Journal
from tunefarm.search.proposer import Taught

_SCHEMA = pa.schema(
    [
        ("network", pa.string()),
        ("device", pa.string()),
        ("task", pa.string()),
        ("candidate", pa.string()),
        ("family", pa.string()),
        ("features", pa.list_(pa.float32())),
        ("expected_s", pa.float64()),
        ("latency_s", pa.float64()),
    ],
    metadata={"tunefarm.lessons": str(VERSION)},
)


def lessons_path(home: Home, job: str, target: str) -> Path:
    return home.job_dir(job) / target.replace("/", "-") / "lessons.parquet"


def drop_lessons(home: Home, job: str) -> None:
    """Of a job whose results are not to be learnt from any more."""
    for path in home.job_dir(job).glob("*/lessons.parquet"):
        path.unlink()


def lessons_of(
    journal: Journal, job: Job, target: JobTarget, taught: Iterable[Taught]
) -> list[Lesson]:
    """What the search knew of each candidate, with what the journal says became of it.

    A candidate that was given up as too slow keeps its one sample: that it is slow is known.
    """
    candidates = {c.id: c for c in journal.candidates(job.id, target.name)}
    outcomes = {c: latency for c, latency, _ in journal.outcomes(job.id, target.name)}
    return [
        Lesson(
            job.model_digest,
            target.device.fingerprint,
            candidates[one.candidate].task,
            one.candidate,
            one.family,
            one.features,
            one.expected_s,
            outcomes[one.candidate],
        )
        for one in taught
        if one.candidate in candidates and one.candidate in outcomes
    ]


def write_lessons(path: Path, lessons: Sequence[Lesson]) -> None:
    """All or nothing.

    Raises:
        OSError: it cannot be written.
    """
    columns = {
        name: [getattr(one, name) for one in lessons]
        for name in _SCHEMA.names
        if name != "features"
    }
    columns["features"] = [one.features.astype(np.float32) for one in lessons]
    file = io.BytesIO()
    pq.write_table(pa.table(columns, schema=_SCHEMA), file)
    write_atomically(path, file.getvalue())


def read_lessons(path: Path) -> list[Lesson]:
    """Lessons of another version are left out: what their features mean is not known.

    Raises:
        StoreError: the file is no such table.
    """
    try:
        # Threads of Arrow's that are still about may abort a process that ends then.
        table = pq.read_table(path, use_threads=False)
        version = (table.schema.metadata or {})[b"tunefarm.lessons"]
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise StoreError(
            f"{path} holds no lessons: {type(error).__name__}",
            hint="Write such a file with: tunefarm costmodel export",
        ) from error
    if version != str(VERSION).encode():
        return []
    return [
        Lesson(**{**row, "features": np.array(row["features"], dtype=np.float64)})
        for row in table.to_pylist()
    ]


def home_lessons(home: Home) -> list[Lesson]:
    """Of every job of this farm home, oldest first. A file that cannot be read is passed over."""
    found: list[Lesson] = []
    paths = sorted(home.jobs.glob("*/*/lessons.parquet"), key=lambda path: path.stat().st_mtime)
    for path in paths:
        try:
            found += read_lessons(path)
        except StoreError:
            continue
    return found
