"""tunefarm resume"""

from __future__ import annotations

import click

from tunefarm.cli.common import json_option


@click.command("resume")
@click.argument("job")
@json_option
def command(job: str, as_json: bool) -> None:
    """Go on with an interrupted JOB: nothing that was measured is measured again."""
    from tunefarm.cli.submit import run
    from tunefarm.errors import JobError
    from tunefarm.home import Home
    from tunefarm.results.journal import Journal

    home = Home.from_environment().prepare()
    journal = Journal(home)
    found = journal.job(job)
    status = journal.status(found.id)
    if status in ("succeeded", "cancelled"):
        raise JobError(f"job {found.id} has {status}; there is nothing to resume")
    run(home, journal, found, as_json)
