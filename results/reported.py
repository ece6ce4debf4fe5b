"""The report of a job that is over: whoever asks first, its tracker or who has driven it, has it
written, for both. What draws it takes a second to import, and is when it is needed."""

from __future__ import annotations

from pathlib import Path

from tunefarm.results.facts import Job
from tunefarm.results.journal import Journal


def reported(journal: Journal, job: Job) -> Path:
    """Its file, in the job's directory."""
    path = journal.home.job_dir(job.id) / "report.html"
    if not path.exists() or as_of(journal, job) not in path.read_text(errors="replace"):
        from tunefarm.results import report

        report.write(journal, job, path)
    return path


def as_of(journal: Journal, job: Job) -> str:
    """A page's mark: what the record had of the job when it was written."""
    less = ", some withdrawn" if journal.has_withdrawn(job.id) else ""
    return f"<meta name=as-of content='{len(journal.events(job.id))} events{less}'>"
