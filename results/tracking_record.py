"""What the journal knows of MLflow, without importing MLflow."""

from __future__ import annotations

from tunefarm.results.journal import Journal


def run_ids(journal: Journal, job: str, uri: str) -> dict[str, str]:
    """MLflow's run ids of a job: ``run`` and ``run:<target>``."""
    known = journal.tracked(job, uri)
    return {what: run for what, run in known.items() if what.split(":")[0] == "run"}
