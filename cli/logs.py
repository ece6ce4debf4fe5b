"""tunefarm logs"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option, open_job, show_json


@click.command("logs")
@click.argument("job")
@json_option
def command(job: str, as_json: bool) -> None:
    """Print JOB's log: phases, progress, failures of candidates."""

    home, journal, found = open_job(job)
    path = home.job_dir(found.id) / "job.log"
    lines = path.read_text().splitlines() if path.exists() else []
    failures = [
        f"{target.name}: candidate {row['candidate']}: {row['kind']}: {row['message']}"
        for target in journal.targets(found.id)
        for row in journal.failures(found.id, target.name)
    ]
    if as_json:
        show_json({"job": found.id, "lines": lines, "failures": failures})
    else:
        click.echo("\n".join([*lines, *failures]))
