"""tunefarm status"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from tunefarm.cli.common import json_option, open_job, show_json

if TYPE_CHECKING:
    from tunefarm.results.facts import Job
    from tunefarm.results.journal import Journal


def describe(journal: Journal, job: Job) -> dict[str, Any]:
    """The outcome's document, with phase and counts."""
    from tunefarm.cli import results

    phases = [e["detail"] for e in journal.events(job.id) if e["kind"] == "phase"]
    errors = [e["detail"] for e in journal.events(job.id) if e["kind"] == "failed"]
    found = results.document(journal, job)
    return {
        **found,
        "phase": phases[-1]["phase"] if phases else "import",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(job.created)),
        "counts": journal.counts(job.id),
        "error": errors[-1]["error"] if errors and found["status"] == "failed" else None,
    }


@click.command("status")
@click.argument("job")
@json_option
def command(job: str, as_json: bool) -> None:
    """Show one JOB (id, beginning of an id, or name): phase, counts, results."""
    from tunefarm.cli import results

    home, journal, found = open_job(job)
    data = describe(journal, found)
    if as_json:
        show_json(data)
        return
    counts = data["counts"]
    click.echo(f"{found.id}: {data['status']}, phase {data['phase']}, started {data['started']}")
    click.echo(
        f"candidates: {counts['proposed']} proposed, {counts['measured']} measured, "
        f"{counts['failed']} failed"
    )
    if data["error"]:
        click.echo(f"error: {data['error']}")
    if data["status"] == "interrupted":
        click.echo(f"go on with: tunefarm resume {found.id}")
    if data["targets"]:
        results.show(home, data, home.job_dir(found.id) / "report.html")
