"""tunefarm sync"""

from __future__ import annotations

import sys

import click

from tunefarm.cli.common import json_option, show_json


@click.command("sync")
@click.argument("job", required=False)
@json_option
def command(job: str | None, as_json: bool) -> None:
    """Write to MLflow what it missed: of JOB, or of every ended job, oldest first."""
    from tunefarm.errors import JobError
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal
    from tunefarm.results.life import TERMINAL
    from tunefarm.results.tracking import sync_job

    home = Home.from_environment().prepare()
    journal = Journal(home)
    if job and journal.status(journal.job(job).id) == "running":
        raise JobError(
            f"job {journal.job(job).id} is running: its driver writes to MLflow",
            hint="Wait for it: tunefarm watch; or stop it first.",
        )
    ended = [j for j in reversed(journal.jobs()) if journal.status(j.id) in TERMINAL]
    jobs = [journal.job(job)] if job else ended
    outcome = {j.id: sync_job(journal, j.id, j.options["tracking_uri"]) for j in jobs}
    if as_json:
        show_json({"jobs": outcome})
    for name, problem in outcome.items():
        if not as_json:
            click.echo(f"{name}: {problem or 'in MLflow'}")
    if any(outcome.values()):
        if as_json:
            sys.exit(JobError.exit_code)
        raise JobError("MLflow could not be written", hint="Start it, then: tunefarm sync")
